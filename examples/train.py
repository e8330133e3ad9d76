"""Train one small transformer on the same steps in three ways, and measure what each costs.

    torchrun --nproc-per-node 2 examples/train.py --data demo --out demo/results.json

The two loops below are what a user writes. Ways take turns at every step, so that each pair of
measurements is of the same samples within seconds: a machine's speed drifts by more than what is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from calibrate import calibrate
from clock import StepClock, StepRecord
from compare import results
from model import Transformer, token_losses
from padded import GivenOrderSampler, TokenRows, pad
from predict import predict_epoch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from table import print_results
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from balancer import CostModel, runtime
from loaders import DataLoader, open_source

WARM_UP_STEPS = 2
"""Kernels compile, allocators and DDP's buckets settle: these steps train, but are not measured."""

LEAST_STEPS = WARM_UP_STEPS + 4
"""Enough for a picture of four steps, also where the time would not do."""

Loss = tuple[float, int]
"""Sum over this rank's tokens of a step, and their number."""


def train_padded(model: nn.Module, optimizer: Optimizer, loader: Any) -> Iterator[Loss]:
    """Torch's loader: one padded batch a step."""
    for batch in loader:
        num_labels = int((batch["shift_labels"] != -100).sum())
        loss_sum = token_losses(model, batch).sum()
        (loss_sum / max(num_labels, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss_sum.detach()), num_labels


def train_packed(model: nn.Module, optimizer: Optimizer, loader: Any) -> Iterator[Loss]:
    """Evenload's loader: micro-batches, as many as this rank's share of the step needs."""
    step_loss, num_labels = 0.0, 0
    for batch in loader:
        with runtime.no_sync(model, batch):
            loss_sum = token_losses(model, batch).sum()
            runtime.scale_loss(loss_sum, batch).backward()
        step_loss += float(loss_sum.detach())
        num_labels += batch.num_loss_tokens
        if batch.last_in_step:
            optimizer.step()
            optimizer.zero_grad()
            yield step_loss, num_labels
            step_loss, num_labels = 0.0, 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the three ways share."""

    files: list[str]
    batch_size: int
    """Samples for each rank in a step."""
    max_tokens: int
    cost: CostModel
    seed: int
    learning_rate: float


def packed_loader(settings: Settings, policy: str) -> DataLoader:
    """Evenload's loader with one of its policies: the only thing in which (b) and (c) differ."""
    return DataLoader(
        open_source(settings.files),
        batch_size=settings.batch_size,
        shuffle=True,
        drop_last=True,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        oversize="split",
        cost=settings.cost,
        policy=policy,
    )


def padded_loader(settings: Settings, rank: int, ranks: int) -> torch.utils.data.DataLoader[Any]:
    """Torch's loader on the same samples: the order is evenload's, dealt as a distributed sampler deals.

    Raises:
        ValueError: a row is longer than ``max_tokens``, which this way would not split.
    """
    dataset = TokenRows(settings.files)
    loader = packed_loader(settings, "equal_samples")
    if loader.metrics()["split"]:
        raise ValueError(
            f"rows may have {settings.max_tokens} tokens, {loader.metrics()['split']} have more. torch's "
            f"loader would pad to them: run examples/corpus.py with --cut {settings.max_tokens}."
        )
    order = list(loader.sampler)
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=settings.batch_size,
        sampler=GivenOrderSampler(dataset, order, num_replicas=ranks, rank=rank),
        drop_last=True,
        collate_fn=pad,
    )


@dataclass(kw_only=True)
class Way:
    """One way to train, with a model of its own that starts from the same weights."""

    policy: str
    clock: StepClock
    steps: Iterator[Loss]

    def run(self, step: int, rank: int) -> StepRecord:
        """The next step, measured."""
        record = StepRecord(policy=self.policy, step=step, rank=rank)
        self.clock.begin(record)
        loss = next(self.steps)
        self.clock.end()
        record.loss_sum, record.loss_tokens = loss
        return record


def make_ways(settings: Settings, make_model: Callable[[], nn.Module], rank: int, ranks: int) -> list[Way]:
    """(a) padded, (b) packed but not balanced, (c) balanced: each with its loader and its loop."""
    ways = []
    for policy, loop, loader in (
        ("padded", train_padded, padded_loader(settings, rank, ranks)),
        ("packed", train_packed, packed_loader(settings, "equal_samples")),
        ("balanced", train_packed, packed_loader(settings, "balanced")),
    ):
        model = make_model()
        optimizer = AdamW(model.parameters(), lr=settings.learning_rate)
        clock = StepClock(model, optimizer, count=partial(count_batch, settings))
        steps = loop(DistributedDataParallel(model), optimizer, clock.watch(loader))
        ways.append(Way(policy=policy, clock=clock, steps=steps))
    return ways


