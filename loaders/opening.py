"""From what a user passes as ``dataset`` to an order over catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loaders.catalog import Catalog, open_catalog
from loaders.order import SampleOrder, SourceOrder
from loaders.sources.base import Source


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Opened:
    """What a balanced loader reads, and in which order."""

    catalogs: Sequence[Catalog]
    order: SampleOrder
    identity: dict[str, Any]
    """What a saved state must agree with, each entry with a value that a message can show."""


def open_order(
    dataset: Any, *, length: Any, capacity: int, oversize: str, shuffle: bool, seed: int
) -> Opened:
    """Look the data's lengths up and lay the order over what is usable.

    Raises:
        ValueError: nothing is left to give out, or a sample is too long under ``oversize="error"``.
    """
    source = as_source(dataset, length)
    catalog = open_catalog(source, capacity=capacity, oversize=oversize)
    _check_something_left([catalog])
    identity = {
        "data": source.fingerprint(),
        "usable rows": len(catalog),
        "order": f"shuffled with seed {seed}" if shuffle else "row order",
    }
    return Opened(
        catalogs=[catalog],
        order=SourceOrder(len(catalog), shuffle=shuffle, seed=seed),
        identity=identity,
    )


def as_source(dataset: Any, length: Any = None) -> Source:
    """A `Source` as it is; anything else through `open_source`."""
    if isinstance(dataset, Source):
        if length is not None:
            raise ValueError(f"length={length!r} has no effect on an opened source: pass it to open_source.")
        return dataset
    from loaders.sources import open_source

    return open_source(dataset, length=length)


def _check_something_left(catalogs: Sequence[Catalog]) -> None:
    if any(len(catalog) for catalog in catalogs):
        return
    rows = sum(catalog.lengths.size for catalog in catalogs)
    empty = sum(catalog.counts["empty"] for catalog in catalogs)
    dropped = sum(catalog.counts["dropped"] for catalog in catalogs)
    names = ", ".join(catalog.source.name for catalog in catalogs)
    raise ValueError(
        f"there is no sample to give out: of {rows} rows in {names}, {empty} are empty and {dropped} are "
        "dropped for their length. Check the path and the token column, or raise max_tokens."
    )
