"""From a stream and the loader's arguments to the balanced mode over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from balancer.runtime import HostGroup
from loaders.arguments import sample_capacity
from loaders.asked import Asked
from loaders.batches.reader import Reader
from loaders.faults import open_quarantine
from loaders.groups import host_group
from loaders.metrics import Metrics
from loaders.streams.cursor import Place
from loaders.streams.intake import Held, Intake
from loaders.streams.streaming import Stepping, Streaming
from loaders.streams.union import StepSize, UnionSteps, identity_of_union
from loaders.streams.window import Dividing, WindowSteps, identity_of_windows
from loaders.workers.reading import ReadingLoader
from loaders.workers.timed import TimedStream


def open_stream(dataset: Any, asked: Asked, *, host: Callable[[], HostGroup] | None = None) -> Streaming:
    """The balanced mode over a stream. Nothing is drawn from it yet.

    Args:
        dataset: the stream.
        asked: the loader's arguments.
        host: makes the group of all ranks; ``None``: of this process's own rank.
    """
    name = type(dataset).__name__
    size = StepSize(samples=asked.samples_per_step, tokens=asked.step_tokens)
    capacity = sample_capacity(asked.max_tokens, asked.cp_degrees)
    place = Place(dataset, _samples(dataset, asked), in_process=asked.beneath["num_workers"] == 0)
    intake = Intake(
        name,
        capacity=capacity,
        oversize=asked.oversize,
        quarantine=open_quarantine([], asked.max_errors, asked.quarantine, writes_lengths=False)
        if asked.skips
        else None,
        length=asked.length,
        phases=sorted(asked.phases or ()),
    )
    sources = [intake.source]
    if asked.exchange:
        sources = [Held(f"{name} of rank {other}") for other in range(asked.topology.ranks)]
        sources[asked.rank] = intake.source
    reader = Reader(sources, capacity=capacity, collate_fn=asked.collate_fn, pad_to=asked.pad_to)
    return Streaming(
        place,
        name=name,
        identity=_identity(name, size, capacity, asked),
        stepping=_stepping(place, intake, sources, size, asked),
        reader=reader,
        metrics=Metrics.of(asked.max_tokens, 1),
        host=host or (lambda: host_group(asked.topology, asked.rank, asked.device_mesh)),
        groups=asked.context_groups,
        pin=asked.beneath["pin_memory"] and torch.cuda.is_available(),
        count=lambda: _count(dataset, size, asked.topology.ranks, asked.drop_last),
    )


def _samples(dataset: Any, asked: Asked) -> Callable[[], Iterable[Any]]:
    """What to iterate for the stream's samples: in this process the stream, else torch's workers over it."""
    timeout_s = asked.beneath["timeout"]
    if asked.beneath["num_workers"] == 0:
        return lambda: TimedStream(dataset, timeout_s) if timeout_s else dataset
    beneath = {**asked.beneath, "collate_fn": _as_it_is, "pin_memory": False}
    loader: Any = ReadingLoader(dataset, batch_size=None, **beneath)
    return lambda: loader


def _as_it_is(sample: Any) -> Any:
    """No collation: samples come from the workers one by one."""
    return sample


def _identity(name: str, size: StepSize, capacity: int, asked: Asked) -> Mapping[str, Any]:
    ranks = asked.topology.ranks
    if asked.exchange:
        steps = identity_of_union(size, capacity, asked.oversize)
    else:
        assert size.samples is not None
        steps = identity_of_windows(size.samples // ranks, asked.window, asked.max_tokens)
    return {
        "stream": name,
        "rank": f"{asked.rank} of {ranks}",
        "workers": asked.beneath["num_workers"],
        **steps,
    }


def _stepping(place: Place, intake: Intake, sources: list[Held], size: StepSize, asked: Asked) -> Stepping:
    options = asked.plan_options(asked.max_tokens)
    if not asked.exchange:
        assert size.samples is not None
        dividing = Dividing(
            batch_size=size.samples // asked.topology.ranks,
            window=asked.window,
            planner=asked.planner,
            options=options,
        )
        return WindowSteps(place, intake, dividing=dividing, drop_last=asked.drop_last)
    return UnionSteps(
        place,
        intake,
        sources,
        size=size,
        planner=asked.planner,
        options=options,
        topology=asked.topology,
        drop_last=asked.drop_last,
        pad_slots=asked.pad_slots,
        setup=f"steps of {size}, drop_last={asked.drop_last}, max_tokens={asked.max_tokens}, "
        f"sync={asked.sync!r}, cp_degrees={asked.cp_degrees}, phases={sorted(asked.phases or ())}",
    )


def _count(dataset: Any, size: StepSize, ranks: int, drop_last: bool) -> int:
    """Steps of an epoch, if all ranks' streams are as long as this one's.

    Raises:
        TypeError: the stream has no length, or steps are counted in tokens.
    """
    if size.samples is None or not hasattr(dataset, "__len__"):
        why = "steps end by their tokens" if hasattr(dataset, "__len__") else "the stream itself has none"
        raise TypeError(
            f"a loader over {type(dataset).__name__!r} has no len(): {why}. Count steps by batch.step, and "
            "give schedules a number of steps or tokens."
        )
    samples = len(dataset) * ranks
    return samples // size.samples if drop_last else -(-samples // size.samples)
