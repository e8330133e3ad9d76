"""Memory that workers share with the training process, so that tokens of a batch do not go through the pipe.

A pipe carries a megabyte in pieces of 64 KiB, copied and waited for on both sides: 11 ns of CPU a token,
twice what reading, planning and laying out take together. Here the worker writes tokens and labels into one
of its slots and sends the slot's number; the training process lays the batch out from there. The slot is
free again when nothing refers to its arrays any more. A batch that finds no free slot, or none large enough,
goes through the pipe as everything else does, so nobody ever waits for a slot.

The memory has no name and counts against no limit of /dev/shm. It is gone with the last process that has it,
however that ends. Where the system has no such memory (all but Linux) there are no slots.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SMALLEST_BYTES = 1 << 15
"""Below it the pipe, which holds 64 KiB, is as cheap."""
LARGEST_ROOM = 1 << 28
"""Bytes of a slot, at most. Only what batches fill takes memory."""
FREE, TAKEN = 0, 1
ALIGNED = 64
PAGE = mmap.PAGESIZE

_keys = itertools.count()
_OPEN: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()
"""Slots of this process's iterations, by the key that messages of workers name."""


class Slots:
    """Some slots for each of W workers.

    Args:
        workers: W.
        slots: of each worker.
        room: bytes of a slot; rounded up to pages.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, workers: int, slots: int, room: int) -> None:
        file = os.memfd_create("evenload-slots", os.MFD_CLOEXEC)
        try:
            room = -(-room // PAGE) * PAGE
            flags = -(-workers * slots // PAGE) * PAGE
            os.ftruncate(file, flags + workers * slots * room)
            self._map(file, next(_keys), workers, slots, room)
        except BaseException:
            os.close(file)
            raise
        _OPEN[self.key] = self

    def _map(self, file: int, key: int, workers: int, slots: int, room: int) -> None:
        self.file, self.key, self.workers, self.slots, self.room = file, key, workers, slots, room
        self.memory = mmap.mmap(file, 0)
        self.first = self.memory.size() - workers * slots * room
        self.flags: NDArray[np.uint8] = np.frombuffer(self.memory, np.uint8, workers * slots)
        self._marks: dict[int, tuple[weakref.ref[Any], int]] = {}
        weakref.finalize(self, os.close, file)

    def __reduce__(self) -> tuple[Any, ...]:
        """For workers that are started afresh: the descriptor travels, the memory is the same."""
        return _from_parent, (
            reduction.DupFd(self.file),
            self.key,
            self.workers,
            self.slots,
            self.room,
        )

    def put(self, worker: int, arrays: Sequence[Array]) -> Ticket | None:
        """Copy arrays into a free slot of a worker; ``None`` where there is none. Called in that worker."""
        offsets = list(itertools.accumulate((_aligned(array.nbytes) for array in arrays), initial=0))
        if not SMALLEST_BYTES <= offsets[-1] <= self.room:
            return None
        mine = self.flags[worker * self.slots : (worker + 1) * self.slots]
        free = np.flatnonzero(mine == FREE)
        if not free.size:
            return None
        number = worker * self.slots + int(free[0])
        self.flags[number] = TAKEN
        memory = self._slot(number)
        kinds = []
        for array, offset in zip(arrays, offsets, strict=False):
            memory[offset : offset + array.nbytes].view(array.dtype)[:] = array
            kinds.append((offset, array.nbytes, array.dtype.str))
        return Ticket(self.key, number, kinds)

    def get(self, number: int, kinds: Sequence[tuple[int, int, str]]) -> list[Array]:
        """What `put` copied there. Called in the training process, once for a ticket."""
        memory = self._slot(number)
        mark = weakref.ref(memory, self._release)
        self._marks[id(mark)] = mark, number
        return [memory[offset : offset + size].view(kind) for offset, size, kind in kinds]

    def _slot(self, number: int) -> NDArray[np.uint8]:
        # slices refer to what this array lies in; that is no array, so they refer to this very array
        return np.frombuffer(self.memory, np.uint8, self.room, self.first + number * self.room)

    def _release(self, mark: weakref.ref[Any]) -> None:
        # the worker sees this after all reads of the arrays: Python's locks lie between
        self.flags[self._marks.pop(id(mark))[1]] = FREE


class Ticket:
    """What travels instead of the arrays; unpickled, it is a list of them."""

    def __init__(self, key: int, number: int, kinds: Sequence[tuple[int, int, str]]) -> None:
        self.key, self.number, self.kinds = key, number, kinds

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrays_of, (self.key, self.number, self.kinds)


class _Mine:
    """The slots that this process writes to, where it is a worker."""

    slots: Slots | None = None
    worker = 0


def write_to(slots: Slots | None, worker: int) -> None:
    """Let this process's batches travel by slots."""
    _Mine.slots, _Mine.worker = slots, worker


def parcel(arrays: Sequence[Array]) -> Ticket | list[Array]:
    """What to send for arrays of a batch: a ticket, in a worker that has a slot for them, or themselves."""
    ticket = None if _Mine.slots is None else _Mine.slots.put(_Mine.worker, arrays)
    return list(arrays) if ticket is None else ticket


def open_slots(workers: int, slots: int, room: int) -> Slots | None:
    """Slots for some workers, or ``None`` where the system has no such memory."""
    if not hasattr(os, "memfd_create") or room < SMALLEST_BYTES:
        return None
    try:
        return Slots(workers, slots, min(room, LARGEST_ROOM))
    except OSError:  # no descriptor is left, or it is forbidden: the pipe does
        return None


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _from_parent(file: Any, key: int, workers: int, slots: int, room: int) -> Slots:
    found = Slots.__new__(Slots)
    found._map(file.detach(), key, workers, slots, room)
    return found


def _arrays_of(key: int, number: int, kinds: Sequence[tuple[int, int, str]]) -> list[Array]:
    return _OPEN[key].get(number, kinds)
