"""Which blocks are packed together. A function of lengths, settings and seed alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaders.packing_job.corpus import Corpus
from loaders.packing_job.settings import PackSettings


def windows(corpus: Corpus, settings: PackSettings, max_tokens: int) -> list[NDArray[np.int64]]:
    """Numbers of the blocks of each window, at most about ``settings.window(max_tokens)`` tokens each.

    A window is read, packed and written by one worker, so memory does not grow with the corpus. Each may end
    with one pack that is not full: with 512 packs a window that costs 0.2 % at most. Windows are of about
    equal size, so that workers end together.
    Blocks are dealt in random order, so that every window is a sample of all inputs and of every part of
    them; under a strategy that keeps the order they stay as they are.
    """
    sizes = corpus.num_tokens
    total = int(sizes.sum())
    if total == 0:
        return []
    order = np.arange(sizes.size)
    if settings.strategy != "next_fit":
        order = np.random.default_rng(settings.seed).permutation(sizes.size)
    count = -(-total // settings.window(max_tokens))
    middle = np.cumsum(sizes[order]) - sizes[order] // 2
    window_of = np.minimum(middle * count // total, count - 1)
    borders = np.flatnonzero(np.diff(window_of)) + 1
    return [np.sort(blocks) for blocks in np.split(order, borders)]  # files are read from front to back
