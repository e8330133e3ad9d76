"""Streams: data sets whose samples can only be taken one after another."""

from __future__ import annotations

from typing import Any


def is_stream(dataset: Any) -> bool:
    """Whether samples can only be taken one after another."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def keeps_exact_state(dataset: Any) -> bool:
    """Whether a stream's own state brings back every sample.

    A stream of `datasets` that is shuffled in a buffer says in its state where it reads, but leaves out the
    buffer: the samples in it, up to ``buffer_size``, would be lost. Such a stream is read again instead.
    """
    if not all(hasattr(dataset, name) for name in ("state_dict", "load_state_dict")):
        return False
    return not _is_buffered(getattr(dataset, "_ex_iterable", None))


def _is_buffered(iterable: Any) -> bool:
    """Whether an iterable of `datasets` or one that it draws from keeps samples in a buffer."""
    if type(iterable).__name__ == "BufferShuffledExamplesIterable":
        return True
    below = [getattr(iterable, "ex_iterable", None), *getattr(iterable, "ex_iterables", ())]
    return any(_is_buffered(one) for one in below if one is not None)
