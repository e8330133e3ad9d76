"""Small questions and the pages that answer them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from balancer import CostModel, Topology
from balancer.costs.memory import estimate_memory
from balancer.simulation import ModelFlops
from loaders.cli.plan_report import Admitted
from loaders.reporting.question import Question, Setting
from loaders.reporting.report import gather

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
VOID = {"meta", "br", "line", "rect", "path"}


def quiet(what, done, total):
    assert 1 <= done <= total, what


def some_lengths(seed=0, samples=600, longest=12_000):
    draw = np.random.default_rng(seed).lognormal(6, 1.4, samples)
    return np.clip(draw, 1, longest).astype(np.int64)


def admitted(lengths, too_long=(), empty=0):
    return Admitted(lengths=np.asarray(lengths, np.int64), num_empty=empty, too_long=list(too_long))


def question(**changes):
    given = {
        "files": ("corpus.npy",),
        "topology": Topology(4, ranks_per_node=2),
        "given": Setting(4096, (1, 2, 4), "step"),
        "cost": CostModel(1e-4, 1e-8, 0.01),
        "global_batch_size": 48,
        "steps": 6,
        "search_steps": 2,
    }
    return Question(**{**given, **changes})


def modelled(recompute="full", **changes):
    """A question with a model: cost, FLOPs and memory."""
    return question(
        cost=CostModel.from_config(LLAMA, recompute=recompute),
        flops=ModelFlops.from_config(LLAMA),
        memory=estimate_memory(LLAMA, recompute=recompute),
        recompute=recompute,
        model="Llama",
        gpu="h100",
        **changes,
    )


def report(lengths=None, too_long=(), empty=0, **changes):
    lengths = some_lengths() if lengths is None else lengths
    return gather(question(**changes), admitted(lengths, too_long, empty), "numbers", quiet)


class Page(HTMLParser):
    """What is in a page: its tags, checked to nest, the text of its tables, and its data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.open, self.texts = [], {}, [], []
        self.caption, self.row = "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in VOID:
            self.open = self.open if tag == "meta" else [*self.open, tag]
            return
        self.open.append(tag)
        if tag == "tr":
            self.row = []
        if tag in ("td", "th"):
            self.row.append("")
        if tag in ("summary", "section"):
            self.caption = ""

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"
        if tag == "tr":
            self.tables.setdefault(self.caption, []).append(self.row)

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "summary":
            self.caption += data
        if self.open and self.open[-1] in ("td", "th"):
            self.row[-1] += data

    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))
