"""Every local kernel answers every kind of task as the plain one does."""

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from balancer.runtime.attention.kernels import CPU_FLASH, PLAIN, Answer
from balancer.runtime.attention.varlen import Call, VarlenKernel, flash_attn_backward
from balancer.runtime.attention.work import Lengths, Pattern, blocks, gathered_tasks, local_tasks, ring_tasks

LENGTHS = Lengths.of(np.array([7, 1, 30, 2, 64]), 2)


def sequences(call):
    return zip(call.cu_q[:-1], call.cu_q[1:], call.cu_k[:-1], call.cu_k[1:], strict=True)


def hidden(call, rows, columns):
    """The masks of flash attention: aligned at the lower right; -1 is no limit."""
    ahead = torch.arange(columns) - (torch.arange(rows)[:, None] + columns - rows)
    left, right = call.window[0], 0 if call.causal else call.window[1]
    out = torch.zeros(rows, columns, dtype=torch.bool)
    if left >= 0:
        out |= ahead < -left
    if right >= 0:
        out |= ahead > right
    return out


def by_hand_forward(q, k, v, call, scale):
    """What a flash kernel promises, in plain operations and per sequence."""
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0], dtype=q.dtype)
    spread = q.shape[1] // k.shape[1]
    for a, b, c, d in sequences(call):
        keys, values = k[c:d].repeat_interleave(spread, 1), v[c:d].repeat_interleave(spread, 1)
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * scale
        scores = scores.masked_fill(hidden(call, int(b - a), int(d - c)), -math.inf)
        lse[:, a:b] = scores.logsumexp(-1)
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, lse, None


def by_hand_backward(d_out, q, k, v, out, lse, call, scale):
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    groups = k.shape[1]
    spread = q.shape[1] // groups
    for a, b, c, d in sequences(call):
        keys, values = k[c:d].repeat_interleave(spread, 1), v[c:d].repeat_interleave(spread, 1)
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * scale
        scores = scores.masked_fill(hidden(call, int(b - a), int(d - c)), -math.inf)
        p = torch.exp(scores - lse[:, a:b, None])
        own = (d_out[a:b] * out[a:b]).sum(-1).T[..., None]
        ds = p * (torch.einsum("qhd,khd->hqk", d_out[a:b], values) - own) * scale
        dq[a:b] = torch.einsum("hqk,khd->qhd", ds, keys)
        dk[c:d] = torch.einsum("hqk,qhd->khd", ds, q[a:b]).unflatten(1, (groups, -1)).sum(2)
        dv[c:d] = torch.einsum("hqk,qhd->khd", p, d_out[a:b]).unflatten(1, (groups, -1)).sum(2)
    return dq, dk, dv


VARLEN = VarlenKernel(by_hand_forward, by_hand_backward)


def run(kernel, task_lists, pattern, q_size, k_size):
    """Output, lse and gradients over several lists of tasks, one after the other as in a ring."""
    generator = torch.Generator().manual_seed(0)
    new = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    q, k, v, d_out = new(q_size, 4, 8), new(k_size, 2, 8), new(k_size, 2, 8), new(q_size, 4, 8)
    answer = Answer.empty(q)
    for tasks in task_lists:
        kernel.forward(answer, q, k, v, tasks, pattern, 0.3)
    gradients = tuple(torch.zeros_like(x) for x in (q, k, v))
    for tasks in task_lists:
        kernel.backward(gradients, (d_out, answer.out, answer.lse), (q, k, v), tasks, pattern, 0.3)
    return answer.out, answer.lse, *gradients


PATTERNS = [Pattern(), Pattern(causal=False), Pattern(window=5), Pattern(causal=False, window=9)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("kernel", [CPU_FLASH, VARLEN], ids=["cpu", "varlen"])
def test_a_kernel_equals_its_plain_twin(kernel, pattern):
    local, gathered = local_tasks(Lengths(LENGTHS.data, 1)), gathered_tasks(LENGTHS, 1, pattern)
    total, shard = int(LENGTHS.true.sum()), LENGTHS.local
    ring = [ring_tasks(LENGTHS, 1, source, pattern) for source in (1, 0)]
    work = [([local], total, total), ([gathered], shard, total), (ring, shard, shard)]
    for task_lists, q_size, k_size in work:
        got = run(kernel, task_lists, pattern, q_size, k_size)
        for one, other in zip(got, run(PLAIN, task_lists, pattern, q_size, k_size), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wanted", [True, False])
def test_flash_attn_repeats_its_bits_where_torch_is_asked_to(wanted, monkeypatch):
    given = []
    interface = ModuleType("flash_attn.flash_attn_interface")
    interface._flash_attn_varlen_backward = lambda *arguments: given.append(arguments)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", interface)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: wanted)
    x, borders = torch.zeros(4, 2, 8), torch.tensor([0, 4], dtype=torch.int32)
    call = Call(None, None, borders, borders, 4, 4, True, (-1, -1))
    flash_attn_backward(x, x, x, x, x, torch.zeros(2, 4), call, 0.3)
    assert given[0][20] is wanted  # its last argument without a default


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_tasks_hold_every_visible_pair_once(pattern, degree):
    """Pairs of (query, key) in all blocks, under their masks, against a count over all pairs of places."""
    lengths = Lengths.of(np.array([5, 1, 13, 40]), degree)
    pairs = 0
    for rank in range(degree):
        for source in range(degree):
            for task in ring_tasks(lengths, rank, source, pattern) if degree > 1 else local_tasks(lengths):
                for block in blocks(task, pattern):
                    pairs += visible(block, pattern)
    places = np.arange(40)
    distance = places[:, None] - places
    seen = np.ones_like(distance, dtype=bool)
    if pattern.causal:
        seen &= distance >= 0
    if pattern.window is not None:
        seen &= abs(distance) < pattern.window
    assert pairs == sum(int(seen[:n, :n].sum()) for n in (5, 1, 13, 40))


def visible(block, pattern):
    if block.mask == "whole":
        return block.q_count * block.k_count
    distance = np.arange(block.q_count)[:, None] - np.arange(block.k_count)
    if block.mask == "diagonal":
        return int((distance >= 0).sum())
    distance = distance + block.delta
    seen = abs(distance) < (pattern.window or 10**9)
    return int((seen & (distance >= 0) if pattern.causal else seen).sum())
