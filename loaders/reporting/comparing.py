"""Ways and gains beside each other."""

from __future__ import annotations

import html

from loaders.reporting import words
from loaders.reporting.gains import Gain
from loaders.reporting.plot import nice_ticks, table
from loaders.reporting.report import Report, Row

_CUT_FROM = 1.6
"""A step this many times as long as the longest of the others would make all other bars too short to read."""

_QUANTILES = ("step_time_s", "step_time_p5_s", "step_time_p50_s", "step_time_p95_s", "step_time_p99_s")


def shown_rows(report: Report) -> list[Row]:
    """Rows worth showing: balancing today's settings is left out where the recommended ones are the same."""
    same = report.best.setting == report.question.given
    return [row for row in report.rows if not (same and row.name == "balanced")]


def ways(report: Report) -> str:
    """Every policy: what its step takes, how much of that is waiting, and how many times as long it is."""
    end_s = _end_s(report)
    items = "".join(_way(report, row, end_s) for row in shown_rows(report))
    ticks = "".join(
        f'<i class="tick x{" first" if not value else ""}" style="left:{value / end_s:.3%}">'
        f"{words.tick_duration(value, end_s)}</i>"
        for value in nice_ticks(end_s, 4)
    )
    scale = f'<li class="scale" aria-hidden="true"><span></span><span class="lane">{ticks}</span></li>'
    return f'<ul class="ways">{items}{scale}</ul>{_ways_table(report)}'


def is_cut(report: Report) -> bool:
    """Whether the bars of padding go beyond the scale."""
    return any(row.numbers.get("step_time_s", 0.0) > _end_s(report) for row in report.rows)


def _end_s(report: Report) -> float:
    """Seconds at the right end of the bars."""
    longest = {row.name: max(row.numbers.get(name, 0.0) for name in _QUANTILES[:4]) for row in report.rows}
    others = max((value for name, value in longest.items() if name != "padded"), default=0.0)
    all_of_them = max(longest.values())
    mean = next((row.numbers.get("step_time_s", 0.0) for row in report.rows if row.name == "padded"), 0.0)
    return (others * 1.15 if others and mean > _CUT_FROM * others else all_of_them) or 1.0


def _way(report: Report, row: Row, end_s: float) -> str:
    name = words.name_of(row.name)
    head = f'<span><strong>{name}</strong><span class="meaning">{html.escape(_meaning(row))}</span></span>'
    if "error" in row.numbers:
        reason = html.escape(row.numbers["error"])
        return f'<li>{head}<span class="why">cannot plan: {reason}</span></li>'
    numbers, gain = row.numbers, report.gain_over(row.name)
    beside = "" if gain is None else f" {words.times(gain.times)} as long"
    mfu = "" if numbers["mfu"] is None else f", MFU {words.share(numbers['mfu'])}"
    return (
        f'<li class="way{" best" if row is report.best else ""}">{head}{_track(name, row, end_s)}'
        f'<span class="numbers"><b>{words.duration(numbers["step_time_s"])}</b>{beside}'
        f"<span>waits {words.share(numbers['idle'])}{mfu}</span></span></li>"
    )


def _track(name: str, row: Row, end_s: float) -> str:
    numbers = row.numbers
    step, waits = numbers["step_time_s"], numbers["idle"]
    low, high = numbers["step_time_p5_s"], numbers["step_time_p95_s"]
    told = html.escape(
        f"{name}: {words.duration(step)} a step, 90 % of the steps take {words.duration(low)} to "
        f"{words.duration(high)}, ranks wait {words.share(waits)}",
        quote=True,
    )
    busy = step * (1 - waits)
    tips = "".join(f'<i class="tip" style="left:{end / end_s:.3%}"></i>' for end in (low, high))
    return (
        f'<span class="track{" cut" if max(step, high) > end_s else ""}" role="img" aria-label="{told}" '
        f'title="{told}"><i class="busy" style="width:{busy / end_s:.3%}"></i>'
        f'<i class="waits" style="left:{busy / end_s:.3%};width:{(step - busy) / end_s:.3%}"></i>'
        f'<i class="spread" style="left:{low / end_s:.3%};width:{(high - low) / end_s:.3%}"></i>{tips}</span>'
    )


