"""The inputs of a run, and how their rows are cut into blocks that one task can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaders.packing_job.settings import PackSettings
from loaders.sources.arrow import ArrowSource
from loaders.sources.chunked import ChunkedSource
from loaders.sources.encode import Encoder, TokenColumns
from loaders.sources.files import DataFile, find_files, suffix_of, warn_of_repeats
from loaders.sources.flat import MAX_TOKEN_ID
from loaders.sources.open import open_files
from loaders.sources.packed import open_packed, read_packed_manifest

LINE_SUFFIXES = (".jsonl", ".ndjson", ".json")
TASK_BYTES = 64 << 20
"""Input of one task: some seconds of tokenising, some hundredths of decoding."""


@dataclass(frozen=True, slots=True)
class Input:
    """One INPUT argument: a source of its own in counts and origins."""

    name: str
    files: tuple[DataFile, ...]
    source: ChunkedSource | None
    """None for lines, which are read in ranges of bytes."""
    encoder: Encoder
    max_token_id: int


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Scan chunks ``first .. last - 1`` of an input; tokens go to a scratch file when that is quicker."""

    number: int
    source: int
    first: int
    last: int
    scratch: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LinesTask:
    """Turn the lines that begin within ``start .. stop - 1`` of a file into tokens in a scratch file."""

    number: int
    source: int
    file: int
    start: int
    stop: int
    size_bytes: int


Task = ChunkTask | LinesTask


def open_inputs(settings: PackSettings) -> list[Input]:
    """Find the files and check that they can be opened. Raises FileNotFoundError and ValueError."""
    warn_of_repeats(settings.inputs)
    encoder = make_encoder(settings)
    limit = MAX_TOKEN_ID if settings.vocab_size is None else settings.vocab_size
    inputs = []
    for name in settings.inputs:
        on_bad = "error" if settings.strict else "skip"
        manifest = read_packed_manifest(name)
        if manifest is not None:
            packed = open_packed(name, manifest, name, on_bad=on_bad, max_token_id=limit)
            if not isinstance(packed, ChunkedSource):
                raise ValueError(
                    f"{name} is a plan, which holds no tokens: pack the inputs that it was made for"
                )
            inputs.append(Input(name, tuple(packed.files), packed, packed.encoder, limit))
            continue
        files = find_files(name)
        source = None
        if suffix_of(files[0].path) not in LINE_SUFFIXES:
            opened = open_files(files, encoder, name, max_token_id=limit, on_bad=on_bad)
            assert isinstance(opened, ChunkedSource)
            if isinstance(opened, ArrowSource):
                opened.chunk_bytes = TASK_BYTES // 4
            source = opened
        inputs.append(Input(name, tuple(files), source, encoder, limit))
    return inputs


def make_encoder(settings: PackSettings) -> Encoder:
    """How rows become tokens."""
    if settings.text.tokenizer is None:
        return TokenColumns(column=settings.column, labels=settings.labels, carry=settings.carry)
    from loaders.sources.text import TextRows

    text = settings.text
    return TextRows.from_files(
        text.tokenizer or "",
        text=text.text,
        prompt=text.prompt,
        completion=text.completion,
        messages=text.messages,
        chat_template=text.chat_template,
        eos=text.eos,
        carry=settings.carry,
    )


def tasks(inputs: Sequence[Input], settings: PackSettings) -> list[Task]:
    """The first pass, cut into tasks; the same for any number of workers."""
    found: list[Task] = []
    for number, one in enumerate(inputs):
        if one.source is None:
            for file, start, stop in _line_ranges(one):
                found.append(LinesTask(len(found), number, file, start, stop, stop - start))
        else:
            scratch = settings.text.tokenizer is not None
            for first, last, size in _chunk_ranges(one.source):
                found.append(ChunkTask(len(found), number, first, last, scratch, size))
    return found


def _line_ranges(one: Input) -> Iterator[tuple[int, int, int]]:
    for file, data_file in enumerate(one.files):
        step = data_file.size_bytes if data_file.is_compressed else TASK_BYTES
        for start in range(0, data_file.size_bytes, max(step, 1)):
            yield file, start, min(start + step, data_file.size_bytes)


def _chunk_ranges(source: ChunkedSource) -> Iterator[tuple[int, int, int]]:
    sizes = source.layout.size_bytes
    first, total = 0, 0
    for chunk, size in enumerate(sizes.tolist()):
        if total and total + size > TASK_BYTES:
            yield first, chunk, total
            first, total = chunk, 0
        total += size
    if first < sizes.size:
        yield first, int(sizes.size), total


def stamps(inputs: Sequence[Input]) -> list[str]:
    """One for each file; another one when the file has changed."""
    return [f"{file.path}:{file.stamp()}" for one in inputs for file in one.files]
