"""``report.html``: one file that shows a run to somebody who was not there. No scripts, nothing fetched."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loaders.packing_job.atomic import whole_file
from loaders.packing_job.summary import ALWAYS, COUNTED

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
body { color: #1d2433; } h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th:first-child, td:first-child { text-align: left; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #dde2ea; }
.big { font-size: 1.6rem; font-weight: 600; } .cards { display: flex; gap: 2rem; flex-wrap: wrap; }
.cards div span { display: block; color: #5a6578; }
.bar { background: #e7ebf2; width: 16rem; height: .9rem; display: inline-block; }
.bar i { background: #2f6fde; height: 100%; display: block; }
code { background: #f0f2f6; padding: .1rem .3rem; } svg text { font-size: 11px; fill: #5a6578; }
"""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 240, 10, 18, 30
ROOM = 50
"""A number below the axis is no wider than this."""


def write_report(path: Path, manifest: dict[str, Any]) -> None:
    """Write the report of one cap."""
    with whole_file(path) as partial:
        partial.write_text(render(manifest))


def render(manifest: dict[str, Any]) -> str:
    """The page."""
    cap = manifest["max_tokens"]
    body = [
        f"<h1>Packed into {cap:,} tokens</h1>",
        _cards(manifest),
        "<h2>Rows by length</h2>",
        "<p>Light: share of the rows. Dark: share of the tokens. The line is the cap.</p>",
        histogram_svg(manifest["lengths_histogram"], cap),
        "<h2>What each way to fill rows would take</h2>",
        _strategies(manifest),
        "<h2>What became of the rows</h2>",
        _counts(manifest),
        _rejects(manifest),
        "<h2>How it was made</h2>",
        _arguments(manifest),
    ]
    title = f"Packed into {cap:,} tokens"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _cards(manifest: dict[str, Any]) -> str:
    waste = manifest["num_packs"] * manifest["max_tokens"] - manifest["num_tokens"]
    cards = [
        (f"{manifest['fill']:.2%}", "fill"),
        (f"{manifest['num_packs']:,}", "packs"),
        (f"{manifest['lower_bound']:,}", "packs no packing can go below"),
        (f"{manifest['num_tokens']:,}", "tokens"),
        (f"{waste:,}", "places left empty"),
    ]
    return '<div class="cards">' + "".join(_card(*card) for card in cards) + "</div>"


def _card(figure: str, what: str) -> str:
    return f'<div><b class="big">{figure}</b><span>{what}</span></div>'


def _strategies(manifest: dict[str, Any]) -> str:
    ways = dict(manifest["strategies"])
    ways[f"this run ({manifest['strategy']})"] = {"packs": manifest["num_packs"], "fill": manifest["fill"]}
    rows = [
        [
            html.escape(name),
            f"{found['packs']:,}",
            f"{found['fill']:.2%}",
            f'<span class="bar"><i style="width:{found["fill"]:.1%}"></i></span>',
        ]
        for name, found in ways.items()
    ]
    return table(["way", "packs", "fill", ""], rows)


def _counts(manifest: dict[str, Any]) -> str:
    totals = manifest["counts"]
    shown = [name for name in COUNTED if name in ALWAYS or totals.get(name)]
    rows = [
        [html.escape(name), *(f"{account[key]:,}" for key in shown)]
        for name, account in manifest["by_source"].items()
    ]
    if len(rows) > 1:
        rows.append(["all", *(f"{totals[key]:,}" for key in shown)])
    return table(["input", *(name.replace("_", " ") for name in shown)], rows)


def _rejects(manifest: dict[str, Any]) -> str:
    if not manifest["rejects"]:
        return ""
    rows = [[html.escape(one["origin"]), html.escape(one["reason"])] for one in manifest["rejects"]]
    return "<h2>Rows that could not be used</h2>" + table(["where", "why"], rows)


def _arguments(manifest: dict[str, Any]) -> str:
    rows = [
        [html.escape(name), f"<code>{html.escape(str(value))}</code>"]
        for name, value in manifest["arguments"].items()
    ]
    return table(
        ["setting", "value"], [*rows, ["evenload", f"<code>{html.escape(manifest['evenload'])}</code>"]]
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table of cells that are escaped already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def histogram_svg(histogram: dict[str, list[int]], cap: int) -> str:
    """Shares of rows and tokens over length, with the cap."""
    rows, tokens = histogram["rows"], histogram["tokens"]
    if not rows:
        return ""
    step = (WIDTH - LEFT) / len(rows)
    top = max(max(rows) / max(sum(rows), 1), max(tokens) / max(sum(tokens), 1))
    parts = []
    for series, colour, shift in ((rows, "#a9c4f5", 0.1), (tokens, "#2f6fde", 0.5)):
        total = max(sum(series), 1)
        for place, count in enumerate(series):
            title = f"{histogram['from'][place]:,} to {histogram['to'][place]:,}: {count:,}"
            parts.append(_bar(LEFT + step * (place + shift), step * 0.4, count / total / top, colour, title))
    every = max(1, len(rows) // 12)
    parts += [_label(LEFT + step * place, histogram["from"][place]) for place in range(0, len(rows), every)]
    at_cap = next((place for place, low in enumerate(histogram["from"]) if low > cap), len(rows))
    x = LEFT + step * at_cap
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT - BOTTOM}" stroke="#d1495b" stroke-width="2"/>'
    )
    anchor = "end" if x > WIDTH / 2 else "start"
    parts.append(
        f'<text x="{x + (-5 if anchor == "end" else 5):.1f}" y="12" text-anchor="{anchor}">cap {cap:,}</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img">{"".join(parts)}</svg>'


def _bar(x: float, width: float, share: float, colour: str, title: str) -> str:
    height = (HEIGHT - TOP - BOTTOM) * share
    return (
        f'<rect x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}"><title>{title}</title></rect>'
    )


def _label(x: float, number: int) -> str:
    anchor, x = ("start", x) if x < WIDTH - ROOM else ("end", WIDTH)
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="{anchor}">{number:,}</text>'
