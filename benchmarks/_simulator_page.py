"""The tables of ``docs/simulator.md``, from what `python -m benchmarks cluster` and ``planner`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks._markdown import Row, Rows, markdown, measured_on, paragraphs
from benchmarks.harness import read

POLICIES = ("padded", "equal_samples", "equal_tokens", "sum_of_squares", "karmarkar_karp", "static_cp")
TAKEN = ("equal_tokens", "static_cp", "balanced")
COMMUNICATION = {"hidden": "hidden", "shown": "not hidden"}


def compared(name: str) -> str:
    """Step time of every policy over `balanced`, by mix and size."""
    rows = read(name)
    cases = dict.fromkeys((row["mix"], row["ranks"]) for row in rows)

    def cells(mix: str, ranks: str) -> list[str]:
        found = {row["policy"]: row for row in rows if (row["mix"], row["ranks"]) == (mix, ranks)}
        over = [_two(found.get(policy), "over_balanced") for policy in (*POLICIES, "tuned_static")]
        best = found["balanced"]
        ends = [f"{float(best['step_s']):.1f} s", _percent(best["idle"]), _percent(best["mfu"])]
        return [mix, f"{int(ranks):,}", *over, *ends]

    heads = ["lengths", "GPUs", *(f"`{p}`" for p in POLICIES), "tuned", "`balanced`", "idle", "MFU"]
    return paragraphs(markdown(heads, (cells(*case) for case in cases)), measured_on(rows))


def noise() -> str:
    """Every case over the quiet `balanced` of its size."""
    rows = read("cluster_noise")
    sizes = list(dict.fromkeys(row["ranks"] for row in rows))
    step_s = {(row["ranks"], row["case"], row["policy"]): float(row["step_s"]) for row in rows}
    body = (
        [
            case,
            *(
                f"{step_s[size, case, policy] / step_s[size, 'quiet', 'balanced']:.2f}"
                for size in sizes
                for policy in TAKEN
            ),
        ]
        for case in dict.fromkeys(row["case"] for row in rows)
    )
    heads = ["case", *(f"`{policy}`, {int(size):,} GPUs" for size in sizes for policy in TAKEN)]
    return markdown(heads, body)


def pipeline() -> str:
    """Walked time over the formula, mean and range."""
    rows = read("cluster_pipeline")
    cases = [
        case for case in dict.fromkeys((row["stages"], row["last_stage"]) for row in rows) if case[0] != "1"
    ]

    def cells(stages: str, last: str) -> list[str]:
        found = {row["policy"]: row for row in rows if (row["stages"], row["last_stage"]) == (stages, last)}
        ratios = (
            f"{float(row['walk_over_formula']):.3f} ({float(row['least']):.3f} to {float(row['most']):.3f})"
            for row in (found[policy] for policy in TAKEN)
        )
        shorter = float(found["static_cp"]["step_s"]) / float(found["balanced"]["step_s"])
        return [
            stages,
            f"x {float(last):.1f}",
            *ratios,
            _percent(found["balanced"]["idle"]),
            f"{shorter:.2f}",
        ]

    heads = ["stages", "last stage", *(f"`{policy}`" for policy in TAKEN)]
    heads += ["idle of `balanced`", "`static_cp` over `balanced`, walked"]
    return markdown(heads, (cells(*case) for case in cases), left=0)


def windows() -> str:
    """Idle share where each replica takes one window."""
    rows = read("cluster_windows")
    numbers = list(dict.fromkeys(row["replicas"] for row in rows))

    def cells(mix: str, window: str) -> list[str]:
        found = {row["replicas"]: row for row in rows if (row["mix"], row["window"]) == (mix, window)}
        eight = found["8"]
        return [
            f"{mix}, {int(window) // 1024}K",
            *(_percent(found[number]["idle"]) for number in numbers),
            _percent(eight["idle_attention_alone"]),
            _percent(eight["idle_balanced"]),
            f"{float(eight['idle_balanced_cp']):.1%}",
        ]

    published = {row["replicas"]: row["published_idle"] for row in rows}
    first = ["published (DistCA)", *(_percent(published[n]) if published[n] else "" for n in numbers)]
    heads = ["lengths, window", f"{numbers[0]} replicas", *numbers[1:]]
    heads += ["8, attention alone", "8, `balanced`", "8, `balanced` with CP"]
    cases = dict.fromkeys((row["mix"], row["window"]) for row in rows)
    return markdown(heads, [[*first, "", "", ""], *(cells(*case) for case in cases)])


def gather() -> str:
    """Share of the time spent gathering keys and values."""
    rows = read("cluster_gather")
    degrees = list(dict.fromkeys(row["cp_degree"] for row in rows))
    cases = dict.fromkeys((row["lengths"], row["tensor_parallel"]) for row in rows)
    names = {"one document": "one document of 128K"}

    def cells(lengths: str, tensor_parallel: str) -> list[str]:
        found = {
            row["cp_degree"]: row
            for row in rows
            if (row["lengths"], row["tensor_parallel"]) == (lengths, tensor_parallel)
        }
        shares = (f"{float(found[degree]['gather_share']):.1%}" for degree in degrees)
        return [names.get(lengths, lengths), tensor_parallel, *shares]

    published = {row["cp_degree"]: row["published_share"] for row in rows}
    first = ["published (DistCA)", "", *(_percent(published[d]) if published[d] else "" for d in degrees)]
    heads = ["lengths", "tensor parallel", f"CP {degrees[0]}", *degrees[1:]]
    return markdown(heads, [first, *(cells(*case) for case in sorted(cases))])


def wlb_imbalance() -> str:
    """Largest micro-batch x 4 / all of them, by packing."""
    rows = [row for row in read("cluster_wlb_llm") if row["imbalance"]]
    columns = [(c, s) for c in COMMUNICATION for s in ("by_sequence", "by_document")]

    def cells(packing: str) -> list[str]:
        mine = [row for row in rows if row["packing"] == packing]
        found = {(row["communication"], row["split"]): row for row in mine}
        published = mine[0]["published_imbalance"]
        delays = sorted({f"{float(row['delay']):.1f}" for row in mine})
        return [packing, published, *(_two(found[c], "imbalance") for c in columns), " to ".join(delays)]

    heads = ["packing", "published", *(_wlb_head(*column) for column in columns), "mean delay, iterations"]
    return markdown(heads, (cells(packing) for packing in dict.fromkeys(row["packing"] for row in rows)))


def wlb_speed() -> str:
    """Times as fast as windows as loaded, split as whole sequences."""
    rows = read("cluster_wlb_llm")
    wanted = [
        ("as loaded", "by_sequence"),
        ("as loaded", "by_document"),
        ("fixed length, greedy, 1 iteration", "by_sequence"),
        ("fixed length, greedy, 1 iteration", "by_document"),
        ("variable length, 2 queues", "by_sequence"),
        ("variable length, 2 queues", "by_document"),
        ("evenload, 1 iteration", "by_document"),
        ("evenload, 1 iteration, CP 1 or 2", "by_document"),
    ]
    splits = {"by_sequence": "as one sequence", "by_document": "by document"}

    def cells(packing: str, split: str) -> list[str]:
        found = {
            row["communication"]: row for row in rows if (row["packing"], row["split"]) == (packing, split)
        }
        first = found["hidden"]
        published = first["published_times_as_fast"]
        return [
            packing,
            splits[split],
            f"{float(published):.2f}" if published else "",
            *(_two(found[c], "times_as_fast") for c in COMMUNICATION),
            *(f"{float(found[c]['step_s']):.2f} s" for c in COMMUNICATION),
        ]

    heads = ["packing", "split over CP ranks", "published"]
    heads += [f"communication {name}" for name in COMMUNICATION.values()]
    heads += [f"step, {name}" for name in COMMUNICATION.values()]
    return paragraphs(markdown(heads, (cells(*case) for case in wanted), left=2), measured_on(rows))


def wlb_windows() -> str:
    """Times as fast as plain windows, by their length."""
    rows = read("cluster_wlb_windows")
    columns = [(c, name) for name in ("times_as_fast", "evenload_times_as_fast") for c in COMMUNICATION]

    def cells(window: str) -> list[str]:
        found = {row["communication"]: row for row in rows if row["window"] == window}
        published = f"{float(found['hidden']['published_mean']):.2f}"
        return [f"{int(window) // 1024}K", published, *(_two(found[c], name) for c, name in columns)]

    said = {"times_as_fast": "their way", "evenload_times_as_fast": "evenload"}
    heads = ["window", "published, mean of four models"]
    heads += [f"{said[name]}, communication {COMMUNICATION[c]}" for c, name in columns]
    return markdown(heads, (cells(window) for window in dict.fromkeys(row["window"] for row in rows)))


def megatron() -> str:
    """Simulated steps of Megatron-Core's plans beside the planner's."""
    rows = read("planner_megatron")
    body = (
        [
            f"{int(row['samples']):,} x {int(row['ranks'])}",
            *(
                f"{float(row[c]):.1f} s"
                for c in ("step_s", "megatron_step_s_without_barriers", "megatron_step_s")
            ),
            _two(row, "shorter"),
        ]
        for row in rows
    )
    heads = [
        "samples x ranks",
        "evenload",
        "Megatron-Core, no barriers",
        "with its barriers",
        "without, over evenload",
    ]
    return paragraphs(markdown(heads, body), measured_on(rows))


def _wlb_head(communication: str, split: str) -> str:
    return f"{COMMUNICATION[communication]}, {'one sequence' if split == 'by_sequence' else 'by document'}"


def speed() -> str:
    """CPU time of simulating."""
    rows = read("cluster_speed")
    body = (
        [
            f"{int(row['ranks']):,}",
            row["stages"],
            f"{int(row['steps']):,}",
            f"{float(row['cpu_s']):.1f} s",
            f"{float(row['cpu_ms_a_step']):.1f} ms",
            f"{float(row['walk_ms']):.2f} ms",
        ]
        for row in rows
    )
    heads = ["ranks", "stages", "steps", "CPU time", "a step", "of it the walk"]
    return paragraphs(markdown(heads, body, left=0), measured_on(rows))


def demo() -> str:
    """Predicted beside measured, of the two-rank run."""
    rows = read("cluster_demo")
    body = (
        [
            {"balanced": "evenload"}.get(row["policy"], row["policy"]),
            row["steps"],
            f"{float(row['simulated_s']):.1f} s",
            f"{float(row['measured_cpu_s']):.1f} s",
            _two(row, "measured_over_simulated"),
            f"{float(row['median_scatter']):.1%}",
        ]
        for row in rows
    )
    gains = (_gain(rows, clock) for clock in ("simulated_s", "measured_cpu_s"))
    heads = ["way", "steps", "simulated", "slower rank's CPU time", "measured / simulated"]
    heads += ["scatter of steps around it, median"]
    table = markdown(heads, [*body, ["packed over evenload", "", *gains, "", ""]])
    return paragraphs(table, measured_on(rows))


def _gain(rows: Rows, clock: str) -> str:
    took = {row["policy"]: float(row[clock]) for row in rows}
    return f"{took['packed'] / took['balanced']:.3f}"


def _two(row: Row | None, column: str) -> str:
    return f"{float(row[column]):.2f}" if row else ""


def _percent(share: str) -> str:
    return f"{float(share):.0%}"


TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "demo": demo,
        "speed": speed,
        "step": lambda: compared("cluster_scale"),
        "micro_batch": lambda: compared("cluster_sync"),
        "noise": noise,
        "pipeline": pipeline,
        "windows": windows,
        "gather": gather,
        "wlb_imbalance": wlb_imbalance,
        "wlb_speed": wlb_speed,
        "wlb_windows": wlb_windows,
        "megatron": megatron,
    }
)
"""Name of a table's marks -> what writes it."""
