"""The settings that were tried, as two tables in colour."""

from __future__ import annotations

import html

from balancer.planning.problem import SYNC_MODES
from loaders.reporting import words
from loaders.reporting.question import Setting
from loaders.reporting.report import Report
from loaders.reporting.search import FITS, HOMELESS, TOO_LARGE, UNKNOWN, Candidate, caps

_SHORT = {HOMELESS: "\u2013", TOO_LARGE: "mem", UNKNOWN: "?"}
_WORDS = {
    HOMELESS: "\u2013: some samples would not fit.",
    TOO_LARGE: "<em>mem</em>: beyond the estimated memory.",
    UNKNOWN: "?: not known whether memory holds it.",
}
_SYNC = {"step": "Ranks meet once a step", "micro_batch": "Ranks meet in every micro-batch"}
_PALE = 0.5
"""A step this much longer than the fastest has no colour left."""


def tried(report: Report) -> str:
    """One table for each sync mode; caps and degrees that hold the samples nowhere are left out."""
    return f'<div class="tried">{"".join(_heat(report, sync) for sync in SYNC_MODES)}</div>'


def tried_words(report: Report) -> str:
    """What the marks in the cells mean, as far as there are any."""
    shown = {
        one.verdict
        for one in report.tried
        if one.setting.max_tokens in _caps(report) and one.setting.cp_degrees in _columns(report)
    }
    return " ".join(sentence for verdict, sentence in _WORDS.items() if verdict in shown)


def _caps(report: Report) -> list[int]:
    held = {one.setting.max_tokens for one in report.tried if one.verdict != HOMELESS}
    return [cap for cap in caps(report.question) if cap in held]


def _columns(report: Report) -> list[tuple[int, ...]]:
    held = {one.setting.cp_degrees for one in report.tried if one.verdict != HOMELESS}
    return sorted(held, key=len)


def _heat(report: Report, sync: str) -> str:
    cells = {one.setting: one for one in report.tried}
    columns = _columns(report)
    head = "".join(f'<th scope="col">{column[-1]}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{words.tokens(cap)}</th>'
        + "".join(_cell(report, cells[Setting(cap, column, sync)]) for column in columns)
        + "</tr>"
        for cap in _caps(report)
    )
    return (
        f"<figure><h3>{_SYNC[sync]}</h3>"
        f'<table class="heat"><caption>sync {sync}; rows: max_tokens, columns: widest degree</caption>'
        f'<thead><tr><th scope="col"><span class="hidden">max_tokens</span></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></figure>"
    )


def _cell(report: Report, one: Candidate) -> str:
    kinds, told = [], []
    if one.setting == report.recommended.setting:
        kinds.append("pick")
        told.append("recommended")
    if one.setting == report.question.given:
        kinds.append("given")
        told.append("today")
    if one.step_s is not None:
        told.append(f"{words.duration(one.step_s)} a step")
    if one.reason:
        told.append(one.reason)
    heat = 0.0
    if one.verdict == FITS and one.step_s is not None:
        slower = one.step_s / report.recommended.fastest_s - 1
        heat = max(0.0, 1 - slower / _PALE)
        text = _above(slower)
    else:
        kinds.append("no")
        text = _SHORT.get(one.verdict, "\u2013")
    reason = html.escape("; ".join(told), quote=True)
    return (
        f'<td class="{" ".join(kinds)}" style="--part:{100 * heat:.0f}" title="{reason}">{text}'
        f'<span class="hidden"> {reason}</span></td>'
    )


def _above(slower: float) -> str:
    if slower < 5e-5:
        return "best"
    return f"+{100 * slower:.0f} %" if slower >= 0.0995 else f"+{100 * slower:.1f} %"