def _meaning(row: Row) -> str:
    meaning = words.MEANINGS.get(row.name, row.policy)
    if row.name != "tuned_static":
        return meaning
    return f"{meaning}: degree {row.setting.cp_degrees[0]}, {row.setting.max_tokens:,} tokens"


def _ways_table(report: Report) -> str:
    head = ["way", "step", "p5", "p50", "p95", "p99", "waits", "MFU", "tokens/s", "memory", "cap", "degrees"]
    return table("All numbers as a table", head, [_cells(row) for row in shown_rows(report)])


def _cells(row: Row) -> list[str]:
    numbers, name = row.numbers, words.name_of(row.name)
    setting = [f"{row.setting.max_tokens:,}", words.degrees(row.setting.cp_degrees)]
    if "error" in numbers:
        return [name, "cannot plan", *[""] * 8, *setting]
    return [
        name,
        *(words.duration(numbers[quantile]) for quantile in _QUANTILES),
        words.share(numbers["idle"]),
        "unknown" if numbers["mfu"] is None else words.share(numbers["mfu"]),
        f"{numbers['tokens_per_s']:,.0f}",
        f"{numbers['memory']:.0%}",
        *setting,
    ]


def forest(report: Report) -> str:
    """Gains with their intervals, and what another cost of attention would do to them."""
    shown = {row.name for row in shown_rows(report)}
    gains = [gain for gain in report.gains if gain.over in shown]
    if not gains:
        return ""
    ends = [(gain.times, gain.low, gain.high, gain.low_with_fit, gain.high_with_fit) for gain in gains]
    values = [value for row in ends for value in row if value is not None]
    values += [value for shift in report.shifts for value in shift.times.values()]
    low, high = min([*values, 1.0]), max([*values, 1.1])
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
    items = "".join(_forest_row(report, gain, low, high) for gain in gains)
    ticks = "".join(
        f'<i class="tick x" style="left:{(value - low) / (high - low):.3%}">{words.tick(value)}\u00d7</i>'
        for value in nice_ticks(high, 5)
        if value >= low
    )
    scale = f'<li class="scale" aria-hidden="true"><span></span><span class="lane">{ticks}</span></li>'
    return f'<ul class="forest">{items}{scale}</ul>{_forest_table(report, gains)}'


def _forest_table(report: Report, gains: list[Gain]) -> str:
    fitted = report.question.cost.report is not None
    head = ["over", "times as fast", "95 %, steps"]
    head += ["95 %, steps and fit"] if fitted else []
    head += [f"attention \u00d7{shift.attention:g}" for shift in report.shifts]
    rows = [
        [words.name_of(gain.over), words.times(gain.times), words.interval(gain.low, gain.high)]
        + ([words.interval(gain.low_with_fit, gain.high_with_fit)] if fitted else [])
        + [words.times(s.times[gain.over]) if gain.over in s.times else "" for s in report.shifts]
        for gain in gains
    ]
    return table("Gains as a table", head, rows)


def _forest_row(report: Report, gain: Gain, low: float, high: float) -> str:
    def at(value: float) -> str:
        return f"left:{(value - low) / (high - low):.3%}"

    def bar(kind: str, left: float | None, right: float | None) -> str:
        if left is None or right is None:
            return ""
        return f'<i class="{kind}" style="{at(left)};width:{(right - left) / (high - low):.3%}"></i>'

    shifts = "".join(
        f'<i class="shift" style="{at(shift.times[gain.over])}" title="attention \u00d7{shift.attention:g}: '
        f'{words.times(shift.times[gain.over])}"></i>'
        for shift in report.shifts
        if gain.over in shift.times
    )
    name, spread = words.name_of(gain.over), words.interval(gain.low, gain.high)
    told = f"{words.times(gain.times)} as fast as {name}, 95 % interval {spread}"
    return (
        f'<li><span>{name}</span><span class="lane" role="img" aria-label="{html.escape(told, quote=True)}">'
        f'<i class="one" style="{at(1.0)}"></i>{bar("fit", gain.low_with_fit, gain.high_with_fit)}'
        f'{bar("step", gain.low, gain.high)}{shifts}<i class="dot" style="{at(gain.times)}"></i></span>'
        f'<span class="numbers"><b>{words.times(gain.times)}</b> {spread}</span></li>'
    )
