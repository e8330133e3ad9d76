"""The tables of ``evenload status``, from plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from rich.table import Table

from loaders.packing_job.progress import short

MOST_ROWS = 24
"""Sources and ranks that are shown one by one."""


def tables(found: Mapping[str, Any]) -> Iterator[Table | str]:
    """A line on the cluster, then three tables a job: actors, sources, ranks."""
    alive = [node for node in found["nodes"] if node["alive"]]
    lost = len(found["nodes"]) - len(alive)
    store = found["store"]
    yield (
        f"{found['address']}: {len(alive)} nodes" + (f" ({lost} lost)" if lost else "") + ", "
        f"{sum(node['cpus'] for node in alive):g} CPUs, object store "
        f"{_bytes(store['used_bytes'])} of {_bytes(store['total_bytes'])}"
    )
    if not found["jobs"]:
        yield 'No loader with engine="ray" runs here.'
    for job in found["jobs"]:
        yield actors_table(job)
        if job["sources"]:
            yield sources_table(job)
        if job["ranks"]:
            yield ranks_table(job)


def actors_table(job: Mapping[str, Any]) -> Table:
    """A row an actor: how busy it is, what waits, what flows."""
    told = (("busy", "busy"), ("waits", "waiting"), ("queued", "waiting_bytes"), ("in/s", "in_bytes_per_s"))
    table = Table(title=f"job {job['job']}")
    table.add_column("actor", no_wrap=True)
    for name in ("memory", *(name for name, _ in told), "out/s", "skipped"):
        table.add_column(name, justify="right", no_wrap=True)
    for role in ("reader", "builder", "catalogs"):
        for actor in job[f"{role.removesuffix('s')}s"]:
            name = f"{role} {actor['name']}".strip()
            if not actor["answers"]:
                table.add_row(name, "no answer", style="red")
                continue
            out = actor.get("out_bytes_per_s", actor.get("bytes_per_s"))
            table.add_row(
                name,
                _told(actor, "memory_bytes"),
                *(_told(actor, key) for _, key in told),
                "" if out is None else _bytes(out),
                str(actor.get("faults") or ""),
            )
    return table


def sources_table(job: Mapping[str, Any]) -> Table:
    """Tokens that readers gave, the busiest source first."""
    table = Table("source")
    table.add_column("tokens/s", justify="right")
    table.add_column("tokens", justify="right")
    sources = job["sources"]
    for name, told in islice(sources.items(), MOST_ROWS):
        table.add_row(name, short(told["tokens_per_s"]), short(told["tokens"]))
    if len(sources) > MOST_ROWS:
        rest = list(sources.values())[MOST_ROWS:]
        sums = [sum(told[key] for told in rest) for key in ("tokens_per_s", "tokens")]
        table.add_row(f"{len(rest)} more", *map(short, sums))
    if len(sources) > 1:
        sums = [sum(told[key] for told in sources.values()) for key in ("tokens_per_s", "tokens")]
        table.add_row("all", *map(short, sums), style="bold")
    return table


def ranks_table(job: Mapping[str, Any]) -> Table:
    """How far ranks are, those that waited longest for batches first."""
    table = Table("rank")
    table.add_column("step", justify="right")
    table.add_column("waited for batches", justify="right")
    ranks = sorted(job["ranks"].items(), key=lambda item: -item[1]["wait_s"])
    for name, told in ranks[:MOST_ROWS]:
        table.add_row(name, f"{told['step']:,}", f"{told['wait_s']:.1f} s")
    if len(ranks) > MOST_ROWS:
        table.add_row(f"{len(ranks) - MOST_ROWS} more", "", "less")
    return table


def _told(actor: Mapping[str, Any], key: str) -> str:
    value = actor.get(key)
    if value is None:
        return ""
    if key == "busy":
        return f"{value:.0%}"
    return _bytes(value) if "bytes" in key else f"{value}"


def _bytes(amount: float) -> str:
    return f"{short(amount)}B"
