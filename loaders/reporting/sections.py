"""The page's sections, in its order."""

from __future__ import annotations

import html

from loaders.reporting import charts, comparing, grid, words
from loaders.reporting import timelines as lines
from loaders.reporting.lanes import Lanes
from loaders.reporting.plot import table
from loaders.reporting.report import Report
from loaders.reporting.snippet import loader_code

_LISTED = 25


def all_of(report: Report) -> str:
    """What to do, the data, what it costs, why, and how sure that is."""
    return "".join(
        section(report)
        for section in (recommended, data, ways, timelines, degrees, tried, cannot_fit, how_sure)
    )


def _section(anchor: str, title: str, lead: str, body: str) -> str:
    return f'<section id="{anchor}"><h2>{title}</h2><p class="soft">{lead}</p>{body}</section>'


def recommended(report: Report) -> str:
    """The settings and their reasons."""
    best, reasons = report.recommended.setting, report.recommended.reasons
    values = {
        "max_tokens": f"{best.max_tokens:,}",
        "cp_degrees": words.degrees(best.cp_degrees),
        "sync": best.sync,
    }
    items = "".join(
        f"<dt><code>{name}</code></dt><dd><b>{value}</b>{html.escape(reasons[name])}</dd>"
        for name, value in values.items()
    )
    call = loader_code(report.question, best)
    return _section(
        "recommended",
        "Recommended settings",
        "What you gave, unless another that fits is faster by more than 3 % (sync) or 1 % (cap); then the "
        "smallest cap and, always, the fewest degrees within 1 % of the fastest.",
        f'<dl class="choice">{items}</dl><pre>{html.escape(call)}</pre>',
    )


def data(report: Report) -> str:
    """How long the samples are."""
    profile = report.profile
    facts = [
        (f"{profile.samples:,}", "samples"),
        (words.short(profile.tokens), "tokens"),
        (f"{profile.mean:,.0f}", "mean"),
        *((f"{value:,}", f"{name[1:]} % have at most") for name, value in profile.quantiles.items()),
        (f"{profile.longest:,}", "longest"),
    ]
    if profile.empty:
        facts.append((f"{profile.empty:,}", "empty, left out"))
    items = "".join(f"<li><b>{figure}</b><span>{what}</span></li>" for figure, what in facts)
    return _section(
        "data",
        "Your data",
        "Long samples, few as they are, hold many of the tokens and decide how wide groups must be; short "
        "ones fill what is left.",
        f'<ul class="facts">{items}</ul>{charts.lengths_chart(profile, report.question.given)}',
    )


def ways(report: Report) -> str:
    """The comparison."""
    given = report.question.given
    cut = " The longest bar is cut off." if comparing.is_cut(report) else ""
    return _section(
        "ways",
        "What each way costs",
        f"The same {words.many(report.question.steps, 'step')}, divided in every way at today\u2019s "
        f"settings ({given.max_tokens:,} tokens a rank, sync {given.sync}) and, at the end, tuned and "
        f"recommended. Full bars: computing. Hatched: waiting. Lines: the middle 90 % of the steps.{cut}",
        comparing.ways(report),
    )


def timelines(report: Report) -> str:
    """What ranks do in one step."""
    both = [lanes for lanes in (report.before, report.after) if lanes is not None]
    most_s = max(lanes.time_s for lanes in both) * 1.02
    parts = [lines.lanes_chart(report, lanes, most_s, _lanes_title(lanes)) for lanes in both]
    return _section(
        "timelines",
        "One step, before and after",
        f"Step {report.picture_step + 1}, whose gain is the median one, as planned. A row is a rank, a block "
        "a micro-batch, its colour the number of ranks that share it.",
        f"{''.join(parts)}{lines.lanes_legend(report)}{lines.busy_chart(report)}",
    )


def _lanes_title(lanes: Lanes) -> str:
    return "Recommended" if lanes.name == "after" else f"Today: {words.NAMES[lanes.policy]}"


def degrees(report: Report) -> str:
    """How many ranks share what."""
    return _section(
        "degrees",
        "How wide samples are spread",
        "At the recommended settings every micro-batch picks its CP degree: the number of ranks that share "
        "its samples. What is a sliver of the samples can be a large part of the work.",
        charts.degrees_chart(report),
    )


def tried(report: Report) -> str:
    """The grid behind the recommendation."""
    return _section(
        "tried",
        "Settings that were tried",
        f"Balanced step time above the fastest that fits, over "
        f"{words.many(report.question.search_steps, 'step')}. Outlined: recommended. Underlined: today. "
        f"{grid.tried_words(report)}",
        grid.tried(report),
    )


def cannot_fit(report: Report) -> str:
    """Samples that no allowed degree can hold."""
    profile, given = report.profile, report.question.given
    title = "Samples that cannot fit"
    room = given.cp_degrees[-1] * given.max_tokens
    widest = given.cp_degrees[-1]
    ranks = f"{words.many(widest, 'rank')} {'holds' if widest == 1 else 'hold'}"
    if not profile.refused:
        lead = f"None: the longest has {profile.longest:,} tokens, {ranks} {room:,}."
        return _section("cannot-fit", title, lead, "")
    shown = profile.refused_listed[:_LISTED]
    rows = [[origin, f"{tokens:,}"] for origin, _, tokens in shown]
    have = "has" if profile.refused == 1 else "have"
    lead = (
        f"{profile.refused:,} of {words.many(profile.samples, 'sample')} {have} more than the {room:,} "
        f"tokens that {ranks}, together {words.share(profile.refused_tokens / profile.tokens)} of all "
        f"tokens. {_way_out(report)} Or let the loader drop, truncate or split them (<code>oversize=</code>)."
    )
    more = f"the {_LISTED} longest" if profile.refused > len(shown) else "all of them"
    listed = table(f"Where they are: {more}", ["sample", "tokens"], rows, folded=False)
    return _section("cannot-fit", title, lead, listed)


def _way_out(report: Report) -> str:
    longest, given = report.profile.longest, report.question.given
    cap, degree = -(-longest // given.cp_degrees[-1]), given.cp_degrees[-1]
    while degree * given.max_tokens < longest:
        degree *= 2
    way = f"The longest needs <code>--max-tokens {cap}</code>"
    return f"{way} or degree {degree}." if degree <= report.question.topology.ranks else f"{way}."


def how_sure(report: Report) -> str:
    """Intervals and what moves the result."""
    parts = [
        "How many times as fast as each other way. Dots: over all steps. Bars: 95 % interval, steps drawn "
        f"again with replacement ({words.many(report.question.steps, 'step')}, the same ones for every way)."
    ]
    fit = report.question.cost.report
    if fit is not None:
        parts.append(
            f"Pale bars also hold the cost model\u2019s error: it was fitted to {fit.rows:,} micro-batches "
            f"with a median error of {words.share(fit.median_error)} and a largest one of "
            f"{words.share(fit.max_error)}; "
            "errors are taken as independent between two ways, which is too wide."
        )
    else:
        parts.append(
            "The cost was not measured, so that its own error is not in these bars: run <code>evenload "
            "calibrate</code> before you rely on seconds."
        )
    if report.shifts:
        factors = " and ".join(f"{shift.attention:g}" for shift in report.shifts)
        parts.append(f"Diamonds: had attention cost {factors} times what is assumed.")
    return _section("how-sure", "How sure is that?", " ".join(parts), comparing.forest(report))
