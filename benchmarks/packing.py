"""Packing: speed against other packers, a hundred million lengths, streams, costs, the gap to the optimum.

Sections: ``peers``, ``trainers``, ``hundred_million``, ``stream``, ``balanced``, ``optimal``, ``epochs``; all
of them without a choice. Each writes ``results/packing_SECTION.csv``; ``peers`` also draws a figure.
Peers are optional: ``pip install evenload[bench]``; one that is missing is left out and said.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import harness
from benchmarks.workloads import MIXES, clipped, mixed_instances
from packing import StreamPacker, pack
from packing.balanced import excess
from packing.bounds import fewest_packs

CAPS = (2048, 8192, 131_072)
SPEED_MIXES = ("lognormal", "uniform", "python_sources")
BALANCED_MIXES = ("lognormal", "pareto", "bimodal", "uniform", "wlb_llm", "prolong", "python_sources")


def lengths_of(mix: str, n: int, cap: int) -> np.ndarray:
    if mix == "uniform":
        return MIXES["uniform"](n, 0, longest=cap)
    return clipped(MIXES[mix](n, 0), cap)


def peers() -> dict[str, tuple[Callable[[list[int], int], list[Any]], int]]:
    """Name -> (lengths as a list, cap -> packs; most samples it can take)."""
    known: dict[str, tuple[Callable[[list[int], int], list[Any]], int]] = {}
    try:
        import lightbinpack

        known["lightbinpack obfd"] = lightbinpack.obfd, 1_000_000
        known["lightbinpack ffd"] = lightbinpack.ffd, 10_000
    except ImportError:
        print("lightbinpack is not installed and left out", file=sys.stderr)
    try:
        import binpacking

        known["binpacking"] = binpacking.to_constant_volume, 3_000
    except ImportError:
        print("binpacking is not installed and left out", file=sys.stderr)
    try:
        import prtpy

        def first_fit_decreasing(items: list[int], cap: int) -> list[Any]:
            return prtpy.pack(algorithm=prtpy.packing.first_fit_decreasing, binsize=cap, items=items)

        known["prtpy ffd"] = first_fit_decreasing, 3_000
    except ImportError:
        print("prtpy is not installed and left out", file=sys.stderr)
    return known


def section_peers() -> Iterable[dict[str, Any]]:
    """Pack ids by best_fit from an int32 array, each peer from the list it asks for; CPU time, in turn."""
    for n in (3_000, 10_000, 1_000_000):
        for mix in SPEED_MIXES:
            for cap in CAPS if n != 10_000 else (128, *CAPS, 1_000_000, 10_000_000):
                lengths = lengths_of(mix, n, cap)
                as_list = lengths.tolist()
                for name, (run, most) in peers().items():
                    if (
                        n > most
                        or (n == 3_000 and most > 3_000)
                        or (n == 10_000 and "ffd" in name and cap > 10**6)
                    ):
                        continue
                    ratio = harness.paired(
                        lambda lengths=lengths, cap=cap: pack(lengths, cap).assignment(),
                        lambda run=run, as_list=as_list, cap=cap: run(as_list, cap),
                        rounds=7 if n > 3_000 else 5,
                    )
                    row = row_of(n, mix, cap, name, ratio, packs=len(run(as_list, cap)))
                    yield row | {"lower_bound": pack(lengths, cap).lower_bound}


def row_of(n: int, mix: str, cap: int, peer: str, ratio: harness.Ratio, *, packs: int) -> dict[str, Any]:
    """What a peer took beside `pack` for the same lengths. packs: those of the peer."""
    return {
        "samples": n,
        "mix": mix,
        "cap": cap,
        "peer": peer,
        "our_ms": 1e3 * ratio.a_s,
        "peer_ms": 1e3 * ratio.b_s,
        "times_slower": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "our_packs": len(pack(lengths_of(mix, n, cap), cap)),
        "peer_packs": packs,
    }


Packer = Callable[[np.ndarray, int], Any]
"""(lengths, cap) -> packs."""


def trl_packer() -> Callable[[pa.Table, int], pa.Table] | None:
    """TRL's best fit of an Arrow table, which moves the tokens too."""
    try:
        from trl.data_utils import _pack_bfd
    except ImportError:
        print("TRL is not installed and left out", file=sys.stderr)
        return None
    return _pack_bfd


