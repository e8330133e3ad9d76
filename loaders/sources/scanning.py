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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loaders.sources.files import DataFile
from loaders.sources.scan import Reject, Scan

logger = logging.getLogger(__name__)

WORTH_KEEPING_S = 1.0
"""A scan that took less is done again rather than kept in a file."""
SHOWN_AFTER_S = 1.0
MOST_THREADS = 8
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
    """The scan, from the cache when no file has changed since; kept there when it took long.

    A cache that cannot be read or written is passed over: it saves time, and nothing depends on it.
    """
    if folder is None or not files:
        return scan()
    name = hashlib.blake2b(
        "|".join([identity, *(file.path for file in files)]).encode(), digest_size=16
    ).hexdigest()
    path = folder / "lengths" / f"{name}.npz"
    stamps = [file.stamp() for file in files]
    with contextlib.suppress(OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        found = _load(path, stamps)
        if found is not None:
            return found
    begin = time.monotonic()
    result = scan()
    if time.monotonic() - begin >= WORTH_KEEPING_S:
        with contextlib.suppress(OSError):
            _save(path, stamps, result)
            logger.info("lengths are kept in %s", path)
    return result


def _load(path: Path, stamps: list[str]) -> Scan | None:
    with np.load(path) as file:
        told = json.loads(str(file["told"]))
        if told["stamps"] != stamps:
            return None
        return Scan(
            lengths=file["lengths"].astype(np.int64),
            loss_tokens=file["loss_tokens"].astype(np.int64) if "loss_tokens" in file else None,
            num_null=told["num_null"],
            rejects=tuple(Reject(*pair) for pair in told["rejects"]),
        )


def _save(path: Path, stamps: list[str], scan: Scan) -> None:
    told = {
        "stamps": stamps,
        "num_null": scan.num_null,
        "rejects": [(reject.origin, reject.reason) for reject in scan.rejects],
    }
    arrays = {"lengths": scan.lengths, "loss_tokens": scan.loss_tokens}
    small = {name: _smallest(values) for name, values in arrays.items() if values is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with open(handle, "wb") as file:
            np.savez(file, told=np.array(json.dumps(told)), **small)
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
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    bar = progress.add_task("", total=total)
    begin, started = time.monotonic(), False
    try:
        for result in results:
            progress.advance(bar)
            if not started and time.monotonic() - begin > SHOWN_AFTER_S:
                progress.start()
                started = True
            yield result
    finally:
        if started:
            progress.stop()
