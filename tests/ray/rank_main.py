"""One rank as a program of its own: ``rank_main.py RANK RANKS BATCHES``; prints what identifies each batch.

Further batches are given on each line of the standard input.
"""

from __future__ import annotations

import os
import sys

from tests.ray.streams import be_patient_here, digest, loader_of, mixture


def main() -> None:
    be_patient_here()
    rank, ranks, count = map(int, sys.argv[1:])
    loader = loader_of(mixture(), rank, ranks, engine="ray", address=os.environ.get("CLUSTER"))
    for at, batch in enumerate(loader):
        print("batch", digest(batch), flush=True)
        if at + 1 == count:
            sys.stdin.readline()
    print("end", flush=True)


if __name__ == "__main__":
    main()