def axolotl_packer(folder: Path | None) -> Packer | None:
    """axolotl's first fit, with its sampler's defaults: groups of 100,000, at most 200 samples a pack."""
    if folder is None:
        print("axolotl is left out: --axolotl says where it lies", file=sys.stderr)
        return None
    multipack = harness.load_with_stubs(
        folder / "axolotl" / "utils" / "samplers" / "multipack.py",
        {
            "axolotl": {},
            "axolotl.utils": {},
            "axolotl.utils.distributed": {"reduce_and_broadcast": None},
            "axolotl.utils.logging": {"get_logger": logging.getLogger},
        },
    )
    return lambda lengths, cap: multipack.pack_parallel(lengths, cap, 100_000, 200, 1)


def table_of(lengths: np.ndarray) -> pa.Table:
    """Rows of so many zeros."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, np.zeros(offsets[-1], np.int32))})


def packed_table(table: pa.Table, cap: int) -> Any:
    """Ours beside TRL's: `pack` and one ``take`` of the table."""
    column = table["input_ids"].combine_chunks()
    return pc.take(column, pack(pc.list_value_length(column).to_numpy(), cap).order)


def section_trainers(axolotl: Path | None) -> Iterable[dict[str, Any]]:
    """What trainers call: TRL's packing of an Arrow table, tokens moved, and axolotl's first fit."""
    n = 20_000
    of_table, of_lengths = trl_packer(), axolotl_packer(axolotl)
    for mix in ("lognormal", "python_sources"):
        for cap in (2048, 8192):
            lengths = lengths_of(mix, n, cap)
            if of_table is not None:
                table = table_of(lengths)
                ratio = harness.paired(
                    partial(packed_table, table, cap), partial(of_table, table, cap), rounds=5
                )
                packs = len(of_table(table, cap))
                yield row_of(n, mix, cap, "TRL bfd, tokens moved", ratio, packs=packs)
            if of_lengths is not None:
                ratio = harness.paired(
                    lambda lengths=lengths, cap=cap: pack(lengths, cap).order,
                    partial(of_lengths, lengths, cap),
                    rounds=5,
                )
                packs = len(of_lengths(lengths, cap))
                yield row_of(n, mix, cap, "axolotl first-fit, lengths", ratio, packs=packs)


@numba.njit(nogil=True)
def table_pass(lengths, table, ids):
    """The least that any method with a state per length can do: read, update a table, write."""
    for i in range(lengths.shape[0]):
        length = lengths[i]
        state = table[length]
        ids[i] = state
        table[length] = state + 1


def section_hundred_million() -> Iterable[dict[str, Any]]:
    """Pack ids of 1e8 lengths against one table-update pass; peak memory in a process of its own."""
    n = 100_000_000
    for mix, cap in (("lognormal", 2048), ("uniform", 2048), ("lognormal", 131_072), ("uniform", 131_072)):
        lengths = lengths_of(mix, n, cap)

        def floor(lengths=lengths, cap=cap) -> None:
            table_pass(lengths, np.zeros(cap + 1, np.int32), np.empty(lengths.size, np.int32))

        ratio = harness.paired(
            floor, lambda lengths=lengths, cap=cap: pack(lengths, cap).assignment(), rounds=5
        )
        packs = pack(lengths, cap)
        whole, chunked = packs.assignment(), packs.assignment(threads=2)
        yield {
            "samples": n,
            "mix": mix,
            "cap": cap,
            "packs": len(packs),
            "lower_bound": packs.lower_bound,
            "table_pass_s": ratio.a_s,
            "pack_ids_s": ratio.b_s,
            "times_table_pass": ratio.median,
            "low": ratio.low,
            "high": ratio.high,
            "million_per_s": n / ratio.b_s / 1e6,
            "two_chunks_equal": bool((whole == chunked).all()),
            "peak_above_input_and_output_mib": peak_memory_mib(mix, cap, n),
        }


