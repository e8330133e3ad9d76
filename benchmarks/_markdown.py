"""Pieces of Markdown that pages are written from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = dict[str, str]
Rows = Sequence[Row]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table; all columns but the first few are set to the right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, rule, *rows])


def measured_on(rows: Rows) -> str:
    """The environment of a table, in a line."""
    first = rows[0]
    if "processor" not in first:
        return ""
    return (
        f"*{first['processor']}, {first['cores']} cores, Python {first['python']}, numpy {first['numpy']}, "
        f"{first['date']}*"
    )


def paragraphs(*parts: str) -> str:
    """Parts with an empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part)


def times(value: float) -> str:
    return f"{value:,.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 3 else f"{value:.2f}x"


def replaced(text: str, name: str, body: str) -> str:
    """A page's text with what stands between a table's two marks renewed."""
    begin, end = f"<!-- {name} table -->", f"<!-- end of {name} table -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} ... {end} to write between")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"
