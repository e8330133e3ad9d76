"""``evenload pack``: any data in, packs of at most ``--max-tokens`` tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from loaders.cli.outputs import check_output

ENGINES = ("local", "ray")
INPUTS = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, patterns, folders or fsspec URLs: parquet, arrow, jsonl (.gz, .zst), tar, MDS, a "
        "save_to_disk folder, Megatron .idx. Each is a source of its own in the counts.",
    ),
]


def pack_command(
    inputs: INPUTS,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write.")] = None,
    max_tokens: Annotated[
        str | None, typer.Option(help="Tokens of a pack; several values, as 2048,8192, make a folder each.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="best_fit, first_fit, next_fit (keeps order), ...")
    ] = "best_fit",
    oversize: Annotated[
        str, typer.Option(help="Samples above max_tokens: error, drop, truncate, truncate_left or split.")
    ] = "error",
    column: Annotated[str, typer.Option(help="Column of token ids.")] = "input_ids",
    labels: Annotated[
        str | None, typer.Option(help="Column of labels or 0/1 marks; found by name when there is one.")
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Train on every token.")] = False,
    carry: Annotated[list[str] | None, typer.Option(help="Further column to carry along; repeat it.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="tokenizer.json, or a folder with it: rows are text, prompt + completion or messages."
        ),
    ] = None,
    text_column: Annotated[str, typer.Option(help="Column of text.")] = "text",
    prompt_column: Annotated[str, typer.Option(help="Column of prompts, masked in the labels.")] = "prompt",
    completion_column: Annotated[str, typer.Option(help="Column of completions.")] = "completion",
    messages_column: Annotated[str, typer.Option(help="Column of chat messages.")] = "messages",
    chat_template: Annotated[
        str | None, typer.Option(help="Jinja file, when the tokenizer has none.")
    ] = None,
    eos: Annotated[
        str | None, typer.Option(help="Token that ends a sample; default: the tokenizer's own.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Refuse ids from here on.")] = None,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Most samples of a pack.")] = None,
    align: Annotated[int, typer.Option(min=1, help="Pad each sample to a multiple, for CP or fp8.")] = 1,
    pad_id: Annotated[int, typer.Option(min=0, help="Id of that padding.")] = 0,
    position_start: Annotated[int, typer.Option(min=0, help="First position of a sample.")] = 0,
    columns: Annotated[
        str | None, typer.Option(help="Columns to write, comma-separated; '+name' adds to the default ones.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="parquet, arrow or megatron.")] = "parquet",
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Write row numbers only, no tokens.")
    ] = False,
    compression: Annotated[str, typer.Option(help="Of parquet: zstd, snappy, lz4 or none.")] = "zstd",
    seed: Annotated[int, typer.Option(min=0, help="Of the order of packs.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, or tasks at a time on a cluster; default: one for each CPU."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Where the work runs: local, or ray for the nodes of a cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; default: RAY_ADDRESS, else this machine.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Most memory, as 2GiB; limits the workers.")] = None,
    window_tokens: Annotated[str, typer.Option(help="Tokens packed together into one shard.")] = "16Mi",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be used.")
    ] = False,
    max_rejects: Annotated[float, typer.Option(help="Share of unusable rows to put up with.")] = 0.05,
    keep_unlabelled: Annotated[
        bool, typer.Option("--keep-unlabelled", help="Keep samples whose labels truncation cuts off.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell packs and fill of every strategy, write nothing.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Also write the HTML report here.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Validate INPUT, the output of an earlier run.")
    ] = False,
    preview: Annotated[
        int, typer.Option(min=0, help="Show so many packs of INPUT, the output of an earlier run.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
) -> None:
    """Pack samples of any length into rows of at most MAX_TOKENS tokens."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet, soft_wrap=True)
    if check or preview:
        _inspect(inputs, check=check, preview=preview, tokenizer=tokenizer)
        return
    if max_tokens is None or (output is None and not dry_run):
        missing = "--max-tokens" if max_tokens is None else "-o OUTPUT"
        raise typer.BadParameter(f"{missing} is needed")
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with a run, --overwrite starts it again: choose one")
    if labels is not None and no_labels:
        raise typer.BadParameter("--labels and --no-labels exclude each other")
    _check_engine(engine, address, memory=memory, dry=dry_run)
    check_output(report, "--report")
    from loaders.cli.numbers import parse_amount, parse_list
    from loaders.packing_job.settings import PackSettings, TextSettings, chosen_columns

    settings = PackSettings(
        inputs=tuple(inputs),
        output=str(output or ""),
        max_tokens=parse_list(max_tokens, "--max-tokens"),
        strategy=strategy,
        oversize=oversize,
        max_samples=max_samples,
        align=align,
        seed=seed,
        format="plan" if plan_only else format_,
        compression=compression,
        columns=chosen_columns(columns),
        position_start=position_start,
        pad_id=pad_id,
        column=column,
        labels=False if no_labels else labels,
        carry=tuple(carry or ()),
        vocab_size=vocab_size,
        text=TextSettings(
            tokenizer=tokenizer,
            text=text_column,
            prompt=prompt_column,
            completion=completion_column,
            messages=messages_column,
            chat_template=chat_template,
            eos=eos,
        ),
        keep_unlabelled=keep_unlabelled,
        strict=strict,
        max_rejects=max_rejects,
        window_tokens=parse_amount(window_tokens, "--window-tokens"),
        workers=workers or _all_cpus(),
        memory_bytes=None if memory is None else parse_amount(memory, "--memory"),
    )
    if dry_run:
        _dry_run(settings, console)
        return
    with _task_runner(settings, engine, address, workers) as runner:
        _run(settings, console, runner, resume=resume, overwrite=overwrite, report=report)


