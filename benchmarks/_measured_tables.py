"""Tables of what was measured against peers and limits, in the README and on the pages of their parts."""

from __future__ import annotations

from statistics import median

from benchmarks._markdown import Row, Rows, markdown, measured_on, paragraphs
from benchmarks.harness import read

TARGETS = {
    ("65536", "1024", "0.0"): (10.0, 0.0005, 0.0025),
    ("65536", "1024", "0.629"): (20.0, 0.01, None),
    ("512", "64", "0.0"): (1.0, 0.012, None),
    ("1048576", "16384", "0.0"): (500.0, None, None),
}
"""Samples, ranks, fixed cost -> milliseconds, median gap and 95 % gap to stay under, for every mix."""


def planner_shapes() -> str:
    """Time and gap of planning, ranges over the mixes, beside the targets."""
    rows = read("planner_shapes")

    def cells(shape: tuple[str, str, str]) -> list[str]:
        mine = [row for row in rows if (row["samples"], row["ranks"], row["fixed_s"]) == shape]
        took = [float(row["ms_median"]) for row in mine]
        gaps = [float(row["gap_median"]) for row in mine]
        worst = max(mine, key=lambda row: float(row["gap_p95"]))
        others = max(float(row["gap_p95"]) for row in mine if row is not worst)
        return [
            f"{int(shape[0]):,} x {int(shape[1]):,}",
            f"{float(shape[2]):g} s",
            f"{min(took):.1f} to {max(took):.1f} ms",
            f"{min(gaps):.3%} to {max(gaps):.3%}",
            f"{float(worst['gap_p95']):.2%} ({worst['mix']}), others {others:.2%}",
            *_held(mine, TARGETS.get(shape)),
        ]

    heads = ["samples x ranks", "fixed cost", "time, median", "gap, median", "gap, 95 %, at most"]
    heads += ["target", "does not hold for"]
    shapes = dict.fromkeys((row["samples"], row["ranks"], row["fixed_s"]) for row in rows)
    return paragraphs(markdown(heads, map(cells, shapes)), measured_on(rows))


def _held(rows: Rows, target: tuple[float, float | None, float | None] | None) -> tuple[str, str]:
    """What was aimed at, and which mixes miss it."""
    if target is None:
        return "", ""
    columns = ("ms_median", "gap_median", "gap_p95")
    said = [f"{target[0]:g} ms", *(f"{gap:.2%}" for gap in target[1:] if gap is not None)]
    missed = [
        f"{row['mix']} ({float(row[column]):.1f} ms)" if column == "ms_median" else f"{row['mix']} (gap)"
        for row in rows
        for column, most in zip(columns, target, strict=True)
        if most is not None and float(row[column]) > most
    ]
    return ", ".join(said), ", ".join(missed) or "none"


def packing_peers() -> str:
    """A million lengths against lightbinpack, and what smaller numbers give."""
    rows = read("packing_peers")
    million = [row for row in rows if row["samples"] == "1000000"]
    caps = list(dict.fromkeys(row["cap"] for row in million))

    def cells(mix: str) -> list[str]:
        found = {row["cap"]: row for row in million if row["mix"] == mix}
        return [mix.replace("_", " "), *(_ratio(found[cap]) for cap in caps)]

    table = markdown(
        ["lengths", *(f"{int(cap):,}" for cap in caps)],
        (cells(mix) for mix in dict.fromkeys(row["mix"] for row in million)),
    )
    least = min(_of(rows, "10000"), key=lambda row: float(row["times_slower"]))
    slow = [
        f"{peer} is {_span([float(row['times_slower']) for row in _of(rows, '3000') if row['peer'] == peer])}"
        for peer in dict.fromkeys(row["peer"] for row in _of(rows, "3000"))
    ]
    more = [row for row in rows if int(row["our_packs"]) > int(row["peer_packs"])]
    packs = "needs more packs in some cases" if more else "never needs more packs than theirs"
    return paragraphs(
        table,
        f"With 10,000 lengths and caps from 128 to 10 million the smallest lead over lightbinpack is "
        f"{float(least['times_slower']):.1f}x ({least['mix']}, {int(least['cap']):,}, "
        f"`{least['peer'].split()[-1]}`). With 3,000 lengths, {' and '.join(slow)} times slower; their time "
        f"grows with the square. `best_fit` {packs}.",
        measured_on(rows),
    )


def _of(rows: Rows, samples: str) -> list[Row]:
    return [row for row in rows if row["samples"] == samples]


def _ratio(row: Row) -> str:
    """How many times slower a peer is, with its interval, and our time."""
    slower, low, high = (float(row[column]) for column in ("times_slower", "low", "high"))
    return f"{slower:.0f}x ({low:.0f} to {high:.0f}), {float(row['our_ms']):.1f} ms"


def _span(values: list[float], digits: int = 0) -> str:
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def readme() -> str:
    """One row each of what was measured against a peer or a limit."""
    peers = _of(read("packing_peers"), "1000000")
    by_cap = {
        cap: _span([float(row["times_slower"]) for row in peers if row["cap"] == cap])
        for cap in ("2048", "131072")
    }
    passes = [float(row["times_table_pass"]) for row in read("packing_hundred_million")]
    optimal = read("packing_optimal")
    held = sum(int(row["optimal_at_lower_bound"]) for row in optimal)
    shapes = [
        row
        for row in read("planner_shapes")
        if (row["samples"], row["ranks"], row["fixed_s"]) == ("65536", "1024", "0.0")
    ]
    planned = _span([float(row["ms_median"]) for row in shapes])
    gap = max(float(row["gap_median"]) for row in shapes)
    verl = [
        float(row["faster"])
        for row in read("planner_karmarkar_karp")
        if (row["samples"], row["counts"]) == ("8192", "free") and row["faster"]
    ]
    attention = _span([float(row["ratio_wall"]) for row in read("runtime")], 2)
    (loads,) = read("loader_unbalanced")
    packing, balancing = "[packing](docs/packing.md)", "[balancing](docs/balancing.md)"
    return markdown(
        ["what", "result", "where"],
        [
            [
                "one million lengths to packs, against `lightbinpack` (C++), same number of packs",
                f"{by_cap['2048']} times as fast at 2,048 tokens, {by_cap['131072']} at 131,072",
                packing,
            ],
            [
                "a hundred million lengths, against one pass that reads, counts and writes",
                f"{_span(passes, 1)} times the pass",
                packing,
            ],
            [
                f"`optimal` on {sum(int(row['instances']) for row in optimal)} mixed instances",
                f"at the lower bound on {held}",
                packing,
            ],
            [
                "planning 65,536 sequences on 1,024 ranks, CP degrees 1 to 64",
                f"{planned} ms, within {gap:.2%} of a proven bound at the median",
                balancing,
            ],
            [
                "Karmarkar-Karp as verl has it, 8,192 sequences, 64 ranks",
                f"{median(verl):,.0f} times as slow, no better balanced",
                balancing,
            ],
            [
                "attention shared by 2 ranks, 8,192 tokens, three methods, against an ideal split",
                f"{attention} times",
                "[benchmarks](docs/benchmarks.md#attention-over-ranks)",
            ],
            [
                "the loader without `max_tokens`, CPU time over torch's own",
                f"{float(loads['ratio']):.2f} ({float(loads['low']):.2f} to {float(loads['high']):.2f})",
                "[benchmarks](docs/benchmarks.md#loading)",
            ],
        ],
        left=3,
    )
