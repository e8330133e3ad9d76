"""The page: one HTML file that needs nothing else, reads well and prints."""

from __future__ import annotations

import html
import json
from importlib.metadata import version

from loaders.reporting import sections, words
from loaders.reporting.assumptions import arbitrary, assumptions
from loaders.reporting.headline import compared_with, headline
from loaders.reporting.report import Report, Row, as_json
from loaders.reporting.style import CSS

_FEW_STEPS = 8
_OFTEN, _MUCH = 0.25, 0.1
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The whole page, 100 to 300 KB: without scripts, and nothing in it is fetched."""
    data = json.dumps(as_json(report)).replace("</", "<\\/")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>evenload report: {html.escape(files(report))}</title><style>{CSS}</style></head>"
        f"<body>{_header(report)}<main>{sections.all_of(report)}{_assumptions(report)}</main>{_footer()}"
        f'<script type="application/json" id="numbers">{data}</script></body></html>\n'
    )


def files(report: Report) -> str:
    """The names of the files, without their folders."""
    names = [file.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] for file in report.question.files]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _header(report: Report) -> str:
    question = report.question
    return (
        f'<header><p class="kicker">evenload report</p><h1>{html.escape(headline(report))}</h1>'
        f'<p class="lead">Predicted for {html.escape(files(report))} on {html.escape(cluster(report))}, '
        f"{question.global_batch_size:,} samples a step, over {words.many(question.steps, 'step')}.</p>"
        f"{_cards(report)}{_notes(report)}</header>"
    )


def cluster(report: Report) -> str:
    """The cluster and the model in words."""
    question, topology = report.question, report.question.topology
    gpus = topology.ranks * topology.pipeline_stages * question.tensor_parallel
    what = words.many(topology.ranks, "data rank")
    if question.model:
        what += f" of {question.gpu.upper()}"
    parallel = ((question.tensor_parallel, "tensor"), (topology.pipeline_stages, "pipeline"))
    shared = [f"{count}-way {name} parallel" for count, name in parallel if count > 1]
    if shared:
        what += f", {' and '.join(shared)} ({gpus:,} GPUs)"
    return f"{what}, training {question.model}" if question.model else what


def _cards(report: Report) -> str:
    best = report.best.numbers
    against = {
        "equal_samples": "as fast as packing without balance",
        "tuned_static": "as fast as the best tuned single degree",
        "padded": "as fast as padding",
    }
    cards: list[str] = []
    for name, what in against.items():
        gain = report.gain_over(name)
        if gain is not None:
            spread = "" if gain.low is None else f"95 %: {words.interval(gain.low, gain.high)}"
            cards.append(_card(words.times(gain.times), what, spread, first=not cards))
    now = report.row(compared_with(report) or "")
    cards.append(_change(now, best["idle"], "idle", "of GPU time is waiting"))
    if best["mfu"] is not None:
        cards.append(_change(now, best["mfu"], "mfu", "of the GPUs\u2019 peak (MFU)"))
    if not arbitrary(report):
        step = f"{words.duration(best['step_time_s'])} a step"
        cards.append(_card(words.short(best["tokens_per_s"]), "tokens/s on all ranks", step))
    columns = 3 if len(cards) in (3, 5, 6) else len(cards)
    return f'<div class="cards" style="--n:{columns}">{"".join(cards)}</div>'


def _card(figure: str, what: str, beside: str, *, first: bool = False) -> str:
    return (
        f'<div class="card{" first" if first else ""}"><b>{figure}</b><span>{what}</span>'
        f'<span class="soft">{beside}</span></div>'
    )


def _change(now: Row | None, after: float, name: str, what: str) -> str:
    before = None if now is None else now.numbers.get(name)
    return _card(words.share(after), what, "" if before is None else f"today {words.share(before)}")


def _notes(report: Report) -> str:
    notes = (_generic_note, _beyond_note, _memory_note, _refused_note, _held_up_note)
    found = [note(report) for note in notes]
    if report.question.steps < _FEW_STEPS:
        steps = words.many(report.question.steps, "step")
        found.append(f"{steps} say little about the spread. Compare more with <code>--steps</code>.")
    return "".join(f'<p class="note">{note}</p>' for note in found if note)


def _generic_note(report: Report) -> str:
    if not arbitrary(report):
        return ""
    return (
        "No model was given: seconds are those of a generic decoder and arbitrary, ratios are not. Give "
        "<code>--model config.json</code> or <code>--cost</code>."
    )


def _beyond_note(report: Report) -> str:
    """What a fitted cost is asked about that was not measured."""
    cost = report.question.cost
    degrees = [d for d in report.question.given.cp_degrees if cost.degrees and d not in cost.degrees]
    longest = report.profile.longest_admitted
    found = []
    if degrees:
        found.append(f"degrees {words.degrees(tuple(degrees))}")
    if cost.max_length is not None and longest > cost.max_length:
        found.append(f"samples of {longest:,} tokens (measured up to {cost.max_length:,})")
    if not found:
        return ""
    return f"The cost was not measured for {' and '.join(found)}: there it is an extrapolation."


def _memory_note(report: Report) -> str:
    memory, given, ranks = report.question.memory, report.question.given, report.question.topology.ranks
    if memory is None:
        return ""
    used = memory.used_bytes(given.max_tokens, given.sync, ranks)
    if used <= memory.room_bytes():
        return ""
    return (
        f"By estimate {given.max_tokens:,} tokens on a rank take {used / 1e9:,.0f} GB where there is room "
        f"for {memory.room_bytes() / 1e9:,.0f} GB. They are believed to fit, since they were asked for. If "
        "they do not, share the model among more GPUs (<code>--tensor-parallel</code>, "
        "<code>--pipeline-stages</code>) or lower <code>--max-tokens</code>."
    )


def _refused_note(report: Report) -> str:
    profile = report.profile
    if not profile.refused:
        return ""
    return (
        f"{words.many(profile.refused, 'sample')} with "
        f"{words.share(profile.refused_tokens / profile.tokens)} "
        "of all tokens cannot run at these settings and are left out of the times: "
        '<a href="#cannot-fit">which, and what would hold them</a>.'
    )


def _held_up_note(report: Report) -> str:
    idle = report.best.numbers["idle"]
    if report.held_up < _OFTEN or idle < _MUCH:
        return ""
    widest = words.many(report.recommended.setting.cp_degrees[-1], "rank")
    return (
        f"In {words.share(report.held_up)} of the steps the longest sample takes nearly all of the time "
        f"even on {widest}, and the others wait: {words.share(idle)} of GPU time. No plan changes that; more "
        "samples a step, wider <code>--cp-degrees</code> or shorter samples do."
    )


def _assumptions(report: Report) -> str:
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in assumptions(report))
    return f'<section id="assumptions"><h2>Assumptions</h2><ul class="plain">{listed}</ul></section>'


def _footer() -> str:
    return (
        f"<footer>Made by evenload {html.escape(version('evenload'))}. The numbers are in this file as JSON, "
        "in the element <code>numbers</code>; <code>evenload report --json</code> prints them.</footer>"
    )
