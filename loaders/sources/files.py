"""Files behind a source: patterns, URLs, identity."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

logger = logging.getLogger(__name__)

EDGE_BYTES = 1 << 16
FORWARD_BYTES = 8 << 20
"""Read ahead of a remote file that is read from its beginning to its end."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file, local or behind an fsspec URL."""

    path: str
    size_bytes: int
    modified_ns: int = 0
    """When it or its entry was last changed, where that is known."""

    @classmethod
    def at(cls, path: str) -> DataFile:
        """A local file as it is now."""
        status = os.stat(path)
        return cls(path, status.st_size, status.st_ctime_ns)

    @property
    def is_local(self) -> bool:
        """Whether it can be memory-mapped."""
        return "://" not in self.path

    @property
    def is_compressed(self) -> bool:
        """Whether its bytes must be unpacked from the start, so that no part can be read alone."""
        return self.path.split("?", 1)[0].lower().endswith(COMPRESSIONS)

    def open(self, *, forward: bool = False) -> BinaryIO:
        """A seekable binary file, closed by the caller.

        Behind a URL exactly the bytes that are asked for are fetched, or, where it is read ``forward`` in
        small pieces, a few megabytes at a time.
        """
        if self.is_local:
            return open(self.path, "rb")
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(self.path)
        kind = {"cache_type": "readahead", "block_size": FORWARD_BYTES} if forward else {"cache_type": "none"}
        return cast(BinaryIO, filesystem.open(path, "rb", **kind))

    def open_unpacked(self) -> BinaryIO:
        """Its content from the start, unpacked by its suffix; only forward, closed by the caller."""
        if not self.is_compressed:
            return self.open(forward=True)
        if self.path.lower().endswith(".gz"):
            import gzip

            return cast(BinaryIO, gzip.GzipFile(fileobj=self.open(forward=True)))
        try:
            import zstandard
        except ImportError:
            raise ImportError(
                f"{self.path}: reading .zst needs zstandard (pip install evenload[tokenize])"
            ) from None
        return cast(
            BinaryIO,
            zstandard.ZstdDecompressor().stream_reader(self.open(forward=True), read_across_frames=True),
        )

    def digest(self) -> str:
        """Size and content of both ends: the same wherever the file lies, cheap whatever its size.

        Parquet and Arrow keep their counts and offsets in the footer, so that changed content shows there.
        """
        digest = hashlib.blake2b(str(self.size_bytes).encode(), digest_size=8)
        with self.open() as file:
            digest.update(file.read(EDGE_BYTES))
            if self.size_bytes > EDGE_BYTES:
                file.seek(max(EDGE_BYTES, self.size_bytes - EDGE_BYTES))
                digest.update(file.read(EDGE_BYTES))
        return digest.hexdigest()

    def stamp(self) -> str:
        """Changes when the file is written again; cheaper and stricter than `digest`, bound to this place.

        The time of the last change of its entry is part of it, since tools may set that of its content back.
        """
        if self.is_local:
            status = os.stat(self.path)
            return f"{status.st_size}:{status.st_mtime_ns}.{status.st_ctime_ns}"
        return self.digest()


