"""The page shows the report's numbers, needs nothing from elsewhere, and can be read without its pictures."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology
from loaders.reporting import comparing, words
from loaders.reporting.headline import headline
from loaders.reporting.page import page
from loaders.reporting.plot import nice_ticks
from loaders.reporting.question import Setting
from loaders.reporting.report import as_json, gather
from tests.reporting.cases import Page, admitted, modelled, quiet, report, some_lengths

GIANTS = [(f"corpus/part{k}.parquet, row {k}", 1000 + k, 50_000 + k) for k in range(30)]


@pytest.fixture(scope="module")
def found():
    asked = modelled(given=Setting(4096, (1, 2, 4), "micro_batch"))
    return gather(asked, admitted(some_lengths(), GIANTS, 3), "numbers", quiet)


@pytest.fixture(scope="module")
def text(found):
    return page(found)


@pytest.fixture(scope="module")
def shown(text):
    return Page(text)


def test_the_data_in_the_page_is_the_json(found, text):
    data = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(data) == json.loads(json.dumps(as_json(found)))


def test_the_table_of_ways_shows_the_json(found, shown):
    data = as_json(found)
    head, *rows = shown.tables["All numbers as a table"]
    assert len(rows) == len(comparing.shown_rows(found))
    by_name = {words.NAMES[row["name"]]: row for row in data["rows"]}
    for row in rows:
        cells, numbers = dict(zip(head, row, strict=True)), by_name[row[0]]["numbers"]
        assert cells["step"] == words.duration(numbers["step_time_s"])
        assert cells["p95"] == words.duration(numbers["step_time_p95_s"])
        assert cells["waits"] == words.share(numbers["idle"])
        assert cells["MFU"] == words.share(numbers["mfu"])
        assert cells["tokens/s"] == f"{numbers['tokens_per_s']:,.0f}"
        assert cells["cap"] == f"{by_name[row[0]]['setting']['max_tokens']:,}"


def test_gains_lengths_and_degrees_show_the_json(found, shown):
    data = as_json(found)
    gains = {row[0]: row for row in shown.tables["Gains as a table"][1:]}
    shown_names = {row.name for row in comparing.shown_rows(found)}
    for gain in data["gains"]:
        if gain["over"] in shown_names:
            row = gains[words.NAMES[gain["over"]]]
            assert row[1:3] == [words.times(gain["times"]), words.interval(gain["low"], gain["high"])]
    counts = [int(row[1].replace(",", "")) for row in shown.tables["Lengths as a table"][1:]]
    assert sum(counts) == data["profile"]["samples"] == 630
    degrees = shown.tables["Degrees as a table"][1:]
    assert [(int(row[0]), row[5]) for row in degrees] == [
        (use["cp_degree"], f"{use['samples']:,}") for use in data["degrees"]
    ]


def test_the_headline_and_the_recommendation_are_in_words(found, shown):
    best = found.recommended.setting
    said = shown.text()
    assert headline(found) in said
    assert f"max_tokens={best.max_tokens}" in said
    assert f'sync="{best.sync}"' in said
    for reason in found.recommended.reasons.values():
        assert reason in said
    assert "3 empty, left out" in said


def test_samples_that_cannot_fit_are_named_longest_first(shown):
    rows = shown.tables["Where they are: the 25 longest"]
    assert rows[1] == ["corpus/part29.parquet, row 29", "50,029"]
    assert len(rows) == 26
    assert "--max-tokens 12508" in shown.text()


def test_every_cell_of_the_grid_is_shown(found, shown):
    cells = [attributes for tag, attributes in shown.tags if tag == "td" and "style" in attributes]
    kept = {
        (one.setting.max_tokens, one.setting.cp_degrees) for one in found.tried if one.verdict != "too short"
    }
    caps, columns = {cap for cap, _ in kept}, {degrees for _, degrees in kept}
    assert len(cells) == 2 * len(caps) * len(columns)
    assert sum("pick" in cell["class"] for cell in cells) == 1
    assert sum("given" in cell["class"] for cell in cells) == 1


def test_nothing_is_fetched_and_nothing_runs(text, shown):
    assert not re.search(r"https?://|url\(|@import|javascript:", text)
    loading = {"src", "srcset", "href", "data", "action", "poster", "background"}
    for tag, attributes in shown.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") for name in attributes)
        assert all(value.startswith("#") for name, value in attributes.items() if name in loading)
        assert tag != "script" or attributes["type"] == "application/json"
    policy = next(a["content"] for t, a in shown.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_names_of_files_cannot_break_the_page():
    evil = "</script><script>alert(1)</script>\"&'<b>"
    asked = report(too_long=[(f"{evil}, row 1", 1, 10**6)], files=(f"{evil}.npy",), steps=2)
    shown = Page(page(asked))
    assert sum(tag == "script" for tag, _ in shown.tags) == 1
    rows = shown.tables["Where they are: all of them"]
    assert rows[1][0] == f"{evil}, row 1"


def test_pictures_have_words_and_sections_have_headings(shown):
    pictures = [attributes for _, attributes in shown.tags if attributes.get("role") == "img"]
    assert len(pictures) > 10
    assert all(len(attributes["aria-label"]) > 20 for attributes in pictures)
    svgs = [attributes for tag, attributes in shown.tags if tag == "svg"]
    assert all(attributes["role"] == "img" for attributes in svgs)
    tables = set(shown.tables)
    assert {"Lengths as a table", "Ranks as a table", "Computing times as a table"} <= tables
    names = [attributes["id"] for _, attributes in shown.tags if "id" in attributes]
    assert len(names) == len(set(names))
    anchors = [a["href"][1:] for tag, a in shown.tags if tag == "a"]
    assert set(anchors) <= set(names)
    assert sum(tag == "h1" for tag, _ in shown.tags) == 1
    assert next(a["lang"] for tag, a in shown.tags if tag == "html") == "en"
    assert any(a.get("name") == "viewport" for tag, a in shown.tags if tag == "meta")


def test_places_in_charts_lie_inside(shown):
    for tag, attributes in shown.tags:
        if tag == "rect":
            left, width = float(attributes["x"]), float(attributes["width"])
            top, height = float(attributes["y"]), float(attributes["height"])
            assert min(left, width, top, height) >= 0
            assert left + width <= 1000.1
            assert top + height <= 1000.1


def test_what_is_not_known_is_said():
    plain = page(report(steps=2, given=Setting(4096, (1, 2, 4), "micro_batch")))
    said = Page(plain).text()
    assert "Memory is not known" in said
    assert "not known whether memory holds it" in said
    assert "2 steps say little about the spread" in said
    assert "MFU" not in headline(report(steps=1))


def test_a_way_that_cannot_plan_says_why(found):
    refused = [
        replace(row, numbers={"error": "no degree suits <these> samples"}) if row.name == "padded" else row
        for row in found.rows
    ]
    gains = tuple(gain for gain in found.gains if gain.over != "padded")
    shown = Page(page(replace(found, rows=tuple(refused), gains=gains)))
    assert "cannot plan: no degree suits <these> samples" in shown.text()
    assert shown.tables["All numbers as a table"][1][:2] == ["padded", "cannot plan"]
    alone = replace(found, gains=(), before=None)
    assert "Only balanced plans can run these samples" in Page(page(alone)).text()


def test_what_was_not_measured_is_pointed_out():
    fitted = CostModel(1e-4, 1e-8, 0.01, degrees=(1, 2), max_length=4000, beyond="allow")
    said = Page(page(report(cost=fitted, steps=2))).text()
    assert (
        "The cost was not measured for degrees 4 and samples of 12,000 tokens (measured up to 4,000)" in said
    )
    assert "was not measured for" not in Page(page(report(steps=2))).text()


def test_one_rank_has_a_page_as_well():
    found = report(topology=Topology(1), given=Setting(12_000, (1,), "step"), steps=3)
    said = Page(page(found)).text()
    assert "1 data rank" in said
    assert "cp_degrees=(1,)" in said


@given(st.floats(1e-9, 1e9))
def test_ticks_are_few_rising_and_inside(most):
    ticks = nice_ticks(most, 4)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 5
    assert ticks == sorted(set(ticks))
    assert ticks[-1] <= most * (1 + 1e-9)


def test_numbers_read_well():
    assert [words.duration(s) for s in (125, 12.34, 1.934, 0.084, 2e-5)] == [
        "2 min 5 s", "12.3 s", "1.93 s", "84.0 ms", "20.0 \u00b5s",
    ]  # fmt: skip
    assert [words.short(n) for n in (950, 1234, 1.5e9)] == ["950", "1.23 k", "1.50 B"]
    assert [words.share(p) for p in (0, 0.0001, 0.0414)] == ["0.0 %", "< 0.1 %", "4.1 %"]
    assert [words.tokens(n) for n in (16384, 16000, 3 << 20)] == ["16K", "16,000", "3M"]
    assert [words.tick_duration(s, 0.9) for s in (0, 0.25)] == ["0", "250 ms"]
    assert words.interval(None, None) == "\u2013"


def test_one_of_a_kind_is_not_called_many():
    refused = [("corpus.npy, row 3", 3, 5000)]
    one = {"topology": Topology(1), "given": Setting(1024, (1,), "step"), "global_batch_size": 3}
    text = page(report([900, 7, 7], refused, **one))
    assert "what 1 rank holds" in text
    for lengths, too_long in (([900, 7, 7], refused), ([900, 7, 7], [])):
        assert "1 rank hold " not in page(report(lengths, too_long, **one))
    for what in ("ranks", "samples", "steps", "tokens", "micro-batches"):
        assert not re.search(rf"[^\d.,]1 {what}\b", text.split("<script")[0]), what
