"""The edges: sources, order, decode, collate, `DataLoader`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaders.batches.batch import Batch
    from loaders.loader import DataLoader
    from loaders.mixture import Mixture
    from loaders.sources import open_source
    from loaders.sources.multimodal import MultimodalSource

__all__ = ["Batch", "DataLoader", "Mixture", "MultimodalSource", "open_source"]

_HOMES = {
    "Batch": "loaders.batches.batch",
    "DataLoader": "loaders.loader",
    "Mixture": "loaders.mixture",
    "MultimodalSource": "loaders.sources.multimodal",
    "open_source": "loaders.sources",
}


def __getattr__(name: str) -> Any:
    """Load a name's module when it is first asked for: reading files needs no torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'loaders' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
