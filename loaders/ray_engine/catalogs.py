"""Opening data once for all ranks: lengths and order lie in Ray's object store, once a node."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from loaders.faults import Fault, without_length
from loaders.opening import Opened, open_order
from loaders.ray_engine.raised import remembered
from loaders.ray_engine.rows import release_decoded
from loaders.ray_engine.session import unpickled


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedData:
    """Opened data, and the rows that were left out while their lengths were counted."""

    opened: Opened
    lost: tuple[Fault, ...]


KEPT = 16
"""Opened data that are kept for ranks to come, the latest."""


class CatalogKeeper:
    """Actor: looks the data's lengths up and keeps what it found in the object store.

    Ranks map the arrays from there. What of them is lost with this process is found anew by the next one,
    since it is a function of the data.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Any] = OrderedDict()

    def find(self, key: str) -> list[Any]:
        """Reference to the `SharedData`, in a list, so that it is not copied into the answer; or nothing."""
        return [self._kept[key]] if key in self._kept else []

    def open(self, key: str, dataset: NDArray[np.uint8], options: Mapping[str, Any]) -> list[Any]:
        """The same, and what is missing is found first; ``dataset`` is pickled."""
        if key not in self._kept:
            data = unpickled(dataset)
            with remembered():
                opened = open_order(data, **options)
            lost: tuple[Fault, ...] = ()
            if options.get("on_bad") == "skip":
                lost = tuple(fault for catalog in opened.catalogs for fault in without_length(catalog.source))
            self._kept[key] = ray.put(SharedData(opened=opened, lost=lost))
            release_decoded()  # what was decoded to find lengths is not read here again
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self.find(key)

    def stats(self) -> int:
        """Number of opened data that it keeps."""
        return len(self._kept)
