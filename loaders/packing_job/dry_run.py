"""What a run would come to, for every strategy, without writing anything that stays."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from loaders.packing_job.accounts import by_input, histogram, total
from loaders.packing_job.corpus import packed
from loaders.packing_job.inputs import open_inputs, tasks
from loaders.packing_job.job import check_corpus, scan_inputs
from loaders.packing_job.manifest import compare
from loaders.packing_job.settings import PackSettings
from packing import STRATEGIES


def dry_run(settings: PackSettings, console: Console) -> list[dict[str, Any]]:
    """The first pass and the plan; returns for each cap what a manifest would say of it."""
    inputs = open_inputs(settings)
    first_pass = tasks(inputs, settings)
    with tempfile.TemporaryDirectory(prefix="evenload-") as work:
        corpus = scan_inputs(first_pass, inputs, settings, Path(work), console)
    check_corpus(corpus, first_pass, inputs, settings)
    found = []
    for cap in settings.max_tokens:
        whole = packed(corpus.lengths, corpus.reach, settings, cap)
        accounts = by_input(corpus, settings, cap)
        found.append(
            {
                "max_tokens": cap,
                "strategy": settings.strategy,
                "num_packs": len(whole),
                "num_tokens": int(whole.num_tokens.sum()),
                "fill": float(whole.fill),
                "lower_bound": int(whole.lower_bound),
                "counts": total(accounts),
                "by_source": accounts,
                "lengths_histogram": histogram(corpus.lengths, cap),
                "strategies": compare(corpus, settings, cap, tuple(STRATEGIES)),
            }
        )
    return found
