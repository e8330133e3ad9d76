"""From what a user passes as ``dataset`` to an order over catalogs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loaders.batches.borders import Bordered
from loaders.catalog import Catalog, open_catalog
from loaders.mixture import Mixture
from loaders.order.blocks import block_shuffles
from loaders.order.permutation import SampleOrder, SourceOrder, derive
from loaders.sources.base import Source


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Opened:
    """What a balanced loader reads, and in which order."""

    catalogs: Sequence[Catalog]
    order: SampleOrder
    names: Sequence[str]
    """Of the sources, for metrics and messages."""
    identity: dict[str, Any]
    """What a saved state must agree with, each entry with a value that a message can show."""
    radius: Mapping[str, int]
    """Rows that are shuffled together, of sources that are not shuffled as a whole."""


def open_order(
    dataset: Any,
    *,
    length: Any,
    capacity: int,
    oversize: str,
    shuffle: bool,
    seed: int,
    samples_per_step: int | None,
    on_bad: str = "error",
    borders: Mapping[str, Any] | None = None,
) -> Opened:
    """Look the data's lengths up and lay the order over what is usable.

    borders: arguments of `Bordered` for every source; ``None``: samples are as they are.

    Raises:
        ValueError: nothing is left to give out, or a sample is too long under ``oversize="error"``.
    """
    mixture = dataset if isinstance(dataset, Mixture) else None
    if mixture is not None and length is not None:
        raise ValueError("length has no effect on a Mixture: pass it to open_source for each source.")
    leaves = [] if mixture is None else mixture.leaves()
    sources = [as_source(dataset, length, on_bad)] if mixture is None else [leaf.source for leaf in leaves]
    if borders is not None:
        sources = [Bordered(source, **borders) for source in sources]
    catalogs = [open_catalog(source, capacity=capacity, oversize=oversize) for source in sources]
    _check_something_left(catalogs)
    identity = {
        "data": [source.fingerprint() for source in sources],
        "usable rows": [len(catalog) for catalog in catalogs],
        "order": f"shuffled with seed {seed}" if shuffle else "row order",
    }
    shuffles = block_shuffles(catalogs) if shuffle else [None] * len(catalogs)
    if any(shuffles):
        identity["blocks shuffled together"] = [one.together if one else "all" for one in shuffles]
    if mixture is None:
        order: SampleOrder = SourceOrder(len(catalogs[0]), shuffle=shuffle, seed=seed, within=shuffles[0])
        names = [sources[0].name]
    else:
        order = mixture.order(
            catalogs, shuffle=shuffle, seed=seed, samples_per_step=samples_per_step, shuffles=shuffles
        )
        names = [leaf.name for leaf in leaves]
        identity["mixture"] = mixture.describe(samples_per_step)
    radius = {name: one.radius for name, one in zip(names, shuffles, strict=True) if one}
    return Opened(catalogs=catalogs, order=order, names=names, identity=_shortened(identity), radius=radius)


def _shortened(identity: dict[str, Any]) -> dict[str, Any]:
    """Many sources would make the state grow; above a few, lists are kept as their digest."""
    return {
        name: f"{len(value)} sources, {derive(str(value)):016x}"
        if isinstance(value, list) and len(value) > 8
        else value
        for name, value in identity.items()
    }


def as_source(dataset: Any, length: Any = None, on_bad: str = "error") -> Source:
    """A `Source` as it is; anything else through `open_source`."""
    if isinstance(dataset, Source):
        if length is not None:
            raise ValueError(f"length={length!r} has no effect on an opened source: pass it to open_source.")
        return dataset
    from loaders.sources import open_source

    return open_source(dataset, length=length, on_bad=on_bad)


def _check_something_left(catalogs: Sequence[Catalog]) -> None:
    if any(len(catalog) for catalog in catalogs):
        return
    rows = sum(catalog.lengths.size for catalog in catalogs)
    empty = sum(catalog.counts["empty"] for catalog in catalogs)
    dropped = sum(catalog.counts["dropped"] for catalog in catalogs)
    unlabelled = sum(catalog.counts.get("unlabelled", 0) for catalog in catalogs)
    names = ", ".join(catalog.source.name for catalog in catalogs)
    raise ValueError(
        f"there is no sample to give out: of {rows} rows in {names}, {empty} are empty and {dropped} are "
        f"dropped for their length{_without_labels(unlabelled)}. Check the path and the token column, or "
        "raise max_tokens."
    )


def _without_labels(count: int) -> str:
    return f", and truncation leaves {count} without a label" if count else ""
