"""The gradient of a step is that of one process on unpacked samples, however the step was cut."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from balancer import runtime
from balancer.topology import Topology
from tests.runtime import tiny
from tests.runtime.tiny import Group
from tests.support.ranks import run_ranks

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
LENGTHS = {0: 61, 1: 30, 2: 9, 3: 17, 4: 2, 5: 23, 6: 1, 7: 40}

# 4 ranks, every degree in one step, ranks with 2, 3, 4 and 2 micro-batches
MIXED = (
    Group(0, 4, (0,)),
    Group(0, 2, (1, 2)),
    Group(2, 2, (7,)),
    Group(1, 1, (3,)),
    Group(2, 1, (4, 6)),
    Group(2, 1, (5,)),
)
# 4 ranks that meet in every slot: the same number everywhere, empty ones where a rank has no work
EVEN = (
    Group(0, 2, (0, 4)),
    Group(2, 2, (7, 1)),
    Group(0, 4, (5, 2)),
    Group(0, 1, (3,)),
    Group(1, 1, ()),
    Group(2, 1, (6,)),
    Group(3, 1, ()),
)
# 4 ranks, one idle, and a group of three that no power of two gives
THREE = (Group(0, 3, (0, 1, 2)), Group(1, 1, (3, 4)), Group(2, 1, (5, 6, 7)))


def wrap(kind, model):
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "compiled ddp":
        return DistributedDataParallel(torch.compile(model, backend="aot_eager"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gradients(model):
    whole = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        whole[name.removeprefix("module.").removeprefix("_orig_mod.")] = getattr(
            gradient, "full_tensor", lambda g=gradient: g
        )()
    return whole


def relative_error(got, expected):
    difference = sum(float((got[name] - expected[name]).square().sum()) for name in expected)
    return (difference / sum(float(g.square().sum()) for g in expected.values())) ** 0.5


def compare_steps(rank, ranks, cases):
    groups = runtime.ContextGroups(Topology(ranks=ranks), [1, 2, 3, 4])
    expected = {dtype: tiny.step_gradient(LENGTHS, dtype) for dtype in TOLERANCE}
    wrong = []
    for kind, slots, method, dtype, recompute in cases:
        model = wrap(kind, tiny.build(dtype, recompute))
        batches = tiny.batches_of(rank, ranks, slots, LENGTHS, groups)
        for _ in range(2):  # the second step begins from the state that the first one leaves
            model.zero_grad()
            total = torch.tensor(tiny.run_step(model, batches, method), dtype=torch.float64)
        dist.all_reduce(total)
        loss, gradient = expected[dtype]
        mean = float(total) / batches[0][0].step_loss_tokens
        error = relative_error(gradients(model), gradient)
        if error > TOLERANCE[dtype] or abs(mean / loss - 1) > TOLERANCE[dtype]:
            wrong.append(
                f"{kind} {method} {dtype} recompute={recompute}: gradient {error:.2e}, loss {mean} {loss}"
            )
    return wrong


def test_ddp_with_every_degree_in_one_step():
    cases = [("ddp", MIXED, m, torch.float64, False) for m in ("all_gather", "ring", "ulysses", "auto")]
    cases += [
        ("ddp", THREE, "ring", torch.float64, False),
        ("ddp", THREE, "all_gather", torch.float64, False),
        ("ddp", MIXED, "ring", torch.float32, False),
        ("ddp", MIXED, "ring", torch.float64, True),
        ("ddp", EVEN, "auto", torch.float64, False),
    ]
    assert run_ranks(compare_steps, 4, 4, cases) == [[]] * 4


def test_fsdp2_with_every_degree_in_one_step():
    cases = [("fsdp2", EVEN, m, torch.float64, False) for m in ("all_gather", "ring", "ulysses", "auto")]
    cases += [("fsdp2", EVEN, "ring", torch.float32, False), ("fsdp2", EVEN, "ulysses", torch.float64, True)]
    assert run_ranks(compare_steps, 4, 4, cases) == [[]] * 4


@pytest.mark.slow
def test_compiled_ddp_with_every_degree_in_one_step():
    cases = [("compiled ddp", MIXED, "ring", torch.float64, recompute) for recompute in (False, True)]
    assert run_ranks(compare_steps, 4, 4, cases) == [[]] * 4


def random_slots(random, ranks):
    """A nested step as the planner makes it: widest groups first, some ranks with more slots than others."""
    slots, sample = [], 0
    lengths = {}
    for degree in (4, 2, 1):
        for first in range(0, ranks, degree):
            for _ in range(random.integers(0, 2)):
                count = int(random.integers(1, 4))
                numbers = tuple(range(sample, sample + count))
                sample += count
                lengths |= {s: int(random.integers(1, tiny.LONGEST)) for s in numbers}
                slots.append(Group(first, degree, numbers))
    return slots, lengths


def record_exchanges(rank, ranks, seeds):
    """[(members, exchange, elements)] in the order in which this rank made them."""
    log = []

    def recorded(name):
        original = getattr(runtime.peers.Peers, name)

        def call(self, tensor, *args, **kwargs):
            log.append((self.ranks, name, tuple(tensor.shape)))
            return original(self, tensor, *args, **kwargs)

        return call

    for name in ("all_gather", "reduce_scatter", "all_to_all", "shift"):
        setattr(runtime.peers.Peers, name, recorded(name))
    groups = runtime.ContextGroups(Topology(ranks=ranks))
    model = DistributedDataParallel(tiny.build(torch.float32))
    for seed in seeds:
        slots, lengths = random_slots(np.random.default_rng(seed), ranks)
        if not lengths:
            continue
        method = ("auto", "ring", "all_gather", "ulysses")[seed % 4]
        tiny.run_step(model, tiny.batches_of(rank, ranks, slots, lengths, groups), method)
    return log


def test_every_member_makes_the_same_exchanges_in_the_same_order():
    logs = run_ranks(record_exchanges, 4, 4, range(16))
    groups = {entry[0] for log in logs for entry in log}
    assert {len(members) for members in groups} == {2, 4}
    for members in groups:
        theirs = [[entry for entry in logs[rank] if entry[0] == members] for rank in members]
        assert all(log == theirs[0] for log in theirs)


def clip_step(rank):
    groups = runtime.ContextGroups(Topology(ranks=4))
    norms = []
    for kind in ("ddp", "fsdp2"):
        model = wrap(kind, tiny.build(torch.float64))
        batches = tiny.batches_of(rank, 4, EVEN, LENGTHS, groups)
        tiny.run_step(model, batches)
        with pytest.raises(ValueError, match="last_in_step"):
            runtime.clip_grad_norm(model.parameters(), 1.0, batches[0][0])
        norms.append(float(runtime.clip_grad_norm(model.parameters(), 0.1, batches[-1][0])))
        norms.append(float(runtime.clip_grad_norm(model.parameters(), 9.9, batches[-1][0])))
    return norms


def test_the_clipped_norm_is_that_of_the_whole_step():
    _, gradient = tiny.step_gradient(LENGTHS, torch.float64)
    norm = float(torch.cat([g.flatten() for g in gradient.values()]).norm())
    for norms in run_ranks(clip_step, 4):
        assert norms == pytest.approx([norm, 0.1, norm, 0.1], rel=1e-5)
