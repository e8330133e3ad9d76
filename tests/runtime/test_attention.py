"""Attention over a group equals attention of one process, output and gradient, for every method."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from balancer import runtime
from balancer.sharding import shard
from balancer.topology import Topology
from tests.runtime import reference
from tests.runtime.batches import PlainBatch
from tests.support.ranks import run_ranks

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
LENGTHS = [[7], [1, 13, 2, 30], [64, 3, 3, 17, 1], [16, 16]]


@dataclass(frozen=True)
class Case:
    method: str
    heads: int = 4
    key_heads: int = 4
    causal: bool = True
    window: int | None = None
    dtype: torch.dtype = torch.float64


CASES = [
    Case("all_gather"),
    Case("ring"),
    Case("ulysses"),
    Case("auto", heads=8, key_heads=2),
    Case("all_gather", heads=4, key_heads=2),
    Case("ring", heads=4, key_heads=1),
    Case("ulysses", heads=4, key_heads=1),
    Case("ulysses", heads=8, key_heads=4),
    Case("all_gather", causal=False),
    Case("ring", causal=False, key_heads=2),
    Case("ulysses", causal=False),
    Case("all_gather", window=5),
    Case("ring", window=5, key_heads=2),
    Case("ulysses", window=5),
    Case("ring", window=11, causal=False),
    Case("all_gather", window=11, causal=False),
    Case("all_gather", dtype=torch.float32, key_heads=2),
    Case("ring", dtype=torch.float32, key_heads=2),
    Case("ulysses", dtype=torch.float32),
]


def close(got, expected, index, dtype):
    """Whether rows ``index`` of a whole tensor are right, relative to the whole's largest number.

    Inputs are about 1, and so is what would come of a mistake where all that is right is 0.
    """
    difference = (got.detach() - expected[index].detach()).abs()
    largest = max(1.0, float(expected.detach().abs().max())) if difference.numel() else 1.0
    return not difference.numel() or float(difference.max()) / largest <= TOLERANCE[dtype]


def compare(batch, case, tail=0):
    """Names of what differs from the oracle on this rank."""
    torch.manual_seed(7)
    lengths = [int(n) for n in batch.seq_lengths]
    total, size = sum(lengths), 8
    whole = [
        torch.randn(total, h, size, dtype=case.dtype) for h in (case.heads, case.key_heads, case.key_heads)
    ]
    weight = torch.randn(total, case.heads, size, dtype=case.dtype)
    mine = shard(lengths, batch.cp_degree, batch.cp_rank)
    index = torch.from_numpy(np.concatenate([mine.index, np.full(tail, -1)]))
    real = index >= 0

    oracle = [x.clone().requires_grad_() for x in whole]
    expected = reference.attend(*oracle, lengths, causal=case.causal, window=case.window)
    (expected * weight).sum().backward()

    local = []
    for x in whole:  # padding holds rubbish on purpose
        rows = torch.full((index.numel(), *x.shape[1:]), 1e3, dtype=case.dtype)
        rows[real] = x[index[real]]
        local.append(rows.requires_grad_())
    out = runtime.attention(*local, batch, case.method, causal=case.causal, window=case.window)
    (out[real] * weight[index[real]]).sum().backward()

    wrong = []
    if not close(out[real], expected, index[real], case.dtype):
        wrong.append("output")
    if out[~real].abs().sum() != 0:
        wrong.append("padding output")
    for name, got, want in zip(("dq", "dk", "dv"), local, oracle, strict=True):
        gradient = torch.zeros_like(want) if want.grad is None else want.grad
        if not close(got.grad[real], gradient, index[real], case.dtype):
            wrong.append(name)
        if got.grad[~real].abs().sum() != 0:
            wrong.append(f"padding {name}")
    return [f"{case}, {lengths}, degree {batch.cp_degree}: {name}" for name in wrong]


def batch_of(groups, rank, degree, lengths):
    batch = PlainBatch(cp_degree=degree, cp_rank=rank % degree, seq_lengths=np.asarray(lengths, np.int32))
    return groups.attach(batch)


def check_all_cases(rank, ranks, degree, own_groups):
    groups = runtime.ContextGroups(Topology(ranks=ranks), [1, degree], own_groups=own_groups)
    wrong = []
    for case in CASES:
        if case.method == "ulysses" and case.heads % degree:
            continue
        for lengths in LENGTHS:
            wrong += compare(batch_of(groups, rank, degree, lengths), case, tail=3 if lengths == [7] else 0)
    groups.close()
    return wrong


@pytest.mark.parametrize(
    ("ranks", "degree", "own_groups"), [(2, 2, True), (4, 4, True), (3, 3, True), (2, 2, False)]
)
def test_every_method_equals_one_process(ranks, degree, own_groups):
    assert run_ranks(check_all_cases, ranks, ranks, degree, own_groups) == [[]] * ranks


# shorter than two chunks a rank, empty ones among them, or nothing at all
SHORT = [[1], [2], [1, 1, 1], [0, 5, 0], [3, 0, 1], [7, 8, 9], [0, 0], []]
SHORT_CASES = [
    Case(method, causal=causal, window=window)
    for method in ("all_gather", "ring", "ulysses")
    for causal, window in ((True, None), (False, None), (True, 1), (False, 2), (True, 1000))
]


def check_short_samples(rank):
    groups = runtime.ContextGroups(Topology(ranks=4), [4])
    return [
        wrong
        for case in SHORT_CASES
        for number, lengths in enumerate(SHORT)
        for wrong in compare(batch_of(groups, rank, 4, lengths), case, tail=number % 2)
    ]


def test_samples_shorter_than_a_chunk_a_rank_or_empty_are_computed_all_the_same():
    assert run_ranks(check_short_samples, 4) == [[]] * 4


def repeat_cases(rank):
    """Bits of output and gradients, twice, for every case."""
    groups = runtime.ContextGroups(Topology(ranks=2))
    batch = batch_of(groups, rank, 2, [64, 3, 3, 17, 1])
    local = int(sum(-(-n // 4) * 2 for n in (64, 3, 3, 17, 1)))
    unequal = []
    for case in CASES:
        heads = (case.heads, case.key_heads, case.key_heads)
        found = []
        for _ in range(2):
            generator = torch.Generator().manual_seed(rank)
            q, k, v = (
                torch.randn(local, h, 8, dtype=case.dtype, generator=generator).requires_grad_()
                for h in heads
            )
            out = runtime.attention(q, k, v, batch, case.method, causal=case.causal, window=case.window)
            out.square().sum().backward()
            found.append((out, q.grad, k.grad, v.grad))
        unequal += [case for one, other in zip(*found, strict=True) if not torch.equal(one, other)]
    return unequal


def test_the_same_inputs_give_the_same_bits():
    assert run_ranks(repeat_cases, 2) == [[], []]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_alone_equals_the_oracle(case):
    for lengths in [*LENGTHS, [0, 5, 0]]:
        assert compare(PlainBatch(seq_lengths=np.asarray(lengths)), case, tail=2) == []


@pytest.mark.parametrize(
    "case", [Case("auto", key_heads=2), Case("auto", window=4), Case("auto", causal=False)], ids=str
)
def test_no_sample_sees_another(case):
    lengths = [5, 1, 9, 20]
    batch = PlainBatch(seq_lengths=np.asarray(lengths))
    generator = torch.Generator().manual_seed(1)
    heads = (case.heads, case.key_heads, case.key_heads)
    before = [torch.randn(sum(lengths), count, 8, generator=generator) for count in heads]
    out = runtime.attention(*before, batch, causal=case.causal, window=case.window)
    for sample, start in enumerate(np.cumsum(lengths) - lengths):
        here = slice(start, start + lengths[sample])
        after = [x.clone() for x in before]
        for x in after:
            x[here] += 1.0
        moved = (
            (runtime.attention(*after, batch, causal=case.causal, window=case.window) != out).any(-1).any(-1)
        )
        assert moved[here].any()
        moved[here] = False
        assert not moved.any()


def test_views_of_larger_tensors_give_what_their_copies_give():
    batch = PlainBatch(seq_lengths=np.asarray([5, 11]))
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(16, 3, 4, 8, generator=generator)
    turned = torch.randn(4, 8, 16, generator=generator).permute(2, 0, 1)
    for views in (whole.unbind(1), (turned, turned, turned)):
        copies = [view.clone(memory_format=torch.contiguous_format) for view in views]
        assert torch.equal(runtime.attention(*views, batch), runtime.attention(*copies, batch))


@pytest.mark.parametrize("batch", [{"input_ids": torch.ones(1, 8)}, {}, None])
def test_what_is_no_batch_gets_a_sentence(batch):
    q = torch.randn(8, 4, 8)
    with pytest.raises(TypeError, match=f"seq_lengths and cp_degree.* a {type(batch).__name__} without"):
        runtime.attention(q, q, q, batch)


def test_what_cannot_run_gets_a_sentence():
    batch = PlainBatch(seq_lengths=np.asarray([4, 4]))
    q = torch.randn(8, 4, 8)
    with pytest.raises(ValueError, match="take 8 tokens on each of 1 ranks, got 7"):
        runtime.attention(q[:7], q[:7], q[:7], batch)
    with pytest.raises(ValueError, match="Squeeze the batch dimension"):
        runtime.attention(q[None], q[None], q[None], batch)
    with pytest.raises(ValueError, match="multiple of key heads"):
        runtime.attention(q, q[:, :3], q[:, :3], batch)
    with pytest.raises(ValueError, match="of one type"):
        runtime.attention(q, q, q.double(), batch)
    with pytest.raises(ValueError, match="window must be at least 1"):
        runtime.attention(q, q, q, batch, window=0)
    with pytest.raises(RuntimeError, match=r"groups\.attach"):
        runtime.attention(q, q, q, PlainBatch(cp_degree=2, seq_lengths=np.asarray([4, 4])))


@pytest.mark.slow
def test_compiled_code_gives_the_same():
    batch = PlainBatch(seq_lengths=np.asarray([5, 11]))

    def block(x):
        q = (x * 2.0).unflatten(1, (4, 8))
        return runtime.attention(q, torch.sin(q), q, batch).flatten(1) + x

    results = []
    for function in (block, torch.compile(block)):
        x = torch.linspace(0, 1, 16 * 32).reshape(16, 32).requires_grad_()
        y = function(x)
        y.square().sum().backward()
        results.append((y.detach(), x.grad))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)
