"""The run: scan, plan, write, publish. Every step can be interrupted and goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from loaders.packing_job import folder, scan, window
from loaders.packing_job.accounts import by_input, total
from loaders.packing_job.atomic import read_json
from loaders.packing_job.corpus import Corpus, check_fit, read_corpus
from loaders.packing_job.inputs import Input, Task, open_inputs, stamps, tasks
from loaders.packing_job.manifest import make_manifest
from loaders.packing_job.progress import tracked
from loaders.packing_job.publish import publish
from loaders.packing_job.settings import PackSettings
from loaders.packing_job.window import WindowTask
from loaders.packing_job.windows import windows
from loaders.packing_job.workers import RunTasks, run_tasks

SUFFIX = {"parquet": ".parquet", "arrow": ".arrow", "megatron": ".part"}
LOST = ("empty", "null", "dropped", "unlabelled", "rejected")
"""Why rows are not packed, as their counts are called."""
FEW_REJECTS = 10
"""So many unusable rows are never too many."""


def run(
    settings: PackSettings,
    console: Console,
    *,
    resume: bool = False,
    overwrite: bool = False,
    runner: RunTasks = run_tasks,
) -> list[dict[str, Any]]:
    """Pack the inputs into the output folder; returns the manifest of each cap.

    ``runner`` says where the tasks of both passes run; plan and manifest are made here.

    Raises:
        FileNotFoundError, FileExistsError, ValueError, RuntimeError: with what to do about it.
    """
    if resume and (done := folder.is_finished(settings)) is not None:
        console.print(f"{settings.output}: finished before, nothing to do")
        return [_read_manifest(settings, cap) for cap in settings.max_tokens] if done else []
    inputs = open_inputs(settings)
    before = stamps(inputs)
    with (
        folder.claimed(settings, before, resume=resume, overwrite=overwrite) as work,
        unchanged(inputs, before),
    ):
        folder.remove_partial_files(work)
        first_pass = tasks(inputs, settings)
        try:
            corpus = scan_inputs(first_pass, inputs, settings, work, console, runner)
            check_corpus(corpus, first_pass, inputs, settings)
        except ValueError:
            folder.close(work)  # nothing is written yet: the next try has other settings and need not resume
            raise
        manifests = []
        for cap in settings.max_tokens:
            shards = write_shards(corpus, first_pass, inputs, settings, cap, work, console, runner)
            check_unchanged(inputs, before)
            manifest = make_manifest(corpus, settings, cap, shards, inputs)
            manifests.append(publish(manifest, corpus, settings, cap, work))
        folder.close(work)
    return manifests


@contextmanager
def unchanged(inputs: Sequence[Input], before: list[str]) -> Iterator[None]:
    """Where reading fails because a file was written again meanwhile, say so instead of what it led to."""
    try:
        yield
    except (ValueError, RuntimeError):
        check_unchanged(inputs, before)
        raise


def check_unchanged(inputs: Sequence[Input], before: list[str]) -> None:
    """Raise RuntimeError when an input is not the file it was at the start."""
    changed = sorted(set(before) - set(stamps(inputs)))
    if changed:
        name = changed[0].rsplit(":", 2)[0]
        raise RuntimeError(f"{name}: the file changed while it was being packed. Run again with --overwrite.")


def _read_manifest(settings: PackSettings, cap: int) -> dict[str, Any]:
    manifest: dict[str, Any] = read_json(folder.target_folder(settings, cap) / folder.MANIFEST)
    return manifest


def scan_inputs(
    first_pass: Sequence[Task],
    inputs: Sequence[Input],
    settings: PackSettings,
    work: Path,
    console: Console,
    runner: RunTasks = run_tasks,
) -> Corpus:
    """The first pass: tasks that an earlier run finished are left out."""
    results = work / "scan"
    left = [task for task in first_pass if not scan.result_path(results, task.number).exists()]
    size = sum(task.size_bytes for task in first_pass)
    done = size - sum(task.size_bytes for task in left)
    if left:
        amounts = runner(scan.scan, left, (inputs, settings, results), settings.workers)
        for _ in tracked(console, "reading lengths", amounts, size, "bytes", done):
            pass
    return read_corpus(first_pass, inputs, results)


def check_corpus(
    corpus: Corpus, first_pass: Sequence[Task], inputs: Sequence[Input], settings: PackSettings
) -> None:
    """Refuse what would only be found out after hours, before anything is written."""
    for source, (name, rejects) in enumerate(zip(corpus.names, corpus.rejects, strict=True)):
        rows = corpus.lengths[corpus.rows_of(source)].size
        if len(rejects) > max(FEW_REJECTS, settings.max_rejects * rows):
            first = rejects[0]
            raise ValueError(
                f"{name}: {len(rejects)} of {rows} rows cannot be used, more than "
                f"{settings.max_rejects:.1%}; the first: {first['origin']}: {first['reason'].rstrip('.')}. "
                "Mend the input, or allow more with --max-rejects."
            )
    check_fit(corpus, settings, lambda row: origin_of(corpus, row, inputs))
    for cap in settings.max_tokens:
        counts = total(by_input(corpus, settings, cap))
        if counts["kept"] == 0:
            why = ", ".join(f"{counts[name]} {name}" for name in LOST if counts.get(name))
            raise ValueError(
                f"nothing is left to pack under max_tokens {cap}: of {counts['rows']} rows, {why or 'none'} "
                "are left out. Check the path and the column, or raise --max-tokens."
            )
        if corpus.reach is not None and counts["masked"] >= counts["kept"]:
            raise ValueError(
                f"no label is left under max_tokens {cap}: all {counts['kept']} kept rows are masked. "
                "Check the label column, or train on every token with --no-labels."
            )


def origin_of(corpus: Corpus, row: int, inputs: Sequence[Input]) -> str:
    """Where a row of the corpus comes from."""
    block = int(np.searchsorted(corpus.offsets, row, side="right")) - 1
    one = inputs[int(corpus.source[block])]
    within = int(corpus.first_row[block] + row - corpus.offsets[block])
    return one.source.origin(within) if one.source is not None else f"{one.name}, row {within}"


def write_shards(
    corpus: Corpus,
    first_pass: Sequence[Task],
    inputs: Sequence[Input],
    settings: PackSettings,
    cap: int,
    work: Path,
    console: Console,
    runner: RunTasks = run_tasks,
) -> list[dict[str, Any]]:
    """The second pass: one shard a window; shards that an earlier run finished are left out."""
    if settings.format == "plan":
        return []
    todo = window_tasks(corpus, settings, cap)
    target = folder.target_folder(settings, cap)
    left = [task for task in todo if not window.is_done(work, target, task)]
    size = sum(int(task.lengths.sum(dtype=np.int64)) for task in todo)
    done = size - sum(int(task.lengths.sum(dtype=np.int64)) for task in left)
    if left:
        workers = workers_within_memory(settings, cap, masked=corpus.reach is not None, console=console)
        shared = (first_pass, inputs, settings, work)
        amounts = runner(window.write_window, left, shared, workers)
        for _ in tracked(console, f"packing into {cap}", amounts, size, "tokens", done):
            pass
    results = [read_json(window.result_file(work, cap, task.shard)) for task in todo]
    return [result for result in results if result["num_packs"]]


def window_tasks(corpus: Corpus, settings: PackSettings, cap: int) -> list[WindowTask]:
    """One task for each window, with all it needs to know of its rows."""
    found = windows(corpus, settings, cap)
    made = []
    for number, blocks in enumerate(found):
        rows = np.concatenate([np.arange(corpus.offsets[b], corpus.offsets[b + 1]) for b in blocks])
        made.append(
            WindowTask(
                number=number,
                max_tokens=cap,
                shard=f"train-{number:05d}-of-{len(found):05d}{SUFFIX[settings.format]}",
                blocks=[
                    (
                        int(corpus.task[b]),
                        int(corpus.part[b]),
                        int(corpus.source[b]),
                        int(corpus.first_row[b]),
                        int(corpus.offsets[b + 1] - corpus.offsets[b]),
                    )
                    for b in blocks
                ],
                lengths=corpus.lengths[rows],
                reach=None if corpus.reach is None else corpus.reach[rows],
                seed=settings.seed + number,
            )
        )
    return made


def workers_within_memory(settings: PackSettings, cap: int, *, masked: bool, console: Console) -> int:
    """As many workers as the memory allows: each holds a window, and some 200 MB of its own."""
    if settings.memory_bytes is None:
        return settings.workers
    each = settings.window(cap) * (12 if masked else 8) + (200 << 20)
    fitting = max(1, settings.memory_bytes // each)
    if fitting < settings.workers:
        console.print(f"{fitting} of {settings.workers} workers fit into --memory ({each >> 20} MiB each)")
    return min(settings.workers, fitting)
