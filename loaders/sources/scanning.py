"""Lengths of all rows: found once, on several threads, and remembered until a file changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loaders.sources.files import DataFile
from loaders.sources.layout import Layout
from loaders.sources.once import once, progress
from loaders.sources.scan import Reject, Scan

logger = logging.getLogger(__name__)

VERSION = 2
"""Of what is kept; older files are found again."""
WORTH_KEEPING_S = 1.0
"""A scan that took less is done again rather than kept in a file."""
SHOWN_AFTER_S = 1.0
MOST_THREADS = 8
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile)
"""What a cache that another version wrote, or that was cut short, may raise."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def cache_folder() -> Path:
    """``$EVENLOAD_CACHE``, else ``evenload`` in the user's cache folder."""
    own = os.environ.get("EVENLOAD_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenload"


def remembered(
    identity: str, files: Sequence[DataFile], scan: Callable[[], Scan], folder: Path | None
) -> Scan:
    """The scan, from the cache when no file has changed since; kept there when it took long."""
    return _kept("lengths", identity, files, scan, folder, _to_scan, _from_scan)


def remembered_layout(
    identity: str, files: Sequence[DataFile], find: Callable[[], Layout], folder: Path | None
) -> Layout:
    """The layout, from the cache when no file has changed since; kept there when it took long."""
    return _kept("layout", identity, files, find, folder, _to_layout, _from_layout)


def _kept(
    kind: str,
    identity: str,
    files: Sequence[DataFile],
    find: Callable[[], Result],
    folder: Path | None,
    load: Callable[[Mapping[str, Any], dict[str, Any]], Result],
    save: Callable[[Result], tuple[dict[str, Any], dict[str, Any]]],
) -> Result:
    """What ``find`` gives. A cache that cannot be read or written is passed over: nothing depends on it."""
    if folder is None or not files:
        return find()
    parts = "|".join([identity, *(file.path for file in files)])
    path = folder / kind / f"{hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()}.npz"

    def look() -> Result | None:
        stamps = [file.stamp() for file in files] if path.exists() else []
        with contextlib.suppress(*UNREADABLE), np.load(path) as arrays:
            told = json.loads(str(arrays["told"]))
            if told["version"] == VERSION and told["stamps"] == stamps:
                return load(arrays, told)
        return None

    def make() -> Result:
        begin = time.monotonic()
        stamps = [file.stamp() for file in files]  # as they were before, should one change meanwhile
        result = find()
        if time.monotonic() - begin >= WORTH_KEEPING_S:
            arrays, told = save(result)
            with contextlib.suppress(OSError):
                _write(path, arrays, {"version": VERSION, "stamps": stamps, **told})
                logger.info("%s kept in %s", kind, path)
        return result

    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return once(path, f"{kind} of {files[0].path}{others}", look, make)


def _from_scan(scan: Scan) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {"lengths": scan.lengths, "loss_tokens": scan.loss_tokens}
    small = {name: _smallest(values) for name, values in arrays.items() if values is not None}
    rejects = [(reject.origin, reject.reason, reject.row) for reject in scan.rejects]
    return small, {"num_null": scan.num_null, "rejects": rejects}


def _to_scan(arrays: Mapping[str, Any], told: dict[str, Any]) -> Scan:
    return Scan(
        lengths=arrays["lengths"].astype(np.int64),
        loss_tokens=arrays["loss_tokens"].astype(np.int64) if "loss_tokens" in arrays else None,
        num_null=told["num_null"],
        rejects=tuple(Reject(*one) for one in told["rejects"]),
    )


def _from_layout(layout: Layout) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {
        "first_row": layout.first_row,
        "of_file": layout.file,
        "part": layout.part,
        "size_bytes": layout.size_bytes,
        **{f"at {name}": values for name, values in layout.places.items()},
    }
    return arrays, {"broken": list(layout.broken.items())}


def _to_layout(arrays: Mapping[str, Any], told: dict[str, Any]) -> Layout:
    return Layout(
        first_row=arrays["first_row"],
        file=arrays["of_file"],
        part=arrays["part"],
        size_bytes=arrays["size_bytes"],
        places={name.removeprefix("at "): arrays[name] for name in arrays if name.startswith("at ")},
        broken=dict(told["broken"]),
    )


def _write(path: Path, arrays: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with open(handle, "wb") as file:
            np.savez(file, told=np.array(json.dumps(told)), **arrays)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def _smallest(values: Any) -> Any:
    return values.astype(np.int32) if values.size == 0 or values.max() < 2**31 else values


def on_threads(
    function: Callable[[Item], Result], items: Sequence[Item], description: str
) -> Iterator[Result]:
    """Results in the order of the items, a few ahead; a bar on a terminal when it takes longer than a second.

    Decoding and kernels leave the GIL, so that threads share the work without copies between processes.
    """
    threads = min(MOST_THREADS, os.cpu_count() or 1, len(items))
    if threads <= 1:
        yield from _shown(map(function, items), len(items), description)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from _shown(_ahead(pool, function, items, 2 * threads), len(items), description)


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item], ahead: int
) -> Iterator[Result]:
    """No more than ``ahead`` results wait, so that memory stays bounded."""
    waiting = [pool.submit(function, item) for item in items[:ahead]]
    try:
        for number in range(len(items)):
            yield waiting.pop(0).result()
            if number + ahead < len(items):
                waiting.append(pool.submit(function, items[number + ahead]))
    finally:
        for future in waiting:
            future.cancel()


def _shown(results: Iterable[Result], total: int, description: str) -> Iterator[Result]:
    results = _counted(results, total)
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    bar = bars.add_task("", total=total)
    begin, started = time.monotonic(), False
    try:
        for result in results:
            bars.advance(bar)
            if not started and time.monotonic() - begin > SHOWN_AFTER_S:
                bars.start()
                started = True
            yield result
    finally:
        if started:
            bars.stop()


def _counted(results: Iterable[Result], total: int) -> Iterator[Result]:
    for done, result in enumerate(results, start=1):
        progress(done, total)
        yield result
