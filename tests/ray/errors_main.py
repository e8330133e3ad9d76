"""A program whose data cannot be read: ``errors_main.py rows``, or ``errors_main.py module FOLDER``.

With ``rows`` all rows from the 60th on are broken, and the program goes on for a while after it was told of
the first, as one that cleans up does; with ``module`` only this process can import the source's class.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from pathlib import Path

from loaders import DataLoader
from tests.loaders.arrays import ArraySource
from tests.ray.streams import be_patient_here

MODULE = """
from tests.loaders.arrays import ArraySource

class OwnSource(ArraySource):
    pass
"""


class Broken(ArraySource):
    def read(self, rows):
        if any(int(row) >= 60 for row in rows):
            raise ValueError("no such picture")
        return super().read(rows)


def rows() -> None:
    loader = DataLoader(Broken([40] * 400), batch_size=16, max_tokens=160, engine="ray", num_workers=4)
    try:
        for _ in loader:
            pass
    except ValueError:
        traceback.print_exc()
    del loader
    gc.collect()
    time.sleep(3)
    sys.exit(1)


def module(folder: str) -> None:
    Path(folder, "own_source.py").write_text(MODULE)
    sys.path.insert(0, folder)
    from own_source import OwnSource

    DataLoader(OwnSource([40] * 400), batch_size=16, max_tokens=160, engine="ray")


if __name__ == "__main__":
    be_patient_here()
    {"rows": rows, "module": module}[sys.argv[1]](*sys.argv[2:])
