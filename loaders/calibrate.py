"""Measures how long a model takes, and fits the cost model that plans its steps.

    cost = calibrate(model, max_tokens=8192).cost

The model runs forward and backward on micro-batches of random tokens: single samples of many lengths, packs
of equal ones, mixed packs. Repeats go round all of them in turn, so that a drift of the machine's speed
touches all alike, and the fastest repeat of each counts.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from balancer.cost import CostModel
from balancer.runtime.running import running
from loaders.batches.batch import Batch, Place

Lengths = tuple[int, ...]
MakeBatch = Callable[[Sequence[int], torch.device], Any]
Loss = Callable[[nn.Module, Any], torch.Tensor]
Progress = Callable[[int, int, str], None]

SHORTEST = 32
"""Shortest sample measured, where ``max_tokens`` allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What was measured, and the model that describes it."""

    cost: CostModel
    measurements: list[tuple[Lengths, int, float]]
    """(lengths, CP degree, seconds) of each counted run: what `CostModel.fit` takes."""
    too_large: list[Lengths]
    """Micro-batches that did not fit the device's memory and were left out."""


class UnfitModel(TypeError):
    """A model cannot be called with the batch that it was given."""


def flat_batch(lengths: Sequence[int], device: torch.device, *, vocab_size: int = 256) -> Batch:
    """Random tokens in a `loaders.Batch`: samples end to end, with their borders, the only batch of a step.

    lengths: [n] tokens of each sample. Tensors: ``input_ids``, ``labels``, ``shift_labels``, ``position_ids``
    int64[1, T]; ``seq_idx`` int32[1, T]; ``cu_seq_lens_q/k`` int32[n + 1]; ``max_length_q/k`` int.
    """
    total = sum(lengths)
    generator = torch.Generator().manual_seed(total)
    ids = torch.randint(0, vocab_size, (1, total), generator=generator)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    labels = torch.where(positions == 0, -100, ids)
    borders = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    shifted = torch.cat([labels[:, 1:], torch.full((1, 1), -100)], dim=1)
    inputs = {
        "input_ids": ids,
        "labels": labels,
        "shift_labels": shifted,
        "position_ids": positions,
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None].int(),
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    return Batch(inputs, place=_place(lengths)).to(device)


def _place(lengths: Sequence[int]) -> Place:
    """That of a job of one rank, whose step is this batch."""
    rows = np.arange(len(lengths))
    num_loss_tokens = sum(lengths) - len(lengths)
    return Place(
        step=0,
        slot=0,
        last_in_step=True,
        cp_degree=1,
        cp_rank=0,
        first_rank=0,
        sample_ids=np.stack([np.zeros_like(rows), rows], axis=1),
        starts=np.zeros(rows.size, np.int64),
        seq_lengths=np.array(lengths, np.int32),
        num_loss_tokens=num_loss_tokens,
        step_loss_tokens=num_loss_tokens,
        num_ranks=1,
        step_samples=rows.size,
    )


def forward_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """A scalar to go backward from: ``model(**batch)`` or ``model(*batch)``, its loss or summed output.

    Raises:
        UnfitModel: its ``forward`` does not take these names.
        TypeError: the model returned nothing that could be summed.
    """
    if isinstance(batch, Mapping):
        try:
            output = model(**batch)
        except TypeError:
            _check_call(model, batch)  # only now: looking at the signature takes time that is measured
            raise
    elif isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        loss = output[0] if isinstance(output, tuple | list) else getattr(output, "logits", output)
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}, no tensor and without loss or logits. "
            "Give loss=, a function (model, batch) -> scalar tensor."
        )
    return loss.sum()


