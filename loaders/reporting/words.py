"""Numbers and names as people read them."""

from __future__ import annotations

NAMES = {
    "padded": "padded",
    "equal_samples": "packed, not balanced",
    "equal_tokens": "equal tokens",
    "sum_of_squares": "equal squares",
    "karmarkar_karp": "Karmarkar-Karp on time",
    "static_cp": "equal time",
    "balanced": "evenload, your settings",
    "tuned_static": "best tuned single degree",
    "recommended": "evenload, recommended",
}
"""Rows of the comparison in words."""

MEANINGS = {
    "padded": "samples dealt round, micro-batches padded to their longest",
    "equal_samples": "samples dealt round as a distributed sampler does, then packed",
    "equal_tokens": "longest first, to the group with the fewest tokens",
    "sum_of_squares": "longest first, to the group with the least squared length",
    "karmarkar_karp": "largest differencing on predicted time, one degree a step",
    "static_cp": "longest first, to the group with the least predicted time, one degree a step",
    "balanced": "balanced at today's settings",
    "tuned_static": "one degree and cap for the whole run, searched, balanced by predicted time",
    "recommended": "balanced at the recommended settings",
}


def duration(seconds: float) -> str:
    """``1.93 s``, ``84 ms``, ``2 min 5 s``."""
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes:,} min {rest} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if seconds >= scale * 0.9995 or unit == "\u00b5s":
            return f"{three(seconds / scale)} {unit}"
    raise AssertionError("microseconds take whatever is left")


def three(number: float) -> str:
    """Three digits that count, never with an exponent."""
    if number == 0:
        return "0"
    if abs(number) >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"


def short(number: float) -> str:
    """``950``, ``1.24 M``."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            return f"{three(number / limit)} {unit}"
    return f"{number:,.0f}"


def tick(number: float) -> str:
    """A round number as it is: ``5``, ``2.5``, ``1,000``."""
    return f"{number:,.3f}".rstrip("0").rstrip(".")


def tick_share(part: float) -> str:
    """A round share: ``5 %``."""
    return f"{tick(100 * part)} %"


def tick_duration(seconds: float, most_s: float) -> str:
    """A round time in the unit of its axis: ``5 s``, ``20 ms``; 0 has none."""
    if seconds == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if most_s >= scale * 0.9995 or unit == "\u00b5s":
            return f"{tick(seconds / scale)} {unit}"
    raise AssertionError("microseconds take whatever is left")


def share(part: float) -> str:
    """``4.1 %``; tiny shares do not become zero."""
    if 0 < part < 0.0005:
        return "< 0.1 %"
    return f"{part:.1%}".replace("%", " %")


def many(count: int, what: str) -> str:
    """``1 step``, ``40 steps``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def times(ratio: float) -> str:
    """``1.77\u00d7``."""
    return f"{ratio:.2f}\u00d7"


def interval(low: float | None, high: float | None) -> str:
    """``1.70 to 1.84``; a dash where one step says nothing on the spread."""
    return "\u2013" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def tokens(count: int) -> str:
    """``16K`` where that is exact, else ``16,000``."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale:,}{unit}"
    return f"{count:,}"


def degrees(cp_degrees: tuple[int, ...]) -> str:
    """``1, 2, 4``."""
    return ", ".join(map(str, cp_degrees))


def name_of(row: str) -> str:
    """A row of the comparison."""
    return NAMES.get(row, row)
