"""``python -m packing LENGTHS.parquet -o PLAN.parquet``: lengths in, a token-free plan out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packing.items import OVERSIZE
from packing.packer import pack
from packing.packs import Packs
from packing.strategies import STRATEGIES

COLUMN_NAMES = ("length", "lengths", "num_tokens", "seq_length")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status. Errors are one sentence on stderr and status 2."""
    options = parser().parse_args(arguments)
    try:
        run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    known = argparse.ArgumentParser(prog="python -m packing", description=__doc__)
    known.add_argument(
        "lengths", type=Path, metavar="LENGTHS", help="parquet file with a column of lengths, or .npy"
    )
    known.add_argument(
        "-o", "--output", type=Path, metavar="PLAN", help="parquet file to write; none only reports"
    )
    known.add_argument("--max-tokens", type=int, required=True, help="tokens that a pack may hold")
    known.add_argument("--column", help=f"column of lengths; default: one of {', '.join(COLUMN_NAMES)}")
    known.add_argument("--strategy", choices=sorted(set(STRATEGIES) - {"balanced"}), default="best_fit")
    known.add_argument("--max-samples", type=int, help="most samples of a pack")
    known.add_argument("--align", type=int, default=1, help="pad each sample to a multiple of so many tokens")
    known.add_argument("--oversize", choices=OVERSIZE, default="error", help="what to do with longer samples")
    known.add_argument(
        "--seed", type=int, help="mix lengths over the order of packs, other partners per seed"
    )
    known.add_argument("--overwrite", action="store_true", help="replace a plan that is there")
    return known


def run(options: argparse.Namespace) -> None:
    """Read, pack, write, and say on stderr what came of it."""
    if options.output is not None and options.output.exists() and not options.overwrite:
        raise ValueError(f"{options.output} is there already; choose another name or pass --overwrite.")
    lengths = read_lengths(options.lengths, options.column)
    start = time.perf_counter()
    packs = pack(
        lengths,
        options.max_tokens,
        strategy=options.strategy,
        max_samples=options.max_samples,
        align=options.align,
        oversize=options.oversize,
        seed=options.seed,
    )
    if options.output is not None:
        write_plan(packs, options.output, vars(options))
    print(summary(packs, lengths.size, time.perf_counter() - start), file=sys.stderr)


def read_lengths(path: Path, column: str | None) -> NDArray[np.int64]:
    """[S] lengths of a parquet column or a .npy array."""
    if path.suffix == ".npy":
        array: NDArray[np.int64] = np.load(path, mmap_mode="r")
        return array
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        chosen = column or next((name for name in COLUMN_NAMES if name in names), None)
        if chosen not in names:
            raise ValueError(
                f"{path} must have a column of lengths, {column or ' or '.join(COLUMN_NAMES)}; it has "
                f"{', '.join(names)}. Name it with --column."
            )
        values = pq.read_table(path, columns=[chosen]).column(0)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from error
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy()))
        raise ValueError(
            f"{path}, column {chosen}: {values.null_count} lengths are missing, the first in row {row}."
        )
    lengths: NDArray[np.int64] = values.to_numpy()
    return lengths


def write_plan(packs: Packs, path: Path, options: dict[str, object]) -> None:
    """One row a pack: its samples, their first tokens and lengths, its tokens; the file appears whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def lists(column: NDArray[np.int64], largest: int) -> pa.Array:
        narrow = column.astype(np.int32) if largest < 2**31 else column
        return pa.LargeListArray.from_arrays(pa.array(packs.offsets), pa.array(narrow))

    table = pa.table(
        {
            "samples": lists(packs.order, int(packs.order.max(initial=0))),
            "starts": lists(packs.starts, int(packs.starts.max(initial=0))),
            "lengths": lists(packs.lengths, packs.max_tokens),
            "num_tokens": pa.array(packs.num_tokens),
        }
    )
    facts = {
        "options": {name: value for name, value in options.items() if not isinstance(value, Path)},
        "counts": dict(packs.counts),
        "lost_tokens": packs.lost_tokens,
        "packs": len(packs),
        "lower_bound": packs.lower_bound,
        "fill": packs.fill,
    }
    table = table.replace_schema_metadata({"evenload": json.dumps(facts)})
    unfinished = path.with_name(path.name + f".{os.getpid()}.tmp")
    try:
        pq.write_table(table, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def summary(packs: Packs, num_samples: int, seconds: float) -> str:
    """What came of it, in a few lines."""
    counts = ", ".join(f"{count:,} {fate}" for fate, count in packs.counts.items() if count)
    return (
        f"{num_samples:,} samples: {counts or 'none'}; {packs.total_tokens:,} tokens packed, "
        f"{packs.lost_tokens:,} lost\n"
        f"{len(packs):,} packs of {packs.max_tokens:,} tokens, at least {packs.lower_bound:,} are needed; "
        f"fill {packs.fill:.4%}\n"
        f"{seconds:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
