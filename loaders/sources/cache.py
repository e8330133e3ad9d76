"""Least-recently-used caches, bounded by what their values weigh, one of each kind a process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by key; the least recently used leave when the total weight passes the budget.

    A forked child starts empty: open files and their positions are not shared with the parent.
    Thread-safe; a value may be made twice when two threads miss at once.
    """

    def __init__(self, budget: int, weight: Callable[[Value], int] = lambda value: 1) -> None:
        self.budget = budget
        self._weight = weight
        self._reset()

    def _reset(self) -> None:
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._total = 0
        self._process = os.getpid()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value at ``key``, made when it is missing."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found[0]
        value = make()
        weight = self._weight(value)
        with self._lock:
            previous = self._values.pop(key, None)
            self._total += weight - (previous[1] if previous else 0)
            self._values[key] = (value, weight)
            while self._total > self.budget and len(self._values) > 1:
                self._total -= self._values.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Forget everything; what callers still hold lives on."""
        self._reset()

    def __len__(self) -> int:
        return len(self._values)
