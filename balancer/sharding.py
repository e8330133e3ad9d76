"""How a micro-batch's packed samples are cut over the ranks of a context-parallel group.

Zigzag, per sample: a sample is padded to ``2 * degree`` equal chunks and rank r holds chunks r and
``2 * degree - 1 - r``. A query of chunk c attends to about c + 1/2 chunks, so the two chunks of every
rank attend to ``2 * degree`` of them together: causal work is equal on all ranks, sample by sample
(the head-tail split of Llama 3's context parallelism, arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """One rank's tokens of a micro-batch. Axes: T = tokens of the rank, n = samples of the micro-batch."""

    index: NDArray[np.int64]
    """[T] Place of each token in the concatenated unpadded micro-batch; -1 for padding."""
    positions: NDArray[np.int64]
    """[T] Place of each token in its own padded sample; what position ids are made of."""
    offsets: NDArray[np.int64]
    """[n + 1] Sample i lies at ``offsets[i]:offsets[i + 1]``, first its early chunk, then its late one."""

    @property
    def real(self) -> NDArray[np.bool_]:
        """[T] False for padding."""
        return self.index >= 0


def alignment(degree: int, *, tensor_degree: int = 1) -> int:
    """What a sample's length must be a multiple of.

    Args:
        degree: ranks that share the sample. 1 needs no chunks, more need ``2 * degree`` equal ones.
        tensor_degree: ranks of sequence parallelism inside tensor parallelism; each rank's tokens
            must divide by it, and so must each pair of chunks.
    """
    for name, value in (("degree", degree), ("tensor_degree", tensor_degree)):
        if int(value) != value or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return tensor_degree if degree == 1 else degree * math.lcm(2, tensor_degree)


def aligned_lengths(lengths: ArrayLike, degree: int, *, tensor_degree: int = 1) -> NDArray[np.int64]:
    """[n] Tokens each sample takes on the whole group, padding included."""
    factor = alignment(degree, tensor_degree=tensor_degree)
    return -(-_checked(lengths) // factor) * factor


def shard(lengths: ArrayLike, degree: int, cp_rank: int, *, tensor_degree: int = 1) -> Shard:
    """The tokens that ``cp_rank`` holds of samples laid end to end.

    Args:
        lengths: [n] true tokens of each sample of the micro-batch, in order; 0 is allowed.
        degree: ranks that share the micro-batch.
        cp_rank: this rank's place among them.
        tensor_degree: see `alignment`.

    Cost: O(n + T), a few passes over T.
    """
    if not 0 <= cp_rank < degree:
        raise ValueError(f"cp_rank must lie in 0..{degree - 1} for degree {degree}, got {cp_rank}.")
    true = _checked(lengths)
    padded = aligned_lengths(true, degree, tensor_degree=tensor_degree)
    held = padded // degree  # [n] tokens of each sample on one rank
    offsets = np.concatenate([[0], np.cumsum(held)])
    sample_starts = np.cumsum(true) - true  # [n]
    local = np.arange(offsets[-1])
    if degree == 1:
        positions = local - np.repeat(offsets[:-1], held)
    else:
        chunk = held // 2
        # pieces: [n, 2] the early and the late chunk of each sample, as they lie on this rank
        first_position = np.stack([cp_rank * chunk, (2 * degree - 1 - cp_rank) * chunk], axis=1)
        local_start = np.stack([offsets[:-1], offsets[:-1] + chunk], axis=1)
        positions = local + np.repeat((first_position - local_start).ravel(), np.repeat(chunk, 2))
    index = positions + np.repeat(sample_starts, held)
    index[positions >= np.repeat(true, held)] = -1
    return Shard(index=index, positions=positions, offsets=offsets)


def _checked(lengths: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(lengths, dtype=np.int64)
    if array.ndim != 1 or (array.size and array.min() < 0):
        raise ValueError(f"lengths must be a flat array of non-negative token counts, got {lengths!r}.")
    return array