def find_files(spec: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[DataFile]:
    """The files that paths, patterns, folders or fsspec URLs name, each list sorted, in the order given.

    Raises:
        FileNotFoundError: a path does not exist, or a pattern matches nothing.
    """
    specs = [spec] if isinstance(spec, str | os.PathLike) else list(spec)
    if any(not os.fspath(one) for one in specs):
        raise FileNotFoundError("an input's path is empty: give a path, pattern or URL")
    files = [file for one in specs for file in _expand(os.fspath(one))]
    warn_of_repeats([file.path for file in files])
    if not files:
        raise FileNotFoundError("no input files: give at least one path, pattern or URL")
    return files


def warn_of_repeats(paths: Sequence[str]) -> None:
    """A file that is named twice is read twice, which is seldom what was meant."""
    counts = Counter(paths)
    repeated = [path for path, count in counts.items() if count > 1]
    if repeated:
        logger.warning(
            "%s is named %d times%s: its rows are there as often.",
            repeated[0],
            counts[repeated[0]],
            f", and {len(repeated) - 1} more files several times" if len(repeated) > 1 else "",
        )


def _expand(spec: str) -> list[DataFile]:
    if "://" in spec:
        return _expand_url(spec)
    if os.path.isfile(spec):
        shards = _listed_shards(spec) if os.path.basename(spec) == "index.json" else []
        return shards or [DataFile.at(spec)]
    if os.path.isfile(os.path.join(spec, "state.json")):
        return _saved_dataset(spec)
    if os.path.isfile(os.path.join(spec, "dataset_dict.json")):
        return _saved_dataset(_only_split(spec))
    if os.path.isfile(os.path.join(spec, "index.json")):
        shards = _listed_shards(os.path.join(spec, "index.json"))
        if shards:
            return shards
    if os.path.isdir(spec):
        inside = sorted(glob.glob(os.path.join(glob.escape(spec), "**", "*"), recursive=True))
        paths = [path for path in inside if os.path.isfile(path) and is_data_file(path)]
        if not paths:
            raise FileNotFoundError(f"{spec}: the folder holds no data files ({', '.join(DATA_SUFFIXES)})")
    else:
        paths = sorted(path for path in glob.glob(spec, recursive=True) if os.path.isfile(path))
        if not paths:
            kind = "matches no file" if glob.has_magic(spec) else "no such file or folder"
            raise FileNotFoundError(f"{spec}: {kind} (looked in {os.getcwd()})")
    return [DataFile.at(path) for path in paths]


def _listed_shards(index: str) -> list[DataFile]:
    """Shards that an ``index.json`` of MosaicML's format lists, in its order; none where it is another file.

    Of a shard that is there both plain and compressed the plain file is taken.

    Raises:
        FileNotFoundError: a shard that is listed is not there.
        ValueError: shards of a format other than MDS.
    """
    with DataFile(index, 0).open() as file:
        try:
            shards = json.loads(file.read())["shards"]
        except (ValueError, KeyError, TypeError):
            return []
    folder = index.rpartition("/")[0]
    found = []
    for number, shard in enumerate(shards):
        for name in (sides := _sides(shard, f"{index}, shard {number}")):
            with contextlib.suppress(FileNotFoundError):
                found += _expand(f"{folder}/{name}" if folder else name)
                break
        else:
            raise FileNotFoundError(f"{index} lists {' or '.join(sides)}, which is not there")
    return found


def _sides(shard: Any, where: str) -> list[str]:
    """Names of a shard's file, plain and compressed."""
    kind = shard.get("format") if isinstance(shard, Mapping) else None
    if kind != "mds":
        raise ValueError(f"{where}: shards of format {kind!r} are not known; MDS ones are")
    try:
        return [side["basename"] for side in (shard["raw_data"], shard.get("zip_data")) if side]
    except (KeyError, TypeError):
        raise ValueError(
            f"{where} names no file (raw_data and its basename). Write the index again."
        ) from None


def _listed(folder: str, name: str, key: str) -> list[Any]:
    """A list in a file of a folder that ``save_to_disk`` wrote."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            found: list[Any] = list(json.load(file)[key])
            return found
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: not what datasets' save_to_disk writes, without a list {key!r} ({error}). Save the "
            "data set again, or name its data files."
        ) from None


def _saved_dataset(folder: str) -> list[DataFile]:
    """Files of a data set that `datasets` saved with ``save_to_disk``, in its order."""
    names = [one["filename"] for one in _listed(folder, "state.json", "_data_files")]
    return [file for name in names for file in _expand(os.path.join(folder, name))]


def _only_split(folder: str) -> str:
    splits = _listed(folder, "dataset_dict.json", "splits")
    if len(splits) != 1:
        raise ValueError(
            f"{folder} holds several splits; name one: {', '.join(f'{folder}/{one}' for one in splits)}"
        )
    return os.path.join(folder, splits[0])


def _expand_url(spec: str) -> list[DataFile]:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(spec)
    if spec.endswith("/index.json"):
        shards = _listed_shards(spec)
        if shards:
            return shards
    if not glob.has_magic(path) and not suffix_of(path):
        spec, path = spec.rstrip("/") + "/*", path.rstrip("/") + "/*"
    if glob.has_magic(path):
        paths = sorted(str(found) for found in filesystem.glob(path) if suffix_of(str(found)))
        urls = [found if "://" in found else filesystem.unstrip_protocol(found) for found in paths]
    else:
        urls = [spec]
    files = []
    for url in urls:
        try:
            info: dict[str, Any] = filesystem.info(url)
        except FileNotFoundError:
            raise FileNotFoundError(f"{url}: no such file") from None
        if info.get("size") is None:
            raise ValueError(
                f"{url}: the server does not tell the file's size, so it cannot be read in parts"
            )
        files.append(DataFile(url, int(info["size"])))
    if not files:
        raise FileNotFoundError(f"{spec}: matches no file")
    return files


DATA_SUFFIXES = (".parquet", ".arrow", ".feather", ".jsonl", ".json", ".ndjson", ".tar", ".idx", ".mds")
COMPRESSIONS = (".gz", ".zst", ".zstd")


def suffix_of(path: str) -> str:
    """The format's suffix, without compression: ``.jsonl`` for ``a.jsonl.gz``."""
    name = path.split("?", 1)[0].lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return os.path.splitext(name)[1]


def is_data_file(path: str) -> bool:
    """Whether a file found in a folder is data: by suffix, hidden files and half-written ones left out."""
    return not os.path.basename(path).startswith((".", "_")) and suffix_of(path) in DATA_SUFFIXES
