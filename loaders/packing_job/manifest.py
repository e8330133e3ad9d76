"""``manifest.json``: everything about a finished run; the summary and the report show the same."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from loaders.packing_job.accounts import by_input, histogram, total
from loaders.packing_job.corpus import Corpus, packed
from loaders.packing_job.inputs import Input
from loaders.packing_job.settings import PackSettings

COMPARED = ("best_fit", "next_fit")
"""Strategies that cost next to nothing for any number of rows; ``--dry-run`` tries all."""


def make_manifest(
    corpus: Corpus,
    settings: PackSettings,
    cap: int,
    shards: Sequence[dict[str, Any]],
    inputs: Sequence[Input],
) -> dict[str, Any]:
    """All that is known of one cap's packs."""
    accounts = by_input(corpus, settings, cap)
    counts = total(accounts)
    whole = packed(corpus.lengths, corpus.reach, settings, cap)
    num_packs = sum(shard["num_packs"] for shard in shards) if shards else len(whole)
    num_tokens = sum(shard["num_tokens"] for shard in shards) if shards else int(whole.num_tokens.sum())
    assert num_tokens == counts["kept_tokens"], f"packs hold {num_tokens} tokens of {counts['kept_tokens']}"
    return {
        "evenload": version("evenload"),
        "identity": settings.identity(),
        "arguments": settings.as_dict(),
        "seed": settings.seed,
        "max_tokens": cap,
        "strategy": settings.strategy,
        "num_packs": num_packs,
        "num_tokens": num_tokens,
        "fill": num_tokens / (num_packs * cap) if num_packs else 1.0,
        "lower_bound": int(whole.lower_bound),
        "counts": counts,
        "by_source": accounts,
        "lengths_histogram": histogram(corpus.lengths, cap),
        "packs": _pack_figures(shards),
        "strategies": compare(corpus, settings, cap, COMPARED),
        "rejects": [reject for found in corpus.rejects for reject in found][:20],
        "inputs": [
            {"name": one.name, "files": [{"path": f.path, "size_bytes": f.size_bytes} for f in one.files]}
            for one in inputs
        ],
        "files": {shard["shard"]: _file_entry(shard) for shard in shards},
        "side_files": [],
    }


def _file_entry(shard: dict[str, Any]) -> dict[str, Any]:
    return {name: shard[name] for name in ("num_packs", "num_tokens", "num_samples", "size_bytes", "sha256")}


def _pack_figures(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not shards:
        return {}
    packs, samples = (sum(shard[name] for shard in shards) for name in ("num_packs", "num_samples"))
    return {
        "num_samples": samples,
        "samples_per_pack": samples / packs,
        "most_samples": max(shard["most_samples"] for shard in shards),
        "emptiest": min(shard["emptiest"] for shard in shards),
        "longest_sample": max(shard["longest"] for shard in shards),
        "label_tokens": sum(shard["label_tokens"] for shard in shards),
        "sum_of_squares": sum(shard["sum_of_squares"] for shard in shards),
    }


def compare(
    corpus: Corpus, settings: PackSettings, cap: int, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Packs and fill of each way to fill a row of ``cap`` tokens, over all rows at once."""
    lengths = np.minimum(corpus.lengths[corpus.lengths > 0], cap)
    padded = {
        "packs": int(lengths.size),
        "fill": float(lengths.sum(dtype=np.int64) / max(lengths.size * cap, 1)),
    }
    found: dict[str, dict[str, float]] = {"one sample a row, padded": padded}
    for name in names:
        if name == "balanced" and settings.oversize == "split":
            continue  # it packs whole samples
        packs = packed(corpus.lengths, corpus.reach, settings, cap, strategy=name)
        found[name] = {"packs": len(packs), "fill": float(packs.fill)}
    return found
