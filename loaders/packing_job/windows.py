"""Which blocks are packed together. A function of lengths, settings and seed alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaders.packing_job.corpus import Corpus
from loaders.packing_job.settings import PackSettings


def windows(corpus: Corpus, settings: PackSettings, max_tokens: int) -> list[NDArray[np.int64]]:
    """Numbers of the blocks of each window, about ``settings.window(max_tokens)`` tokens each.

    A window is read, packed and written by one worker, so memory does not grow with the corpus. Each may end
    with one pack that is not full: with 512 packs a window that costs 0.2 % at most.
    Blocks are dealt in random order, so that every window is a sample of all inputs and of every part of
    them; under a strategy that keeps the order they stay as they are.
    """
    sizes = corpus.num_tokens
    order = np.arange(sizes.size)
    limit = settings.window(max_tokens)
    if settings.strategy != "next_fit":
        order = np.random.default_rng(settings.seed).permutation(sizes.size)
    found, begin, total = [], 0, 0
    for place, size in enumerate(sizes[order].tolist()):
        if total and total + size > limit:
            found.append(np.sort(order[begin:place]))  # files are read from front to back
            begin, total = place, 0
        total += size
    if total:
        found.append(np.sort(order[begin:]))
    return found
