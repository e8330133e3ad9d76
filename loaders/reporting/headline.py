"""The result of a report in a sentence."""

from __future__ import annotations

from loaders.reporting import words
from loaders.reporting.report import BEFORE, Report


def compared_with(report: Report) -> str | None:
    """The row that the headline compares with: packed but not balanced, or whatever can be planned."""
    names = [gain.over for gain in report.gains]
    return next((name for name in (BEFORE, *names) if name in names), None)


def headline(report: Report) -> str:
    """The result in a sentence."""
    name = compared_with(report)
    gain = None if name is None else report.gain_over(name)
    if gain is None or name is None:
        return "Only balanced plans can run these samples at all."
    what = {BEFORE: "packing without balance", "padded": "padding"}.get(name, words.name_of(name))
    if gain.times < 1.005:
        return f"Balancing would win nothing over {what} on this data."
    return f"Balanced steps would run {words.times(gain.times)} as fast as {what}."