def count_batch(settings: Settings, record: StepRecord, batch: Any) -> None:
    """Add a micro-batch's samples, tokens and predicted seconds to its step."""
    cost = settings.cost
    record.computed_tokens += batch["input_ids"].numel()
    if "rows" in batch:  # padded: every sample takes the time of the longest, and a pack to itself
        samples, longest = batch["input_ids"].shape
        record.real_tokens += int(batch["lengths"].sum())
        record.capacity_tokens += samples * settings.max_tokens
        record.predicted_s += cost.fixed + samples * float(cost([longest])[0])
        record.samples.extend(batch["rows"])
    else:
        record.real_tokens += int(batch.seq_lengths.sum())
        record.capacity_tokens += settings.max_tokens
        record.predicted_s += cost.fixed + float(cost(batch.seq_lengths).sum())
        record.samples.extend(batch.sample_ids[:, 1].tolist())


def take_turns(ways: list[Way], *, seconds: float, most_steps: int, rank: int) -> Iterator[StepRecord]:
    """Every way does a step before any does the next; each time another one begins.

    Ends after ``most_steps``, or after at least `LEAST_STEPS` when rank 0 finds that the next round would
    take it beyond ``seconds``.
    """
    start = time.monotonic()
    for step in range(most_steps):
        at = step % len(ways)
        for way in ways[at:] + ways[:at]:
            dist.barrier()
            yield way.run(step, rank)
        used = time.monotonic() - start
        goes_on = torch.tensor(step + 1 < LEAST_STEPS or used * (step + 2) / (step + 1) < seconds)
        dist.broadcast(goes_on, src=0)
        if not goes_on:
            return


def check_same_samples(records: list[StepRecord]) -> None:
    """Raises RuntimeError unless all ways had the same samples in each step."""
    samples: dict[int, dict[str, list[int]]] = {}
    for record in records:
        samples.setdefault(record.step, {}).setdefault(record.policy, []).extend(record.samples)
    for step, ways in samples.items():
        sets = {policy: tuple(sorted(rows)) for policy, rows in ways.items()}
        if len(set(sets.values())) != 1:
            raise RuntimeError(f"step {step}: the ways did not train on the same samples: {sets}")


def run(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """All of it on this rank; the results on rank 0."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    vocabulary = json.loads((arguments.data / "tokenizer.json").read_text())["model"]["vocab"]

    def make_model() -> nn.Module:
        torch.manual_seed(arguments.seed)
        return Transformer(vocabulary=len(vocabulary), width=arguments.width, layers=arguments.layers)

    say = Console(quiet=rank != 0, soft_wrap=True, highlight=False)
    say.print("measuring this model on this machine ...")
    cost = calibrate(make_model(), longest=arguments.max_tokens)
    say.print(f"cost model: {cost.linear * 1e6:.0f} us a token + {cost.quadratic * 1e9:.0f} ns a pair")
    settings = Settings(
        files=[str(arguments.data / "code.parquet"), str(arguments.data / "docs.parquet")],
        batch_size=arguments.batch_size,
        max_tokens=arguments.max_tokens,
        cost=cost,
        seed=arguments.seed,
        learning_rate=1e-3,
    )
    ways = make_ways(settings, make_model, rank, ranks)
    turns = take_turns(ways, seconds=arguments.seconds, most_steps=arguments.steps, rank=rank)
    with progress_bar(say, arguments.seconds) as advance:
        mine = [advance(record) for record in turns]
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, mine)
    records = [record for rank_records in gathered for record in rank_records]
    check_same_samples(records)
    if rank != 0:
        return None
    with say.status("predicting the whole epoch"):
        epoch = predict_epoch(packed_loader(settings, "balanced"), settings.files, cost)
    return results(
        records,
        first_step=WARM_UP_STEPS,
        ranks=ranks,
        epoch=epoch,
        model={"layers": arguments.layers, "width": arguments.width, "vocabulary": len(vocabulary)},
        cost={"linear": cost.linear, "quadratic": cost.quadratic, "fixed": cost.fixed},
        data={"batch_size": arguments.batch_size, "max_tokens": arguments.max_tokens, "seed": arguments.seed},
        machine={"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__},
    )


@contextmanager
def progress_bar(console: Console, seconds: float) -> Iterator[Callable[[StepRecord], StepRecord]]:
    """A bar over the time that the steps may take; what it yields passes records on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
    )
    hidden = not console.is_terminal
    # a thread that refreshes the bar would count among this rank's CPU time
    with Progress(*columns, console=console, transient=True, disable=hidden, auto_refresh=False) as bar:
        task = bar.add_task("training in turns", total=seconds)
        start = time.monotonic()

        def advance(record: StepRecord) -> StepRecord:
            done = f"step {record.step}, {record.policy}"
            bar.update(task, completed=time.monotonic() - start, description=done, refresh=True)
            return record

        yield advance


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("demo"), help="folder that examples/corpus.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path("demo/results.json"))
    parser.add_argument(
        "--seconds", type=float, default=125.0, help="time for the steps; as many as fit are run"
    )
    parser.add_argument("--steps", type=int, default=1000, help="run at most so many")
    parser.add_argument("--batch-size", type=int, default=8, help="samples for each rank in a step")
    parser.add_argument("--max-tokens", type=int, default=1408)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        found = run(arguments)
        dist.barrier()  # no rank's interpreter ends while a thread of gloo's still holds what was gathered
    finally:
        dist.destroy_process_group()
    if found is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1))
        print_results(found)


if __name__ == "__main__":
    main()
