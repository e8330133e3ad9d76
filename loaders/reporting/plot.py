"""The frame of a chart: shapes in a stretched SVG, words in HTML above it, so that no text is ever scaled."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SIZE = 1000
"""Both axes of a chart's shapes run from 0 to this."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    place: float
    """0..1 along the axis, from the left or from the bottom."""
    text: str
    minor: bool = False
    """Left out on narrow screens."""


def plot(
    shapes: str,
    *,
    label: str,
    height: int,
    x: Sequence[Tick],
    y: Sequence[Tick],
    marks: Sequence[Tick] = (),
    y_title: str,
    x_title: str,
) -> str:
    """A chart.

    Args:
        shapes: SVG in units of `SIZE`, stretched to the width that there is.
        label: what the chart shows, for those who do not see it.
        height: in pixels.
        x: labels below.
        y: labels on the left, each with a line across.
        marks: labels above.
        y_title: quantity and unit of the y axis, and of the x axis.
        x_title: the same of the x axis.
    """
    lines = "".join(_line(0, SIZE, _down(tick.place), "grid") for tick in y)
    words = [_word("y", f"bottom:{tick.place:.3%}", tick) for tick in y]
    words += [_word(f"x{_edge(tick.place)}", f"left:{tick.place:.3%}", tick) for tick in x]
    words += [
        f'<span class="mark{" end" if len(mark.text) > 3 else ""}" style="left:{mark.place:.3%}">'
        f"{html.escape(mark.text)}</span>"
        for mark in marks
    ]
    return (
        f'<p class="title{" marked" if marks else ""}">{html.escape(y_title)}</p>'
        f'<div class="plot"><div class="area" style="--h:{height}px">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(label, quote=True)}">{lines}{shapes}'
        f'<line class="axis" x1="0" x2="{SIZE}" y1="{SIZE}" y2="{SIZE}"/></svg>'
        f'<div aria-hidden="true">{"".join(words)}</div></div></div>'
        f'<p class="title below">{html.escape(x_title)}</p>'
    )


def _down(place: float) -> float:
    return SIZE * (1 - place)


def _edge(place: float) -> str:
    if place < 0.02:
        return " first"
    return " last" if place > 0.98 else ""


def _word(kind: str, style: str, tick: Tick) -> str:
    minor = " minor" if tick.minor else ""
    return f'<span class="tick {kind}{minor}" style="{style}">{html.escape(tick.text)}</span>'


def _line(left: float, right: float, y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{left:.4g}" x2="{right:.4g}" y1="{y:.2f}" y2="{y:.2f}"/>'


def upright(place: float, kind: str) -> str:
    """A line from top to bottom at 0..1."""
    x = SIZE * place
    return f'<line class="{kind}" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="{SIZE}"/>'


def box(left: float, width: float, top: float, height: float, kind: str, title: str = "") -> str:
    """A rectangle, all in 0..1 from the top left."""
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    return (
        f'<rect class="{kind}" x="{SIZE * left:.2f}" y="{SIZE * top:.2f}" width="{SIZE * width:.2f}" '
        f'height="{SIZE * height:.2f}">{inner}</rect>'
    )


def nice_ticks(most: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers from 0 up to ``most``."""
    if not most > 0:
        return [0.0]
    step = 10 ** math.floor(math.log10(most / count))
    step *= min((factor for factor in (1, 2, 2.5, 5, 10) if most / (factor * step) <= count), default=10)
    return [number * step for number in range(int(most / step + 1e-9) + 1)]


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, folded: bool = True) -> str:
    """A chart's numbers, folded away unless said. Cells are escaped here."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f"<details{'' if folded else ' open'}><summary>{html.escape(caption)}</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption, quote=True)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(class of the swatch, words) in a row."""
    items = "".join(f'<li><i class="{kind}"></i>{html.escape(words)}</li>' for kind, words in entries)
    return f'<ul class="legend">{items}</ul>'