PEAK = """
import json, resource, numpy as np
from benchmarks.packing import lengths_of
from packing import pack
import sys
mix, cap, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
np.save("lengths.npy", lengths_of(mix, n, cap))
"""
PEAK_PACK = """
import sys, numpy as np
from packing import pack
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
cap = int(sys.argv[1])
pack(np.arange(1, 9, dtype=np.int32), cap).assignment()
lengths = np.load("lengths.npy")
before = status("VmRSS")
ids = pack(lengths, cap).assignment()
print((status("VmHWM") - before - ids.nbytes / 1024) / 1024)
"""


def peak_memory_mib(mix: str, cap: int, n: int) -> float:
    """Memory at the peak beyond the lengths and the ids, in a fresh process."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        surroundings = {**os.environ, "PYTHONPATH": str(harness.RESULTS.parents[1])}
        subprocess.run(
            [sys.executable, "-c", PEAK, mix, str(cap), str(n)], cwd=folder, check=True, env=surroundings
        )
        done = subprocess.run(
            [sys.executable, "-c", PEAK_PACK, str(cap)],
            cwd=folder,
            check=True,
            capture_output=True,
            env=surroundings,
        )
    return float(done.stdout)


def section_stream() -> Iterable[dict[str, Any]]:
    """Packs above best-fit's, samples a CPU second in calls of 100,000, and the size of the state."""
    contracts: dict[str, dict[str, Any]] = {
        "free, 256 open": {},
        "free, 64 open": {"open_packs": 64},
        "free, 1,024 open": {"open_packs": 1024},
        "window of 1,024": {"order": "window"},
        "window of 16,384": {"order": "window", "window": 16_384},
        "strict": {"order": "strict"},
    }
    n = 2_000_000
    for mix in ("lognormal", "python_sources", "prolong"):
        for cap in CAPS:
            lengths = lengths_of(mix, n, cap)
            tight = len(pack(lengths, cap))
            for contract, options in contracts.items():
                packer = StreamPacker(cap, **options)
                packer.add(lengths[:1])
                start = time.process_time()
                closed = sum(len(packer.add(lengths[i : i + 100_000])) for i in range(1, n, 100_000))
                seconds = time.process_time() - start
                state = len(json.dumps(packer.state_dict()))
                closed += len(packer.flush())
                yield {
                    "mix": mix,
                    "cap": cap,
                    "contract": contract,
                    "packs_above_best_fit_percent": 100 * (closed / tight - 1),
                    "million_per_s": n / seconds / 1e6,
                    "state_bytes": state,
                }


def section_balanced() -> Iterable[dict[str, Any]]:
    """Excess of the slowest pack over max(mean, costliest sample), samples above the cap left out."""
    for mix in BALANCED_MIXES:
        for cap in (16_384, 65_536, 131_072, 524_288):
            lengths = MIXES[mix](20_000, 7).astype(np.int64)
            lengths = lengths[lengths <= cap]
            cost = 1e-4 * lengths * (1 + lengths / 32_768)
            tight = pack(lengths, cap)
            start = time.process_time()
            even = pack(lengths, cap, strategy="balanced", cost=cost)
            seconds = time.process_time() - start
            yield {
                "mix": mix,
                "cap": cap,
                "samples": lengths.size,
                "best_fit_packs": len(tight),
                "balanced_packs": len(even),
                "best_fit_excess": excess(cost, tight.assignment(), len(tight)),
                "balanced_excess": excess(cost, even.assignment(), len(even)),
                "seconds": seconds,
            }


