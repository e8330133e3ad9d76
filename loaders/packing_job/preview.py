"""``--preview``: packs as a person reads them, each sample in a colour of its own."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loaders.packing_job.check import read_manifest, read_shard

COLOURS = ("cyan", "green", "yellow", "magenta", "blue")
SHOWN = 60
"""Tokens shown of each end of a sample."""


def preview_folder(folder: Path, count: int, tokenizer: str | None, console: Console) -> None:
    """Print the first packs, decoded when a tokenizer is given or the run had one; masked tokens are dim."""
    manifest = read_manifest(folder)
    kind = manifest["arguments"]["format"]
    if kind in ("plan", "megatron"):
        raise ValueError(f"{folder} is in format {kind}, which --preview does not show")
    decode = _decoder(tokenizer or manifest["arguments"]["text"]["tokenizer"])
    names = [one["name"] for one in manifest["inputs"]]
    rows = (
        row
        for name in manifest["files"]
        for _, part in read_shard(folder / name, kind)
        for row in part.to_pylist()
    )
    for number, row in enumerate(islice(rows, count)):
        lengths = row["seq_lengths"]
        tokens = sum(lengths)
        console.print(
            f"pack {number}: {len(lengths)} samples, {tokens} of {manifest['max_tokens']} tokens "
            f"({tokens / manifest['max_tokens']:.1%})",
            style="bold",
            highlight=False,
        )
        at = 0
        for place, length in enumerate(lengths):
            end = at + -(-length // manifest["arguments"]["align"]) * manifest["arguments"]["align"]
            console.print(_sample(row, at, at + length, place, names, decode), highlight=False)
            at = end


def _sample(row: dict[str, Any], begin: int, end: int, place: int, names: list[str], decode: Any) -> Text:
    colour = COLOURS[place % len(COLOURS)]
    text = Text()
    if "row_ids" in row:
        source = names[row["source_ids"][place]]
        text.append(f"[{source}, row {row['row_ids'][place]}, {end - begin} tokens] ", style="bold " + colour)
    labels = row.get("labels")
    shown = [*range(begin, min(end, begin + SHOWN)), *range(max(end - SHOWN, begin + SHOWN), end)]
    for run in _runs(shown, lambda t: labels is None or labels[t] != -100):
        trained = labels is None or labels[run[0]] != -100
        if run[0] - begin >= SHOWN and run[0] == max(end - SHOWN, begin + SHOWN) and end - begin > 2 * SHOWN:
            text.append(" ... ", style="dim")
        text.append(decode([row["input_ids"][t] for t in run]), style=colour if trained else "dim " + colour)
    return text


def _runs(indices: list[int], kind: Any) -> list[list[int]]:
    """Neighbouring indices of one kind."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1 and kind(index) == kind(runs[-1][-1]):
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _decoder(tokenizer: str | None) -> Any:
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids)) + " "
    from tokenizers import Tokenizer

    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such tokenizer file")
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{path} is not a tokenizer of the tokenizers library: {error}") from error
    return lambda ids: loaded.decode(ids, skip_special_tokens=False)
