"""A loader whose cluster loses its head while training goes on."""

from __future__ import annotations

import os
import signal
import time

from tests.ray.streams import loader_of, mixture
from tests.ray.test_owners import descendants, name_of


def main() -> None:
    loader = loader_of(mixture(), 0, 1, engine="ray", cp_degrees=(1,))
    batches = iter(loader)
    next(batches)
    [head] = [
        process for process in descendants(os.getpid()) if "gcs_server" in name_of(process).partition(" ")[0]
    ]
    os.kill(head, signal.SIGKILL)
    try:
        while True:
            next(batches)
            time.sleep(0.5)
    except ConnectionError as error:
        print("told:", error, flush=True)
    os._exit(0)  # ray.shutdown would wait for the head


if __name__ == "__main__":
    main()
