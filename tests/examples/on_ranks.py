"""What tests run on real ranks, and what it is compared with: one process, a sample at a time, unpacked."""

from __future__ import annotations

import numpy as np
import torch
from model import Transformer, token_losses
from padded import pad
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from train import train_packed

from balancer import CostModel, runtime
from loaders import DataLoader, open_source

VOCABULARY = 4096
COST = CostModel(linear=1e-4, quadratic=1e-7, fixed=1e-3)


def make_model(dtype=torch.float64):
    torch.manual_seed(0)
    return Transformer(vocabulary=VOCABULARY, width=32, layers=2, heads=2).to(dtype)


def make_loader(files, policy, batch_size, drop_last, max_tokens, **where):
    return DataLoader(
        open_source([str(file) for file in files]),
        batch_size=batch_size,
        shuffle=True,
        drop_last=drop_last,
        seed=3,
        max_tokens=max_tokens,
        oversize="split",
        cost=COST,
        policy=policy,
        **where,
    )


def gradient_of_step(rank, files, dtype, policy, max_tokens):
    """This rank's gradient after the first step, and the pieces that it ran."""
    model = make_model(dtype)
    wrapped = DistributedDataParallel(model)
    pieces = []
    for batch in make_loader(files, policy, 6, True, max_tokens):
        pieces.append((batch.sample_ids[:, 1].tolist(), batch.starts.tolist(), batch.seq_lengths.tolist()))
        with runtime.no_sync(wrapped, batch):
            runtime.scale_loss(token_losses(wrapped, batch).sum(), batch).backward()
        if batch.last_in_step:
            break
    return flat_gradient(model), pieces


def gradients_of_step(rank, files, cases):
    """Several cases in one call: starting ranks takes longer than running them."""
    return [gradient_of_step(rank, files, *case) for case in cases]


def train_curve(rank, files, policy, steps):
    """Global mean loss of each of the first steps, with the example's own loop."""
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = train_packed(DistributedDataParallel(model), optimizer, make_loader(files, policy, 4, True, 200))
    curve = []
    for _, (loss_sum, num_labels) in zip(range(steps), losses, strict=False):
        both = torch.tensor([loss_sum, num_labels], dtype=torch.float64)
        torch.distributed.all_reduce(both)
        curve.append(float(both[0] / both[1]))
    return curve


def train_curves(rank, files, policies, steps):
    return {policy: train_curve(rank, files, policy, steps) for policy in policies}


def run_epoch(rank, files, policy, batch_size, max_tokens):
    """A whole epoch of training; what this rank was given, step by step."""
    model = make_model(torch.float32)
    wrapped = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = make_loader(files, policy, batch_size, False, max_tokens)
    steps = [[] for _ in range(len(loader))]
    for batch in loader:
        runs = zip(batch.sample_ids[:, 1].tolist(), batch.starts.tolist(), strict=True)
        steps[batch.step].append((list(runs), batch.seq_lengths.tolist(), batch.last_in_step))
        with runtime.no_sync(wrapped, batch):
            runtime.scale_loss(token_losses(wrapped, batch).sum(), batch).backward()
        if batch.last_in_step:
            optimizer.step()
            optimizer.zero_grad()
    return steps, float(sum(parameter.detach().double().sum() for parameter in model.parameters()))


def run_epochs(rank, cases):
    return [run_epoch(rank, *case) for case in cases]


def flat_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double().numpy()


def read_pieces(files, rows, starts, lengths):
    """Token ids of each piece, read without the loader; none where a rank was idle."""
    if not rows:
        return []
    source = open_source([str(file) for file in files])
    found = source.read(np.asarray(rows, np.int64))
    offsets = found.offsets[:-1] + np.asarray(starts)
    return [
        torch.from_numpy(found.input_ids[start : start + length].astype(np.int64))
        for start, length in zip(offsets, lengths, strict=True)
    ]


def backward_one_by_one(model, pieces):
    """Gradient and loss of a step: one process, one sample at a time, mean over all labels of the step."""
    labels = sum(piece.numel() - 1 for piece in pieces)
    loss_sum = 0.0
    for piece in pieces:
        loss = token_losses(model, pad([(0, piece)])).sum()
        (loss / labels).backward()
        loss_sum += float(loss.detach())
    return loss_sum / labels
