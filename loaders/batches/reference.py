"""Slow, obvious twins of the kernels that lay batches out, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def lay_out(
    samples: Sequence[Sequence[int]], labels: Sequence[Sequence[int]] | None = None
) -> dict[str, NDArray[np.int64]]:
    """The rows of a packed batch, sample by sample and token by token."""
    rows: dict[str, list[int]] = {
        name: [] for name in ("input_ids", "labels", "shift_labels", "position_ids", "seq_idx")
    }
    for number, tokens in enumerate(samples):
        targets = list(tokens if labels is None else labels[number])
        rows["input_ids"] += tokens
        rows["labels"] += [-100, *targets[1:]][: len(tokens)]
        rows["shift_labels"] += [*targets[1:], -100][: len(tokens)]
        rows["position_ids"] += range(len(tokens))
        rows["seq_idx"] += [number] * len(tokens)
    return {name: np.array(values, np.int64) for name, values in rows.items()}