def section_optimal() -> Iterable[dict[str, Any]]:
    """200 mixed instances: how many end at the lower bound, by kind."""
    kinds: dict[str, list[tuple[int, int, int, int, float]]] = {}
    for name, lengths, cap in mixed_instances(200, seed=0):
        values, counts = np.unique(lengths, return_counts=True)
        bound = fewest_packs(values[::-1].astype(np.int64), counts[::-1].astype(np.int64), cap, 2**31 - 1)
        start = time.process_time()
        packs = pack(lengths, cap, strategy="optimal")
        seconds = time.process_time() - start
        kinds.setdefault(name.split("-")[0], []).append(
            (len(packs), len(pack(lengths, cap)), bound, packs.lower_bound, seconds)
        )
    for kind, rows in kinds.items():
        ours, tight, bounds, proven, seconds = (np.array(column) for column in zip(*rows, strict=True))
        yield {
            "kind": kind,
            "instances": len(rows),
            "best_fit_at_lower_bound": int((tight == proven).sum()),
            "optimal_at_lower_bound": int((ours == proven).sum()),
            "optimal_at_combinatorial_bound": int((ours == bounds).sum()),
            "packs_saved": int((tight - ours).sum()),
            "median_s": float(np.median(seconds)),
            "longest_s": float(seconds.max()),
        }


def section_epochs() -> Iterable[dict[str, Any]]:
    """Cost of other partners and another order, against the plain pack ids of the same packing."""
    for mix in SPEED_MIXES:
        for cap in CAPS:
            packs = pack(lengths_of(mix, 10_000_000, cap), cap)
            ratio = harness.paired(
                packs.assignment, lambda packs=packs: packs.reshuffled(0, 1).assignment(), rounds=5
            )
            yield {
                "mix": mix,
                "cap": cap,
                "plain_ns": 100 * ratio.a_s,
                "reshuffled_ns": 100 * ratio.b_s,
                "times": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
            }


def draw_peers() -> None:
    """Samples a second at a million lengths, ours and the fastest peer's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in harness.read("packing_peers") if row["samples"] == "1000000"]
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    labels = [f"{row['mix'].replace('_', chr(10))}\n{int(row['cap']):,}" for row in rows]
    place = np.arange(len(rows))
    for offset, key, name in ((-0.2, "our_ms", "evenload best_fit"), (0.2, "peer_ms", rows[0]["peer"])):
        axes.bar(place + offset, [1e3 / float(row[key]) for row in rows], 0.4, label=name)
    for x, row in zip(place, rows, strict=True):
        axes.annotate(
            f"{float(row['times_slower']):.0f}x",
            (x - 0.2, 1e3 / float(row["our_ms"])),
            ha="center",
            va="bottom",
        )
    axes.set_yscale("log")
    axes.set_ylim(1, 2000)
    axes.set_ylabel("million samples / CPU second")
    axes.set_xticks(place, labels, fontsize=7)
    axes.set_title("One million lengths to pack ids, one core (mix and max_tokens below)", fontsize=10)
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    figure.savefig(harness.FIGURES / "packing_peers.png", dpi=110)


SECTIONS: dict[str, Callable[..., Iterable[dict[str, Any]]]] = {
    "peers": section_peers,
    "trainers": section_trainers,
    "hundred_million": section_hundred_million,
    "stream": section_stream,
    "balanced": section_balanced,
    "optimal": section_optimal,
    "epochs": section_epochs,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--axolotl", type=Path, help="where axolotl lies: pip install --no-deps --target")
    arguments = parser.parse_args()
    chosen = arguments.sections or list(SECTIONS)
    unknown = sorted(set(chosen) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    for section in chosen:
        given = [arguments.axolotl] if section == "trainers" else []
        if rows := list(SECTIONS[section](*given)):
            harness.publish(f"packing_{section}", rows)
        if section == "peers":
            draw_peers()


if __name__ == "__main__":
    main()
