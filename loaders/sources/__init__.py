"""Where rows come from: files, folders, URLs and data sets, behind one `Source`."""

from loaders.sources.base import Rows, Source
from loaders.sources.open import open_source

__all__ = ["Rows", "Source", "open_source"]
