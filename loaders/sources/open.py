"""`open_source`: one call for every kind of data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loaders.sources.base import Source
from loaders.sources.chunked import ChunkedSource
from loaders.sources.encode import Encoder, TokenColumns
from loaders.sources.files import DataFile, find_files, suffix_of
from loaders.sources.flat import MAX_TOKEN_ID
from loaders.sources.packed import open_packed, read_packed_manifest
from loaders.sources.scanning import cache_folder
from loaders.sources.streams import is_stream
from loaders.sources.torch_dataset import DatasetSource, Length


def open_source(
    spec: Any,
    *,
    column: str = "input_ids",
    name: str | None = None,
    labels: str | bool | None = None,
    length: Length = None,
    carry: Sequence[str] = (),
    vocab_size: int | None = None,
    on_bad: str = "error",
    cache: str | os.PathLike[str] | bool = True,
    shuffle_blocks: int | None = None,
) -> Source:
    """Open data as rows of token ids, whose lengths are known before they are read.

    Args:
        spec: a path, a pattern (``data/*.parquet``), a folder, an fsspec URL or a list of them; or a
            map-style `datasets.Dataset`; or any map-style torch ``Dataset``. A `Source` is returned as it is.
        column: the column of token ids, a list of integers.
        name: what messages call the source; by default the path or the data set's class.
        labels: the column of labels (-100 where masked) or of 0/1 marks, one a token. By default ``labels``,
            ``loss_mask``, ``completion_mask`` or ``assistant_masks`` where there is one; ``False``: none.
        length: where lengths come from when counting tokens would be slow: the name of a column of
            integers; for a torch ``Dataset`` also a function of a sample, or an array with all of them.
        carry: further columns to hand through, one value a row.
        vocab_size: ids must be below it; by default below 2^31.
        on_bad: ``"error"``: the first row that cannot be used raises, with its file and row;
            ``"skip"``: such rows have length 0 and are listed by ``rejects()``.
        cache: folder in which lengths of files are kept when finding them takes longer than a second, until
            a file changes. ``True``: ``$EVENLOAD_CACHE``, else ``evenload`` in the user's cache folder;
            ``False``: none.
        shuffle_blocks: blocks of files (row groups, blocks of lines, shards) whose rows are shuffled
            together; 0: all of them. By default all where rows are cheap one by one; else as many as the
            cache of decoded blocks holds, and at most 16 behind URLs. See docs/sources.md.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: unknown or mixed formats; files cut short (found here, from their footers).
        TypeError: not something that holds rows by number; of a stream it says what to do instead.
    """
    if isinstance(spec, Source):
        return spec
    _check_options(column, labels, carry, vocab_size, cache, shuffle_blocks)
    limit = MAX_TOKEN_ID if vocab_size is None else min(vocab_size, MAX_TOKEN_ID)
    encoder = TokenColumns(column=column, labels=labels, carry=tuple(carry))
    if _is_paths(spec):
        if not (length is None or isinstance(length, str)):
            raise TypeError(f"files take length= as the name of a column, not {type(length).__name__}")
        manifest = read_packed_manifest(spec)
        if manifest is not None:
            return open_packed(os.fspath(spec), manifest, name or _name_of(spec), on_bad=on_bad)
        files = find_files(spec)
        folder = None if cache is False else cache_folder() if cache is True else Path(cache)
        return open_files(
            files,
            encoder,
            name or _name_of(spec),
            length,
            limit,
            on_bad,
            skip_files=on_bad == "skip",
            cache=folder,
            shuffle_blocks=shuffle_blocks,
        )
    if shuffle_blocks is not None:
        raise ValueError(f"shuffle_blocks only has an effect on files, not on {type(spec).__name__}")
    if _is_plain_hugging_face(spec) and (length is None or isinstance(length, str)):
        from loaders.sources.huggingface import HuggingFaceSource

        title = name or f"datasets.Dataset of {len(spec)} rows"
        return HuggingFaceSource(
            spec, encoder=encoder, name=title, length=length, max_token_id=limit, on_bad=on_bad
        )
    if is_stream(spec):
        raise TypeError(
            f"a source needs rows by number, and {type(spec).__name__} is a stream, whose samples only come "
            "one after another. Pass it to DataLoader as it is, which packs and balances a window of it; or "
            "open its files, whose rows can be shuffled, mixed and resumed without reading them again."
        )
    if not (hasattr(spec, "__getitem__") and hasattr(spec, "__len__")):
        raise TypeError(
            f"a source needs rows by number: paths, a datasets.Dataset or a map-style Dataset with "
            f"__getitem__ and __len__; it is {type(spec).__name__}"
        )
    return DatasetSource(
        spec,
        column=column,
        labels=labels,
        carry=carry,
        name=name or type(spec).__name__,
        length=length,
        max_token_id=limit,
        on_bad=on_bad,
    )


def _check_options(
    column: Any, labels: Any, carry: Any, vocab_size: Any, cache: Any, shuffle_blocks: Any
) -> None:
    """Refuse what no source could use, before a file is opened."""
    if not isinstance(column, str) or not column:
        raise ValueError(f"column must name the column of token ids, got {column!r}.")
    if not (labels is None or labels is False or (isinstance(labels, str) and labels)):
        raise ValueError(
            f"labels must name a column, or be None to find it by its name or False for none, got {labels!r}."
        )
    if isinstance(carry, str) or not isinstance(carry, Iterable) or not all(map(_is_name, carry)):
        raise ValueError(f"carry must be a list of names of columns, got {carry!r}.")
    if vocab_size is not None and not (_is_whole(vocab_size) and vocab_size >= 1):
        raise ValueError(f"vocab_size must be a whole number of at least 1, got {vocab_size!r}.")
    if not isinstance(cache, bool | str | os.PathLike):
        raise ValueError(
            f"cache must be a folder, or True for the usual one or False for none, got {cache!r}."
        )
    if shuffle_blocks is not None and not (_is_whole(shuffle_blocks) and shuffle_blocks >= 0):
        raise ValueError(
            f"shuffle_blocks must be a whole number of blocks, 0 for all, got {shuffle_blocks!r}"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def open_files(
    files: Sequence[DataFile],
    encoder: Encoder,
    name: str,
    length: str | None = None,
    max_token_id: int = MAX_TOKEN_ID,
    on_bad: str = "error",
    *,
    skip_files: bool = False,
    cache: Path | None = None,
    shuffle_blocks: int | None = None,
) -> ChunkedSource:
    """The source for files of one format, by their suffix.

    ``skip_files`` leaves damaged files out instead of raising; ``cache`` is the folder for what is found of
    the files. The other arguments are those of `open_source`.
    """
    suffixes = sorted({suffix_of(file.path) for file in files})
    if len(suffixes) > 1:
        raise ValueError(
            f"{name}: files of one source must be of one format, there are {', '.join(suffixes)}"
        )
    source = _kind(suffixes[0], name)(
        files, encoder=encoder, name=name, length=length, max_token_id=max_token_id, on_bad=on_bad
    )
    source.skip_files, source.cache_folder, source.shuffle_blocks = skip_files, cache, shuffle_blocks
    source.check()
    return source


def _kind(suffix: str, name: str) -> type[ChunkedSource]:
    """What reads files of a suffix; each is imported when it is needed."""
    if suffix == ".parquet":
        from loaders.sources.parquet import ParquetSource

        return ParquetSource
    if suffix in (".jsonl", ".ndjson", ".json"):
        from loaders.sources.jsonl import JsonLinesSource

        return JsonLinesSource
    if suffix in (".arrow", ".feather"):
        from loaders.sources.arrow import ArrowSource

        return ArrowSource
    if suffix == ".tar":
        from loaders.sources.webdataset import WebDatasetSource

        return WebDatasetSource
    if suffix in (".idx", ".bin"):
        from loaders.sources.megatron import MegatronSource

        return MegatronSource
    if suffix == ".mds":
        from loaders.sources.mosaic import MosaicSource

        return MosaicSource
    way_out = ""
    if suffix in (".yaml", ".yml"):
        way_out = ". A mixture's file goes to Mixture.from_yaml or evenload inspect"
    raise ValueError(
        f"{name}: unknown format {suffix or '(none)'!r}; "
        f"known: .parquet, .arrow, .jsonl (.gz, .zst), .tar, .idx, .mds{way_out}"
    )


def _is_paths(spec: Any) -> bool:
    if isinstance(spec, str | os.PathLike):
        return True
    return (
        isinstance(spec, list | tuple)
        and len(spec) > 0
        and all(isinstance(one, str | os.PathLike) for one in spec)
    )


def _name_of(spec: Any) -> str:
    return os.fspath(spec) if isinstance(spec, str | os.PathLike) else ", ".join(map(os.fspath, spec))


def _is_plain_hugging_face(spec: Any) -> bool:
    """A `datasets.Dataset` whose rows are what its table holds: a transform makes its own samples."""
    from_datasets = type(spec).__module__.startswith("datasets.") and type(spec).__name__ == "Dataset"
    return from_datasets and spec.format["type"] != "custom"
