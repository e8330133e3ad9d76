"""``docs/benchmarks.md``, and tables of other pages between marks, from ``benchmarks/results/*.csv``.

    python -m benchmarks tables

A table whose rows were never measured says so. `python -m benchmarks all` measures first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks import _measured_tables
from benchmarks._markdown import Row, Rows, markdown, measured_on, paragraphs, replaced, times
from benchmarks._simulator_page import TABLES as SIMULATOR_TABLES
from benchmarks.harness import read

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
SIMULATOR, PACKING, BALANCING = (
    ROOT / "docs" / f"{name}.md" for name in ("simulator", "packing", "balancing")
)
MIX_NAMES = {
    "commoncrawl": "web pages (CommonCrawl-like)",
    "github": "code (GitHub-like)",
    "wlb_llm": "documents (WLB-LLM)",
    "prolong": "documents (ProLong)",
    "chat": "chat (LMSYS-like)",
    "long_sft": "long SFT (ChatQA2-like)",
    "multi_image": "2 to 8 images",
    "video": "video clips",
}
STATIC = "tuned_static"
NAMES = {"balanced": "evenload"}


def gain(sync: str) -> str:
    """Each mix: padding, the tuned static degree and the best other policy, over balanced."""
    rows = [row for row in read("cluster_gain") if row["sync"] == sync]
    columns = list(dict.fromkeys((row["model"], row["gpus"]) for row in rows))

    def cell(mix: str, column: tuple[str, str]) -> str:
        found = {
            row["policy"]: float(row["over_balanced"])
            for row in rows
            if (row["model"], row["gpus"]) == column and row["mix"] == mix and not row["error"]
        }
        others = [found[name] for name in found if name not in ("padded", "balanced", STATIC)]
        return f"{found['padded']:.1f} / {found[STATIC]:.2f} / {min(others):.2f}"

    heads = ["step time over `balanced`", *(f"{model}, {int(gpus):,} GPUs" for model, gpus in columns)]
    mixes = dict.fromkeys(row["mix"] for row in rows)
    return markdown(heads, ([MIX_NAMES[mix], *(cell(mix, c) for c in columns)] for mix in mixes))


GAIN_NOTE = """
Each cell: padded / the best *tuned* static configuration (one CP degree for the whole run, every one that
holds the longest sample tried, samples divided by predicted time) / the best of all other policies (which
may take another degree each step). Above 1 is slower than `balanced`. Simulated, with the planner's own
plans: 16 samples a data rank and step, at most 131,072 tokens long, 16,384 tokens a rank and micro-batch, 3
% jitter. 7B: FlexSP's published coefficients on A100-40GB, a GPU a data rank, 8 a node. 32B: Hydraulis's
published coefficients on A800 with tensor parallelism 8, a node a data rank, CP between nodes at derived
rates.
"""
FLEXSP_NOTE = """
FlexSP's cluster and cost (64 A100-40GB, ZeRO-3, 512 sequences a step). Its lengths are not published;
percentiles published elsewhere of such corpora stand in. Published: at most 1.98x over Megatron-LM and
1.72x over DeepSpeed, each with its tuned degree.
"""
TRAIN_NOTE = """
A small transformer on 2 CPU ranks, the same {steps} steps in three ways ([how](demo.md)). Times as fast in
wall time, with 95 % intervals:
"""
RUNTIME_NOTE = """
Attention shared by two CPU ranks, over half of one rank's time plus the time to move the bytes alone:
"""
LOADER_NOTE = """
200,000 log-normal documents, 512 a batch, shuffled. evenload and torch_packed lay out token ids, labels,
positions, document numbers and borders; all others only put the tokens end to end, which is less work.
gather does that with the rows known before: no loader that uses numpy can be faster.
"""
HEAD = """
`python -m benchmarks all` measures what stands here, and the tables of [the simulator](simulator.md), and
writes these pages; `python -m benchmarks NAME` runs one. Every ratio is to a peer or to a limit measured in
the same run. Rows with their environment lie in `benchmarks/results/`.
"""
APART = """
Measured apart, each in some minutes: many sources (`python -m benchmarks sources`) and Ray (`ray`).
"""


def duration() -> str:
    """How long measuring all took, part by part."""
    rows = read("all")
    parts = ", ".join(f"{row['name']} {float(row['seconds']):.0f} s" for row in rows)
    minutes = sum(float(row["seconds"]) for row in rows) / 60
    return paragraphs(f"Its parts last took {minutes:.0f} minutes together, on 2 cores ({parts}).", APART)


def gain_section() -> str:
    meet = "Ranks that meet in every micro-batch (FSDP, ZeRO-3):"
    return paragraphs(gain("step"), GAIN_NOTE, meet, gain("micro_batch"), measured_on(read("cluster_gain")))


def flexsp_section() -> str:
    body = (
        [
            MIX_NAMES[row["mix"]],
            f"{int(row['longest']):,}",
            f"{float(row['balanced_s']):.1f} s",
            f"{float(row['tuned_static_s']):.1f} s",
            times(float(row["times_as_fast"])),
        ]
        for row in read("cluster_flexsp")
    )
    heads = ["lengths", "longest", "balanced", "tuned static", "times as fast"]
    return paragraphs(FLEXSP_NOTE, markdown(heads, body))


def train_section() -> str:
    ways = read("train_ways")
    body = (
        [
            NAMES.get(row["policy"], row["policy"]),
            f"{float(row['tokens_per_s']):,.0f}",
            f"{float(row['efficiency']):.2f}",
            f"{float(row['critical_s']):.1f} s",
            f"{float(row['predicted_s']):.1f} s",
        ]
        for row in ways
    )
    heads = ["way", "tokens/s", "efficiency", "CPU time of the slower rank, all steps", "predicted"]
    ratios = (
        [
            f"{NAMES.get(row['faster'], row['faster'])} over {row['slower']}",
            f"{float(row['ratio']):.2f} [{float(row['low']):.2f}, {float(row['high']):.2f}]",
        ]
        for row in read("train_ratios")
        if row["clock"] == "wall_s"
    )
    return paragraphs(
        TRAIN_NOTE.format(steps=ways[0]["steps"]),
        markdown(["", "times as fast"], ratios),
        markdown(heads, body),
        "![Timeline](images/train_timeline.png)",
        measured_on(ways),
    )


def packing_section() -> str:
    rows = [row for row in read("packing_peers") if row["samples"] == "1000000"]
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    cases = list(dict.fromkeys((row["mix"], row["cap"]) for row in rows))

    def cells(mix: str, cap: str) -> list[str]:
        found = {row["peer"]: row for row in rows if (row["mix"], row["cap"]) == (mix, cap)}
        ours = next(iter(found.values()))
        slower = [times(float(found[peer]["times_slower"])) if peer in found else "" for peer in peers]
        more = sum(int(row["our_packs"]) > int(row["peer_packs"]) for row in found.values())
        return [
            mix,
            f"{int(cap):,}",
            f"{float(ours['our_ms']):.1f} ms",
            *slower,
            "more" if more else "no more",
        ]

    heads = [
        "lengths",
        "`max_tokens`",
        "evenload",
        *(f"{peer} is slower" for peer in peers),
        "packs than theirs",
    ]
    return paragraphs(
        "One million lengths to pack ids:",
        markdown(heads, (cells(*case) for case in cases)),
        "![Packing](images/packing_peers.png)",
        "More: [packing](packing.md).",
        measured_on(rows),
    )


def planner_section() -> str:
    rows = read("planner_shapes")
    shapes = list(dict.fromkeys((row["samples"], row["ranks"], row["fixed_s"]) for row in rows))

    def cells(shape: tuple[str, str, str]) -> list[str]:
        mine = [row for row in rows if (row["samples"], row["ranks"], row["fixed_s"]) == shape]
        taken = [float(row["ms_median"]) for row in mine]
        gaps = [float(row["gap_median"]) for row in mine]
        return [
            f"{int(shape[0]):,} x {int(shape[1]):,}",
            f"{float(shape[2]):g} s",
            f"{min(taken):.1f} to {max(taken):.1f} ms",
            f"{median(gaps):.3%}",
            f"{max(float(row['gap_p95']) for row in mine):.2%}",
        ]

    heads = ["samples x ranks", "fixed cost", "CPU time, six mixes", "gap, median", "gap, 95 %, worst mix"]
    return paragraphs(
        markdown(heads, map(cells, shapes)),
        "![Planner](images/planner_shapes.png)",
        "More: [balancing](balancing.md).",
        measured_on(rows),
    )


def runtime_section() -> str:
    rows = read("runtime")
    body = (
        [
            f"{int(row['tokens']):,}",
            row["pack"],
            row["method"],
            f"{float(row['ratio_wall']):.2f}",
            f"{float(row['ratio_cpu']):.2f}",
        ]
        for row in rows
    )
    heads = ["tokens", "pack", "method", "over ideal, wall", "over ideal, CPU"]
    return paragraphs(RUNTIME_NOTE, markdown(heads, body, left=3), measured_on(rows))


def loader_section() -> str:
    rows = read("loader_peers")
    measured = [row for row in rows if not row["missing"]]
    names = list(dict.fromkeys(row["loader"] for row in measured))

    def cells(name: str) -> list[str]:
        found = {row["workers"]: row for row in measured if row["loader"] == name}
        version = next(iter(found.values()))["version"]
        columns = ("million_tokens_per_cpu_s", "thousand_documents_per_cpu_s")
        numbers = [
            f"{float(found[workers][column]):,.1f}" if workers in found else ""
            for workers in ("0", "2")
            for column in columns
        ]
        return [f"{name} {version}".strip(), *numbers]

    heads = ["loader", "M tokens / CPU-s", "k documents / CPU-s", "2 workers: M tokens", "k documents"]
    missing = [f"{row['loader']} ({row['missing']})" for row in rows if row["missing"]]
    torch_mode = read("loader_unbalanced")[0]
    shares = (
        [
            f"{int(row['documents_a_rank']):,}",
            row["ranks"],
            f"{float(row['plan_ms']):.2f} ms",
            f"{float(row['plan_share_of_step']):.1%}",
        ]
        for row in read("loader_shares")
    )
    fastest = sorted(names, key=lambda name: -_best(measured, name))
    return paragraphs(
        LOADER_NOTE,
        markdown(heads, map(cells, fastest)),
        f"Not measured: {'; '.join(missing)}." if missing else "",
        "![Loaders](images/loader_peers.png)",
        f"Without `max_tokens` the CPU time is {float(torch_mode['ratio']):.3f} of torch's own loader's "
        f"({float(torch_mode['low']):.3f} to {float(torch_mode['high']):.3f}). Planning, as a share of the "
        "whole step of one process:",
        markdown(["documents a rank and step", "ranks", "planning", "share of the step"], shares, left=0),
        loader_state(),
        measured_on(measured),
    )


def loader_state() -> str:
    """What a state holds and costs, and how near mixtures are to their shares."""
    found = {row["what"]: float(row["value"]) for row in read("loader_state")}
    resumed = [found[f"resume_ms_at_{share}%"] for share in (0, 50, 99)]
    return paragraphs(
        f"A state has {found['state_bytes']:.0f} bytes. The first batch behind it came after "
        f"{min(resumed):.1f} to {max(resumed):.1f} ms at 0, 50 and 99 % of an epoch. Counts of 100 mixed "
        f"sources lay within {found['largest_error_samples']:.2f} samples of their shares after a million "
        f"samples, independent draws within {found['largest_error_samples_of_draws']:.0f}. A loader over 100 "
        f"parquet sources gave its first batch after {found['first_batch_s']:.2f} s, with "
        f"{found['descriptors']:.0f} open descriptors."
    )


def _best(rows: Rows, name: str) -> float:
    return max(float(row["million_tokens_per_cpu_s"]) for row in rows if row["loader"] == name)


def sources_section() -> str:
    many = (
        [
            row["format"],
            f"{int(row['sources']):,}",
            f"{float(row['first_batch_s']):.2f} s",
            f"{float(row['mib_a_source']):.2f}",
            row["descriptors"],
        ]
        for row in read("sources_many")
    )
    samples = (
        [
            row["format"],
            f"{int(row['samples']):,} in {int(row['files']):,} files",
            row["cache"],
            row["workers"],
            f"{float(row['position']):.0%}",
            f"{float(row['first_batch_s']):.2f} s",
        ]
        for row in read("sources_samples")
    )
    return paragraphs(
        markdown(["format", "sources", "first batch", "MiB a further source", "descriptors"], many),
        markdown(["format", "samples", "length cache", "workers", "resumed at", "first batch"], samples),
        "![Sources](images/sources.png)",
        measured_on(read("sources_many")),
    )


def ray_section() -> str:
    memory = (
        [
            row["loader"],
            row["ranks"],
            row["processes"],
            f"{float(row['workers_or_actors_MB']):,.0f}",
            f"{float(row['rays_own_MB']):,.0f}",
            f"{float(row['total_MB']):,.0f}",
        ]
        for row in read("ray_memory")
    )
    planning = (
        [
            f"{int(row['ranks']):,}",
            row["sources"],
            row["samples a rank"],
            f"{float(row['steps_per_cpu_s']):.1f}",
            f"{float(row['wire_over_payload']):.2f}",
        ]
        for row in read("ray_planner")
    )
    decoding = (
        [
            row["work"],
            row["engine"],
            row["cpus"],
            f"{float(row['of_ideal']):.0%}" if row.get("of_ideal") else "",
            f"{float(row['wait_p50_ms']):.1f} ms" if row.get("wait_p50_ms") else "",
        ]
        for row in read("ray_decode")
    )
    cost = (
        [row["engine"], f"{float(row['cpu_s_per_Mtoken']):.4f} s", f"{float(row['cpu_over_local']):.1f}x"]
        for row in read("ray_overhead")
    )
    return paragraphs(
        "Memory of the data plane (PSS, MB), 100 sources:",
        markdown(["loader", "ranks", "processes", "workers or actors", "Ray's own", "total"], memory),
        "Planning from metadata alone, and bytes over the wire beside the payload's:",
        markdown(["ranks", "sources", "samples a rank", "steps / CPU-s", "wire / payload"], planning, left=0),
        "A source that is heavy to decode beside a light one:",
        markdown(["work", "engine", "CPUs", "of the ideal throughput", "wait, median"], decoding, left=2),
        "Plain text on one machine:",
        markdown(["engine", "CPU a million tokens", "over local"], cost),
        "![Ray](images/ray.png)",
        measured_on(read("ray_memory")),
    )


def scaling_section() -> str:
    sizes = read("scaling")

    def cells(fit: Row) -> list[str]:
        largest = [row for row in sizes if row["work"] == fit["work"]][-1]
        took_ms = 1e3 * float(largest["cpu_s"])
        return [
            fit["work"],
            fit["unit"],
            f"{float(fit['exponent']):.2f}",
            f"{int(largest['size']):,}",
            f"{took_ms:,.2f} ms" if took_ms < 10 else f"{took_ms:,.0f} ms",
        ]

    heads = ["work", "size counts", "exponent", "largest size", "CPU time"]
    return paragraphs(
        markdown(heads, map(cells, read("scaling_exponents")), left=2),
        "Small steps try more divisions than large ones.",
        "![Scaling](images/scaling.png)",
        measured_on(sizes),
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "Gains on a cluster": gain_section,
    "FlexSP's setting": flexsp_section,
    "Trained on two ranks": train_section,
    "Packing": packing_section,
    "Planning": planner_section,
    "Loading": loader_section,
    "Many sources": sources_section,
    "On Ray": ray_section,
    "Attention over ranks": runtime_section,
    "How cost grows": scaling_section,
}
"""Heading -> what writes it from results."""


def page() -> str:
    """The whole page."""
    parts = ["# Benchmarks", HEAD, duration()]
    for heading, write in SECTIONS.items():
        try:
            body = write()
        except FileNotFoundError as missing:
            body = f"Not measured yet: {Path(missing.filename).name} is not there."
        parts += [f"## {heading}", body]
    return paragraphs(*parts) + "\n"


TABLES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    README: {"gain": lambda: paragraphs(gain("step"), GAIN_NOTE), "measured": _measured_tables.readme},
    SIMULATOR: SIMULATOR_TABLES,
    PACKING: {"peers": _measured_tables.packing_peers},
    BALANCING: {"shapes": _measured_tables.planner_shapes},
}
"""Page -> name of a table's marks -> what writes it. `make demo` prints another of the README's."""


def written() -> dict[Path, str]:
    """Every page as results give it."""
    pages = {PAGE: page()}
    for path, made in TABLES.items():
        text = path.read_text(encoding="utf-8")
        for name, write in made.items():
            text = replaced(text, name, write())
        pages[path] = text
    return pages


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main()