def _check_engine(engine: str, address: str | None, *, memory: str | None, dry: bool) -> None:
    """Refuse an option that would have no effect."""
    if engine not in ENGINES:
        from packing.checks import nearest

        known = " or ".join(ENGINES)
        raise typer.BadParameter(f"--engine must be {known}, got {engine!r}.{nearest(engine, ENGINES)}")
    if address is not None and engine != "ray":
        raise typer.BadParameter("--address is of a Ray cluster: it needs --engine ray")
    if engine == "ray" and memory is not None:
        raise typer.BadParameter(
            "--memory is of this machine; on a cluster, limit the tasks with --workers or --window-tokens"
        )
    if engine == "ray" and dry:
        raise typer.BadParameter("--dry-run writes nothing that nodes could share: leave --engine out")


@contextmanager
def _task_runner(settings: Any, engine: str, address: str | None, workers: int | None) -> Iterator[Any]:
    if engine == "local":
        from loaders.packing_job.workers import run_tasks

        yield run_tasks
        return
    try:
        from loaders.ray_engine.packing import task_runner
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ImportError("--engine ray needs Ray: pip install 'evenload[ray]'") from None
    with task_runner(Path(settings.output), address, most=workers) as runner:
        yield runner


def _all_cpus() -> int:
    from loaders.packing_job.workers import available_cpus

    return available_cpus()


def _dry_run(settings: Any, console: Any) -> None:
    from loaders.packing_job.dry_run import dry_run
    from loaders.packing_job.summary import print_summary

    for found in dry_run(settings, console):
        print_summary(console, found, settings.output)


def _run(
    settings: Any, console: Any, runner: Any, *, resume: bool, overwrite: bool, report: Path | None
) -> None:
    from loaders.packing_job.folder import target_folder
    from loaders.packing_job.job import run
    from loaders.packing_job.summary import print_summary

    for manifest in run(settings, console, resume=resume, overwrite=overwrite, runner=runner):
        place = target_folder(settings, manifest["max_tokens"])
        print_summary(console, manifest, str(place))
        console.print(f"written to {place}, report in {place / 'report.html'}", highlight=False)
        if report is not None:
            from loaders.packing_job.report import write_report

            many = len(settings.max_tokens) > 1
            name = f"{report.stem}-{manifest['max_tokens']}{report.suffix}" if many else report.name
            write_report(report.with_name(name), manifest)


def _inspect(folders: list[str], *, check: bool, preview: int, tokenizer: str | None) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True)
    for folder in folders:
        if check:
            from loaders.packing_job.check import check_folder

            for line in check_folder(Path(folder)):
                console.print(line, highlight=False)
        if preview:
            from loaders.packing_job.preview import preview_folder

            preview_folder(Path(folder), preview, tokenizer, console)
