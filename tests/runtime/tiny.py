"""A tiny transformer on flat tokens, hand-made steps of micro-batches, and the same step in one process."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from balancer import runtime
from balancer.sharding import shard
from tests.runtime import reference
from tests.runtime.batches import PlainBatch

VOCABULARY, WIDTH, HEADS, KEY_HEADS, LONGEST = 29, 16, 4, 2, 64


@dataclass(frozen=True)
class Group:
    """One micro-batch of a hand-made step: samples by number on ``degree`` ranks from ``first_rank``."""

    first_rank: int
    degree: int
    samples: tuple[int, ...]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, HEADS * size)
        self.kv = nn.Linear(WIDTH, 2 * KEY_HEADS * size)
        self.out = nn.Linear(HEADS * size, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x, attend):
        y = self.norm(x)
        q = self.q(y).unflatten(1, (HEADS, -1))
        k, v = self.kv(y).unflatten(1, (2, KEY_HEADS, -1)).unbind(1)
        x = x + self.out(attend(q, k, v).flatten(1))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.recompute = recompute

    def forward(self, ids, positions, attend):
        x = self.tokens(ids) + self.places(positions)
        for layer in self.layers:
            x = checkpoint(layer, x, attend, use_reentrant=False) if self.recompute else layer(x, attend)
        return self.head(x)


def build(dtype, recompute=False):
    torch.manual_seed(0)
    return Model(recompute).to(dtype)


def tokens_of(sample, length):
    return torch.from_numpy(np.random.default_rng(sample).integers(0, VOCABULARY, length))


def labels_of(ids):
    return torch.cat([ids[1:], torch.tensor([-100])])


def loss_sum(logits, labels):
    return functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def step_gradient(lengths, dtype):
    """Gradients of the step in one process, sample by sample, unpacked. lengths: {sample: tokens}."""
    model = build(dtype)
    total = torch.zeros((), dtype=dtype)
    for sample, length in lengths.items():
        ids = tokens_of(sample, length)
        logits = model(ids, torch.arange(length), lambda q, k, v, n=length: reference.attend(q, k, v, [n]))
        total = total + loss_sum(logits, labels_of(ids))
    loss = total / sum(length - 1 for length in lengths.values())
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


def batches_of(rank, ranks, slots, lengths, groups):
    """This rank's (batch, ids, positions, labels), in slot order; one dummy where it has nothing at all."""
    mine = []
    for group in slots:
        if not group.first_rank <= rank < group.first_rank + group.degree:
            continue
        sizes = [lengths[s] for s in group.samples]
        whole = [tokens_of(s, n) for s, n in zip(group.samples, sizes, strict=True)]
        cp_rank = rank - group.first_rank
        part = shard(sizes, group.degree, cp_rank)
        index = torch.from_numpy(part.index)
        none = torch.zeros(0, dtype=torch.int64)
        ids = torch.cat([*whole, torch.tensor([0])])[index]  # -1 takes the padding token at the end
        labels = torch.cat([none, *map(labels_of, whole), torch.tensor([-100])])[index]
        positions = torch.from_numpy(part.positions) % LONGEST
        batch = PlainBatch(cp_degree=group.degree, cp_rank=cp_rank, seq_lengths=np.asarray(sizes, np.int32))
        if not index.numel():
            ids, labels, positions = torch.tensor([0]), torch.tensor([-100]), torch.tensor([0])
        mine.append((groups.attach(batch), ids, positions, labels))
    if not mine:
        mine = [(PlainBatch(), torch.tensor([0]), torch.tensor([0]), torch.tensor([-100]))]
    for slot, (batch, _, _, labels) in enumerate(mine):
        batch.slot, batch.last_in_step, batch.num_ranks = slot, slot == len(mine) - 1, ranks
        batch.num_loss_tokens = int((labels >= 0).sum())
        batch.step_loss_tokens = sum(length - 1 for length in lengths.values())
    return mine


def run_step(model, batches, method="auto"):
    """Forward and backward of a step on this rank; its part of the loss."""
    total = 0.0
    for batch, ids, positions, labels in batches:
        with runtime.no_sync(model, batch):
            logits = model(ids, positions, lambda q, k, v, b=batch: runtime.attention(q, k, v, b, method))
            loss = loss_sum(logits, labels)
            runtime.scale_loss(loss, batch).backward()
        total += float(loss.detach())
    return total
