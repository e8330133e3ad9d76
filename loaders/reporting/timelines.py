"""Timelines of one step: what some ranks do, and how long all of them compute."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaders.reporting import words
from loaders.reporting.charts import shade
from loaders.reporting.lanes import SOME_RANKS, Lanes
from loaders.reporting.plot import SIZE, Tick, box, legend, nice_ticks, plot, table, upright
from loaders.reporting.report import Report

_NAMES = {"before": "today", "after": "recommended"}
_KINDS = {"before": "rival", "after": "ours"}


def lanes_chart(report: Report, lanes: Lanes, most_s: float, title: str) -> str:
    """What ranks do during the step."""
    degrees = report.question.given.cp_degrees
    count = lanes.shown.size
    shapes = [_lane(lanes, lane, most_s, degrees) for lane in range(count)]
    shapes.append(upright(lanes.time_s / most_s, "stop"))
    every = max(1, count // 4)
    some = f"{count} of {lanes.ranks:,}, from the slowest to the fastest"
    shown = "all" if count == lanes.ranks else some
    ends = Tick(lanes.time_s / most_s, f"step ends, {words.duration(lanes.time_s)}")
    said = f"{words.duration(lanes.time_s)} a step, ranks wait {words.share(lanes.idle)} of the time"
    chart = plot(
        "".join(shapes),
        label=f"{title}: timeline of ranks ({shown}); {said}",
        height=max(4 + (8 if count <= SOME_RANKS else 6) * count, 60),
        x=_time_ticks(most_s),
        y=[Tick(1 - (lane + 0.5) / count, f"{lanes.shown[lane]:,}") for lane in range(0, count, every)],
        marks=[ends],
        y_title=f"rank ({shown})",
        x_title="time from the start of the step",
    )
    return (
        f'<figure><h3>{html.escape(title)}</h3><div class="soft small">{said}</div>'
        f"{chart}{_lanes_table(lanes)}</figure>"
    )


def _lane(lanes: Lanes, lane: int, most_s: float, degrees: Sequence[int]) -> str:
    height = 1 / lanes.shown.size
    top, thick = (lane + 0.12) * height, 0.76 * height
    mine = np.flatnonzero(lanes.lane == lane)
    gap = 0.0012 if mine.size < 60 else 0.0
    parts = [box(0, lanes.time_s / most_s, top, thick, "idle")]
    for n in mine.tolist():
        start, stop = float(lanes.start_s[n]) / most_s, float(lanes.end_s[n]) / most_s
        kind = shade(int(lanes.cp_degree[n]), degrees)
        parts.append(box(start, max(stop - start - gap, 0.0006), top, thick, kind))
    number, busy, waits, count = _rank_words(lanes, lane)
    batches = "micro-batch" if str(count) == "1" else "micro-batches"
    told = f"rank {number}: computes {busy} in {count} {batches}, waits {waits}"
    return f"<g><title>{html.escape(told)}</title>{''.join(parts)}</g>"


def _rank_words(lanes: Lanes, lane: int) -> list[str]:
    """Rank, time that it computes, share that it waits, micro-batches."""
    busy = float(lanes.shown_busy_s[lane])
    return [
        f"{lanes.shown[lane]:,}",
        words.duration(busy),
        words.share(max(1 - busy / lanes.time_s, 0)),
        f"{lanes.shown_micro_batches[lane]:,}",
    ]


def _lanes_table(lanes: Lanes) -> str:
    rows = [_rank_words(lanes, lane) for lane in range(lanes.shown.size)]
    return table("Ranks as a table", ["rank", "computes", "waits", "micro-batches"], rows)


def lanes_legend(report: Report) -> str:
    """Colours of both timelines."""
    used = {int(d) for lanes in (report.before, report.after) if lanes for d in np.unique(lanes.cp_degree)}
    degrees = report.question.given.cp_degrees
    entries = [(shade(d, degrees), f"{words.many(d, 'rank')} a sample") for d in sorted(used)]
    return legend([*entries, ("idle", "waiting")])


def _time_ticks(most_s: float) -> list[Tick]:
    values = nice_ticks(most_s, 5)
    return [Tick(value / most_s, words.tick_duration(value, most_s)) for value in values]


def busy_chart(report: Report) -> str:
    """How long each rank computes, longest first."""
    both = [lanes for lanes in (report.before, report.after) if lanes is not None]
    most = max(lanes.time_s for lanes in both) * 1.05
    shapes = [_curve(lanes.busy_curve_s / most, f"line {_KINDS[lanes.name]}") for lanes in both]
    told = "; ".join(
        f"{_NAMES[lanes.name]}: slowest rank {words.duration(float(lanes.busy_curve_s[0]))}, fastest "
        f"{words.duration(float(lanes.busy_curve_s[-1]))}"
        for lanes in both
    )
    chart = plot(
        "".join(shapes),
        label=f"Computing time of all ranks, longest first. {told}",
        height=190,
        x=[Tick(place, words.tick_share(place)) for place in (0, 0.25, 0.5, 0.75, 1)],
        y=[Tick(value / most, words.tick_duration(value, most)) for value in nice_ticks(most, 4)],
        y_title="time that a rank computes",
        x_title="ranks, slowest first",
    )
    entries = "".join(
        f'<li class="{_KINDS[lanes.name]}"><i class="stroke"></i>{_NAMES[lanes.name]}</li>' for lanes in both
    )
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    rows = [
        [_NAMES[lanes.name]]
        + [words.duration(float(np.quantile(lanes.busy_curve_s, 1 - share))) for share in shares]
        for lanes in both
    ]
    head = ["", "slowest", "25 %", "50 %", "75 %", "fastest"]
    return (
        f"<figure><h3>All {words.many(report.question.topology.ranks, 'rank')}</h3>{chart}"
        f'<ul class="legend">{entries}</ul>'
        f"{table('Computing times as a table', head, rows)}</figure>"
    )


def _curve(heights: NDArray[np.float64], kind: str) -> str:
    """A falling step curve. heights: [Q] in 0..1, evenly spread."""
    wide = SIZE / heights.size
    points = [f"M0 {SIZE * (1 - heights[0]):.1f}"]
    for number, height in enumerate(heights.tolist()):
        points.append(f"V{SIZE * (1 - height):.1f}H{wide * (number + 1):.1f}")
    return f'<path class="{kind}" d="{"".join(points)}"/>'
