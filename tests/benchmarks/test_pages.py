"""Pages with numbers: nothing but what the results give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks._markdown import replaced

WRITTEN = tables.written()
MARK = re.compile(r"<!-- (?!end of)(\S+) table -->")


@pytest.mark.parametrize("path", sorted(WRITTEN), ids=lambda path: path.name)
def test_a_page_is_what_its_results_give(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == WRITTEN[path], (
        "python -m benchmarks tables writes the pages anew"
    )


@pytest.mark.parametrize("path", sorted(tables.TABLES), ids=lambda path: path.name)
def test_every_table_between_marks_is_written_from_results(path: Path) -> None:
    marks = set(MARK.findall(path.read_text(encoding="utf-8")))
    # The README's demo table is what `make demo` prints.
    assert marks - ({"demo"} if path == tables.README else set()) == set(tables.TABLES[path])


def test_no_table_of_the_simulator_is_typed_by_hand() -> None:
    outside = re.sub(
        r"<!-- (\S+) table -->.*?<!-- end of \1 table -->",
        "",
        tables.SIMULATOR.read_text(encoding="utf-8"),
        flags=re.S,
    )
    ruled = [line for line in outside.splitlines() if re.match(r"\|.*--:", line)]
    assert ruled == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- gain table -->"):
        replaced("text", "gain", "rows")


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = (
        "before <!-- a table --> old <!-- end of a table --> after <!-- b table --> x <!-- end of b table -->"
    )
    assert replaced(page, "a", "new") == page.replace(" old ", "\n\nnew\n\n")


def test_runs_that_are_not_repeated_keep_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import all as every

    before = [{"name": "train", "seconds": "100"}, {"name": "gone", "seconds": "7"}]
    monkeypatch.setattr(every, "written", lambda _: True)
    monkeypatch.setattr(every, "read", lambda _: before)
    assert every.durations({"planner": 3.0}) == [
        {"name": "train", "seconds": 100.0},
        {"name": "planner", "seconds": 3.0},
    ]
