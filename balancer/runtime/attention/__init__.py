"""Attention over packed samples across the batch's context-parallel group."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balancer.runtime.peers import Peers
from balancer.runtime.protocol import RunnableBatch

from .kernels import CPU_FLASH, PLAIN, Kernel
from .methods import METHODS, Attend, Call
from .varlen import FLASH_ATTN, TORCH_FLASH
from .work import Lengths, Pattern

__all__ = ["attention", "choose_method"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: RunnableBatch,
    method: str = "auto",
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Every sample attends to itself only, wherever its tokens lie.

    Args:
        q: [T, H, D] queries of this rank's tokens, in the order of `balancer.sharding.shard`.
        k: [T, H_kv, D] keys; H is a multiple of H_kv.
        v: [T, H_kv, D] values.
        batch: the micro-batch; ``seq_lengths``, ``cp_degree``, ``cp_rank`` and ``cp_group`` are read.
        method: "all_gather", "ring", "ulysses" or "auto" (see `choose_method`). All members of the group
            must pass the same.
        causal: a token sees itself and what comes before it; otherwise the whole sample.
        window: it sees only keys at a distance below ``window``, itself included.
        scale: what scores are multiplied by; None: ``D ** -0.5``.

    Returns:
        [T, H, D]. Padding, and tokens behind the last sample, get zeros and give no gradient.

    Raises:
        TypeError: a batch that does not say its samples, such as a plain dict of tensors.
        ValueError: shapes that do not fit each other or the batch, a method that cannot run them.
        RuntimeError: a batch of degree above 1 without its process group.
    """
    # A compiled graph breaks here: exchanges must run in one order on all ranks. Asked for only while
    # something is compiled, since it loads the compiler: 1.1 s that plain training need not wait.
    attend = torch.compiler.disable(_attend) if torch.compiler.is_compiling() else _attend
    return attend(q, k, v, batch, method, Pattern(causal, window), scale)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: RunnableBatch,
    method: str,
    pattern: Pattern,
    scale: float | None,
) -> Tensor:
    _check_batch(batch)
    lengths = Lengths.of(_numpy(batch.seq_lengths), batch.cp_degree)
    _check_shapes(q, k, v, lengths)
    if batch.cp_degree == 1:
        peers, name = None, "local"
    else:
        peers = _peers_of(batch)
        name = method if method != "auto" else choose_method(q.shape[1], k.shape[1], batch.cp_degree)
        if name not in METHODS or name == "local":
            raise ValueError(f"method must be auto, all_gather, ring or ulysses, got {method!r}.")
    # kernels read rows of D neighbouring numbers; a transposed view is copied, a slice of a larger row is not
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    size = q.shape[-1] ** -0.5 if scale is None else scale
    call = Call(lengths, pattern, size, _kernel_for(q), peers)
    out: Tensor = _apply(q, k, v, METHODS[name], call)
    return out


_apply: Callable[..., Tensor] = Attend.apply


def choose_method(heads: int, key_heads: int, degree: int) -> str:
    """The method that moves the fewest bytes; the ring where gathering would hold too many keys.

    In units of T * D elements a rank, each way: all_gather and ring move ``2 H_kv (d - 1)``, ulysses
    ``(2 H + 2 H_kv) (d - 1) / d``. The ring moves as much as all_gather but holds two shards instead of d.
    """
    gathered = 2 * key_heads * (degree - 1)
    exchanged = (2 * heads + 2 * key_heads) * (degree - 1) / degree
    if heads % degree == 0 and key_heads % degree == 0 and exchanged < gathered:
        return "ulysses"
    return "all_gather" if degree <= 8 else "ring"


def _check_batch(batch: Any) -> None:
    missing = [name for name in ("seq_lengths", "cp_degree") if not hasattr(batch, name)]
    if missing:
        raise TypeError(
            "attention needs a batch with the attributes seq_lengths and cp_degree, and cp_rank and cp_group "
            f"where cp_degree > 1; a {type(batch).__name__} without {' and '.join(missing)} came. Pass the "
            "loader's batch itself, not its tensors or a copy of them in a dict; see runtime.RunnableBatch."
        )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> None:
    if (
        q.ndim != 3
        or k.ndim != 3
        or k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[2] != k.shape[2]
    ):
        raise ValueError(
            "attention needs q [T, H, D] and k, v [T, H_kv, D] of one T and D, got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}. Squeeze the batch dimension out first."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must be of one type, got {q.dtype}, {k.dtype} and {v.dtype}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[1]} and {k.shape[1]}.")
    if q.shape[0] < lengths.local:
        raise ValueError(
            f"the batch's samples take {lengths.local} tokens on each of {lengths.degree} ranks, got "
            f"{q.shape[0]}. q, k and v must hold this rank's shard, alignment padding included."
        )


def _peers_of(batch: RunnableBatch) -> Peers:
    if batch.cp_group is None:
        raise RuntimeError(
            f"step {batch.step}, slot {batch.slot}: a batch of CP degree {batch.cp_degree} needs its process "
            "group. Make groups = runtime.ContextGroups(topology) once and call groups.attach(batch)."
        )
    peers = _peers_cached(batch.cp_group)
    if (peers.size, peers.rank) != (batch.cp_degree, batch.cp_rank):
        raise RuntimeError(
            f"step {batch.step}, slot {batch.slot}: the batch is share {batch.cp_rank} of {batch.cp_degree}, "
            f"its process group has this rank as {peers.rank} of {peers.size}."
        )
    return peers


@lru_cache(maxsize=256)
def _peers_cached(group: Any) -> Peers:
    return Peers(group)


def _numpy(lengths: Any) -> np.ndarray[Any, np.dtype[np.integer[Any]]]:
    return lengths.cpu().numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)


def _kernel_for(q: Tensor) -> Kernel:
    if q.device.type == "cpu":
        return CPU_FLASH
    # the bare flash kernels take head sizes that divide by 8, up to 256
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and fits:
        return FLASH_ATTN if _has_flash_attn() else TORCH_FLASH
    return PLAIN


@lru_cache(maxsize=1)
def _has_flash_attn() -> bool:
    return importlib.util.find_spec("flash_attn") is not None
