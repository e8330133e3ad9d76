"""Data sets and samplers for the scenarios that run with torch's loader and with ours."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import time
from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Pair = namedtuple("Pair", ["left", "right"])


class OwnDict(dict):
    """A mapping of a type of its own."""


class OwnList(list):
    """A sequence of a type of its own."""


class Numbers(Dataset):
    def __init__(self, size=23, make=int):
        self.size = size
        self.make = make

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        if not 0 <= row < self.size:
            raise IndexError(f"row {row}")
        return self.make(row)


class Batched(Numbers):
    """Gives all rows of a batch at once."""

    def __getitems__(self, rows):
        return [100 * row for row in rows]


class Unsized(Dataset):
    def __getitem__(self, row):
        return row


class Raising(Numbers):
    """Row 5 raises what it is told to."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitem__(self, row):
        if row == 5:
            raise self.error
        return row


class TwoPartError(Exception):
    """Cannot be made anew of one text."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Abstract(Dataset):
    def __len__(self):
        return 7


class Count(IterableDataset):
    """The same for every worker."""

    def __init__(self, size=20):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))

    def __len__(self):
        return self.size


class Shared(IterableDataset):
    """Divided among the workers; without a length."""

    def __iter__(self):
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from range(first, 23, every)


class Uneven(IterableDataset):
    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        return iter(range(self.sizes[get_worker_info().id]))


class FailingStream(IterableDataset):
    def __iter__(self):
        yield 1
        raise RuntimeError("the stream broke")


class NoStream(IterableDataset):
    def __iter__(self):
        raise RuntimeError("no stream at all")


class OwnIterator(IterableDataset):
    """Its own iterator: goes on where it stood."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= 12:
            raise StopIteration
        self.at += 1
        return self.at


class Randoms(Dataset):
    """What a worker draws and who it is."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        worker = get_worker_info()
        who = (worker.id, worker.num_workers, worker.seed) if worker else (-1, 0, 0)
        drawn = (torch.rand(()).item(), random.random(), np.random.rand(), torch.initial_seed())  # noqa: NPY002
        return (row, *who, *drawn)


class Remembering(Dataset):
    """Counts its reads in whatever process it lives; its size may change behind the loader's back."""

    def __init__(self):
        self.reads = 0
        self.offset = 0

    def __len__(self):
        return 6

    def __getitem__(self, row):
        self.reads += 1
        return self.reads * 1000 + self.offset + row


class Slow(Dataset):
    def __init__(self, seconds, rows=(0,)):
        self.seconds = seconds
        self.rows = rows

    def __len__(self):
        return 8

    def __getitem__(self, row):
        if row in self.rows:
            time.sleep(self.seconds)
        return row


class Held(Dataset):
    """Row 0 is not there before row 5, which another of two workers reads meanwhile."""

    def __init__(self):
        self.reached = multiprocessing.Event()

    def __len__(self):
        return 8

    def __getitem__(self, row):
        if row == 0:
            assert self.reached.wait(300)
        if row == 5:
            self.reached.set()
        return row


class Deadly(Dataset):
    """Row 5 ends its process."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 8

    def __getitem__(self, row):
        if row == 5:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.how == "exit":
                os._exit(3)
            ctypes.string_at(0)
        return row


class Tensors(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, row):
        return {"x": torch.full((2, 3), float(row)), "inner": {"n": row, "text": f"row {row}"}}


class Backwards:
    """An iterable of rows that is no Sampler, with a length."""

    def __iter__(self):
        return iter(range(9, -1, -1))

    def __len__(self):
        return 10


class Lengthless:
    def __iter__(self):
        return iter([3, 1, 2])


class Lists:
    """A sampler that gives lists."""

    def __iter__(self):
        return iter([[0, 1, 2], [3], [4, 5]])

    def __len__(self):
        return 3


class ListRows(Numbers):
    def __getitem__(self, rows):
        return torch.tensor(rows)


def as_pair(row):
    return Pair(row, str(row))


def as_own_dict(row):
    return OwnDict(a=row, b=[row, float(row)])


def as_own_list(row):
    return OwnList([row, row + 1])


def as_mixed(row):
    return (
        row,
        float(row),
        row > 3,
        f"row {row}",
        np.float32(row),
        np.arange(row, row + 2),
        torch.tensor(row),
    )


def as_ragged(row):
    return torch.zeros(row)


def as_ragged_list(row):
    return list(range(row))


def as_object(row):
    return object()


def as_none(row):
    return None


def as_bytes(row):
    return bytes([row])


def seed_all(worker):
    torch.manual_seed(worker + 1000)
    random.seed(worker + 1000)
    np.random.seed(worker + 1000)  # noqa: NPY002


def fail_at_start(worker):
    raise RuntimeError(f"worker {worker} does not start")


def not_picklable(samples):
    raise TwoPartError("one", "two")


def quiet(worker):
    """Keep what C handlers print of a crash out of the test's output."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
