"""What became of every row and token, by input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.packing_job.corpus import Corpus, left_without_labels
from loaders.packing_job.settings import PackSettings


def by_input(corpus: Corpus, settings: PackSettings, max_tokens: int) -> dict[str, dict[str, Any]]:
    """Counts for each input; ``rows = kept + dropped + unlabelled + empty + null + rejected`` in each.

    ``truncated`` and ``split`` are among the kept, ``masked`` rows (without any label in the input) are
    wherever their length puts them. Tokens: ``tokens = kept_tokens + cut_tokens``.
    """
    return {
        name: _account(corpus, settings, max_tokens, source)
        for source, name in enumerate(_unique(corpus.names))
    }


def _unique(names: tuple[str, ...]) -> list[str]:
    """Names with a number where one is given twice."""
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def _account(corpus: Corpus, settings: PackSettings, max_tokens: int, source: int) -> dict[str, Any]:
    rows = corpus.rows_of(source)
    lengths = corpus.lengths[rows]
    reach = None if corpus.reach is None else corpus.reach[rows]
    too_long = lengths > max_tokens
    unlabelled = left_without_labels(lengths, reach, settings, max_tokens)
    if settings.keep_unlabelled:
        unlabelled = np.zeros(lengths.size, bool)
    dropped = too_long & (settings.oversize == "drop")
    cut = too_long & ~dropped & ~unlabelled
    truncates = settings.oversize.startswith("truncate")
    rejected, null = len(corpus.rejects[source]), int(corpus.num_null[source])
    zero = int(np.count_nonzero(lengths == 0))
    kept = (lengths > 0) & ~dropped & ~unlabelled
    tokens = int(lengths.sum(dtype=np.int64))
    kept_tokens = int(lengths[kept].sum(dtype=np.int64))
    if truncates:
        kept_tokens -= int((lengths[cut].astype(np.int64) - max_tokens).sum())
    return {
        "rows": int(lengths.size),
        "kept": int(np.count_nonzero(kept)),
        "dropped": int(np.count_nonzero(dropped)),
        "unlabelled": int(np.count_nonzero(unlabelled)),
        "empty": zero - rejected - null,
        "null": null,
        "rejected": rejected,
        "truncated": int(np.count_nonzero(cut)) if truncates else 0,
        "split": int(np.count_nonzero(cut)) if settings.oversize == "split" else 0,
        "masked": 0 if reach is None else int(np.count_nonzero((reach < 0) & (lengths > 1))),
        "tokens": tokens,
        "kept_tokens": kept_tokens,
        "cut_tokens": tokens - kept_tokens,
        "lengths": percentiles(lengths),
    }


def total(accounts: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Sums over all inputs."""
    sums: dict[str, int] = {}
    for account in accounts.values():
        for name, value in account.items():
            if isinstance(value, int):
                sums[name] = sums.get(name, 0) + value
    return sums


def percentiles(lengths: NDArray[Any]) -> dict[str, int]:
    """Lengths of rows that are not empty."""
    present = lengths[lengths > 0]
    if not present.size:
        return {}
    found = np.percentile(present, [50, 90, 99, 100], method="nearest")
    return dict(zip(("p50", "p90", "p99", "max"), (int(value) for value in found), strict=True))


def histogram(lengths: NDArray[Any], max_tokens: int) -> dict[str, list[int]]:
    """Rows and tokens by length, in powers of two cut in four, with a border at the cap."""
    present = lengths[lengths > 0].astype(np.int64)
    top = int(present.max(initial=1))
    edges = {1, max_tokens + 1, top + 1}
    edges.update(int(2 ** (quarter / 4)) for quarter in range(0, 4 * 41) if 2 ** (quarter / 4) <= top)
    borders = np.array(sorted(edge for edge in edges if edge <= top + 1 or edge == max_tokens + 1), np.int64)
    rows = np.histogram(present, borders)[0]
    tokens = np.histogram(present, borders, weights=present)[0]
    return {
        "from": borders[:-1].tolist(),
        "to": (borders[1:] - 1).tolist(),
        "rows": rows.astype(int).tolist(),
        "tokens": tokens.astype(int).tolist(),
    }