def _check_call(model: Any, batch: Mapping[str, Any]) -> None:
    """Raises UnfitModel where ``model(**batch)`` would not reach the model's code."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):  # compiled code does not tell
        return
    try:
        signature.bind(**batch)
    except TypeError as error:
        called = ", ".join(f"{name}=..." for name in batch)
        raise UnfitModel(
            f"the model was called as model({called}), which its forward{signature} does not take: {error}. "
            "Pass --batch or --loss (in Python give the function: make_batch= or loss=) so that it can be "
            "called otherwise."
        ) from error


def micro_batches(max_tokens: int, max_length: int) -> list[Lengths]:
    """What to measure: halving lengths, alone and as full packs, and packs of mixed lengths."""
    lengths = []
    length = max_length
    while length >= min(SHORTEST, max_length):
        lengths.append(length)
        length //= 2
    singles = [(length,) for length in lengths]
    packs = [(length,) * (max_tokens // length) for length in lengths if max_tokens // length > 1]
    rng = np.random.default_rng(0)
    mixed = []
    for share in (1.0, 0.5, 0.25):
        room, pack = int(max_tokens * share), []
        while room >= min(SHORTEST, max_length):
            length = int(min(rng.lognormal(np.log(max(max_length / 8, 16)), 1.0), max_length, room))
            pack.append(max(length, 1))
            room -= pack[-1]
        mixed.append(tuple(pack))
    return list(dict.fromkeys([*singles, *packs, *[pack for pack in mixed if pack]]))


def calibrate(
    model: nn.Module,
    make_batch: MakeBatch | None = None,
    *,
    loss: Loss = forward_loss,
    device: torch.device | str | None = None,
    max_tokens: int = 8192,
    max_length: int | None = None,
    repeats: int = 5,
    budget_s: float = 120.0,
    attention: str = "causal",
    beyond: str = "warn",
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure ``model`` on ``device`` and fit its cost.

    Only one device is measured, so the model knows CP degree 1. For other degrees add communication, derived
    or published: `CostModel.with_communication`.

    Args:
        model: what to train; it is moved to ``device`` and left in training mode.
        make_batch: (lengths, device) -> what ``loss`` takes; by default `flat_batch`, with the model's
            ``config.vocab_size`` where it has one.
        loss: (model, batch) -> scalar tensor; by default ``model(**batch)``, its loss or summed output. A
            `loaders.Batch`, as `flat_batch` makes it, is also what `balancer.runtime.attention` takes, and
            `balancer.runtime.current_batch` while it runs.
        device: where to measure; by default where the parameters are.
        max_tokens: tokens of the largest micro-batch.
        max_length: longest sample; by default ``max_tokens``.
        repeats: counted runs of each micro-batch.
        budget_s: seconds after which no further round of repeats begins.
        attention: which pairs the model attends to, see `balancer.costs.attention`.
        beyond: what the fitted model does with lengths and degrees that were not measured.
        progress: called with (runs done, runs planned, what is running).
        clock: seconds; `time.process_time` on a machine that others share.

    Raises:
        UnfitModel: the model cannot be called with the batch.
        ValueError: settings out of range.
        RuntimeError: too few micro-batches fitted the device's memory.
    """
    longest = max_tokens if max_length is None else min(max_length, max_tokens)
    if max_tokens < 2 or longest < 2 or repeats < 1:
        raise ValueError(
            "calibrate needs max_tokens and max_length of at least 2 and repeats of at least 1, got "
            f"{max_tokens}, {longest} and {repeats}."
        )
    target = _device_of(model) if device is None else torch.device(device)
    model = model.to(target).train()
    maker = make_batch or _maker_for(model)

    def run(lengths: Lengths) -> float:
        batch = maker(lengths, target)
        _synchronize(target)
        start = clock()
        with running(batch) if isinstance(batch, Batch) else nullcontext():
            torch.autograd.backward(loss(model, batch))
        _synchronize(target)
        seconds = clock() - start
        model.zero_grad(set_to_none=True)
        return seconds

    shapes = micro_batches(max_tokens, longest)
    measurements, too_large = _rounds(run, shapes, repeats, budget_s, progress)
    if not measurements:
        raise RuntimeError(f"no micro-batch fitted the memory of {target}. Lower max_tokens={max_tokens}.")
    cost = CostModel.fit(
        measurements,
        attention=attention,
        beyond=beyond,
        source=f"{type(model).__name__} measured on {_device_name(target)}",
    )
    return Calibration(cost=cost, measurements=measurements, too_large=too_large)


def _rounds(
    run: Callable[[Lengths], float],
    shapes: list[Lengths],
    repeats: int,
    budget_s: float,
    progress: Progress | None,
) -> tuple[list[tuple[Lengths, int, float]], list[Lengths]]:
    """(measurements, shapes that ran out of memory). Round 0 warms every shape up and is not counted."""
    measurements: list[tuple[Lengths, int, float]] = []
    too_large: list[Lengths] = []
    end = time.monotonic() + budget_s
    total = len(shapes) * (repeats + 1)
    for number in range(repeats + 1):
        if number > 1 and time.monotonic() > end:
            break
        for i, lengths in enumerate(shapes):
            if progress is not None:
                progress(number * len(shapes) + i, total, f"{len(lengths)} x {max(lengths)} tokens")
            if lengths in too_large:
                continue
            try:
                seconds = run(lengths)
            except torch.OutOfMemoryError:
                too_large.append(lengths)
                measurements = [row for row in measurements if row[0] != lengths]
                continue
            if number > 0:
                measurements.append((lengths, 1, seconds))
    if progress is not None:
        progress(total, total, "done")
    return measurements, too_large


def _maker_for(model: nn.Module) -> MakeBatch:
    vocab_size = getattr(getattr(model, "config", None), "vocab_size", None) or 256
    return lambda lengths, device: flat_batch(lengths, device, vocab_size=int(vocab_size))


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _synchronize(device: torch.device) -> None:
    """Wait for queued work, without which a GPU's clock stops too early."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)
