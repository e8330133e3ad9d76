"""Opening data once for all ranks: lengths and order lie in Ray's object store, once a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from loaders.faults import Fault, without_length
from loaders.opening import Opened, open_order


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedData:
    """Opened data, and the rows that were left out while their lengths were counted."""

    opened: Opened
    lost: tuple[Fault, ...]


class CatalogKeeper:
    """Actor: looks the data's lengths up and keeps what it found in the object store.

    Ranks map the arrays from there. What of them is lost with this process is found anew by the next one,
    since it is a function of the data.
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any]) -> None:
        self.dataset, self.options = dataset, dict(options)
        self._kept: Any = None

    def shared(self) -> list[Any]:
        """Reference to the `SharedData`, in a list, so that it is not copied into this answer."""
        if self._kept is None:
            opened = open_order(self.dataset, **self.options)
            lost: tuple[Fault, ...] = ()
            if self.options.get("on_bad") == "skip":
                lost = tuple(fault for catalog in opened.catalogs for fault in without_length(catalog.source))
            self._kept = ray.put(SharedData(opened=opened, lost=lost))
            self.dataset = None  # its lengths lie in the store now
        return [self._kept]
