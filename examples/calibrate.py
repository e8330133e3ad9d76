"""How long this model takes on this machine: the cost model that plans its steps."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from model import token_losses
from torch import nn

from balancer import CostModel


def packed_sample(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """A micro-batch of random tokens with these samples end to end."""
    tokens = torch.randint(0, 256, (1, sum(lengths)))
    borders = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": tokens, "position_ids": positions, "cu_seq_lens_q": borders, "shift_labels": tokens}


def calibrate(model: nn.Module, *, longest: int, repeats: int = 4) -> CostModel:
    """Fit seconds a token, an attended pair and a micro-batch to forward + backward of ``model``.

    Each micro-batch counts with its fastest repeat, in CPU time: what slows a repeat down is always the
    rest of the machine. All ranks measure at once, as they will compute, and then agree on the mean of their
    measurements, since equal plans need equal costs.
    """
    micro_batches = [(longest // part,) * many for part in (1, 2, 4, 8) for many in (1, part)]
    micro_batches += [(16,), (16,) * 64]
    micro_batches = list(dict.fromkeys(micro_batches))
    fastest = torch.full((len(micro_batches),), float("inf"), dtype=torch.float64)
    for _ in range(repeats):
        for number, lengths in enumerate(micro_batches):
            batch = packed_sample(lengths)
            start = time.process_time()
            token_losses(model, batch).sum().backward()
            fastest[number] = min(fastest[number], time.process_time() - start)
            model.zero_grad()
    if dist.is_initialized():
        dist.all_reduce(fastest)
        fastest /= dist.get_world_size()
    rows = [(lengths, 1, float(seconds)) for lengths, seconds in zip(micro_batches, fastest, strict=True)]
    return CostModel.fit(rows)
