"""From data whose rows are known to the balanced mode: opened, laid out in steps, planned and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loaders.arguments import border_options, check_slot_fillers, sample_capacity
from loaders.asked import Asked
from loaders.balanced import PLAN_LIMIT_S, Balanced, InProcess, ShareQueue
from loaders.batches.device import checked_device, mover_for
from loaders.batches.reader import Reader
from loaders.faults import open_quarantine
from loaders.groups import has_peers
from loaders.metrics import Metrics
from loaders.opening import Opened, open_order
from loaders.order.steps import Steps
from loaders.planning.encoders import filler_room, filler_sizes, units_limits
from loaders.planning.limits import Limits
from loaders.planning.separate import SeparateReader, check_engine, check_sources, separate_planner
from loaders.planning.step import Planning
from loaders.quarantine import Quarantine
from loaders.ray_engine import open_engine
from loaders.ray_engine.demand import coming_tokens
from loaders.state import Cursor
from loaders.workers.reading import Noted, ReadingLoader
from loaders.workers.timed import TimedReader

if TYPE_CHECKING:
    from loaders.ray_engine.engine import Engine

logger = logging.getLogger(__name__)

SPARSE = 0.1
"""Share of ``max_tokens`` below which a step is told to be nearly empty."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """Data as it is before anything is planned: opened, and divided into steps."""

    opened: Opened
    steps: Steps
    fill_media: bool
    """Whether ranks without media that others have are given the smallest ones."""
    filler_sizes: Mapping[str, int]
    """Tokens of the filler medium of each kind; none where none are added."""
    room: int
    """Tokens of a rank that samples may take: fillers have the rest."""
    capacity: int
    """Tokens of the longest sample."""
    engine: Engine | None
    """Where the data was opened; ``None``: here."""


def prepare(dataset: Any, asked: Asked) -> Prepared:
    """Look the data's lengths up and divide its order into steps.

    Raises:
        ValueError: the data does not go with the arguments.
    """
    default = asked.sync == "micro_batch" and asked.collate_fn is None
    fills = (default if asked.fill_media is None else asked.fill_media) and not asked.separate
    sizes = filler_sizes(dataset, asked.collate_fn) if fills else {}
    check_slot_fillers(asked.pad_slots, sizes, asked.separate)
    room = asked.max_tokens - filler_room(sizes)
    capacity = sample_capacity(room, asked.cp_degrees)
    if asked.separate:
        check_engine(asked.engine)
    engine = open_engine(asked.address) if asked.engine == "ray" else None
    opened = (open_order if engine is None else engine.open)(
        dataset,
        length=asked.length,
        capacity=capacity,
        oversize=asked.oversize,
        shuffle=bool(asked.shuffle),
        seed=asked.seed,
        samples_per_step=asked.samples_per_step,
        on_bad="skip" if asked.skips else "error",
        **border_options(asked.bos, asked.eos),
    )
    steps = Steps(
        order=opened.order,
        catalogs=opened.catalogs,
        samples=asked.samples_per_step,
        tokens=asked.step_tokens,
        drop_last=asked.drop_last,
    )
    if steps.drop_last and steps.samples is not None and not steps.count(Cursor()):
        logger.warning(
            "%d samples do not make one step of %d, and drop_last leaves smaller steps out.",
            opened.order.size(0),
            steps.samples,
        )
    _tell_sparse_steps(steps, asked)
    return Prepared(
        opened=opened,
        steps=steps,
        fill_media=fills,
        filler_sizes=sizes,
        room=room,
        capacity=capacity,
        engine=engine,
    )


def _tell_sparse_steps(steps: Steps, asked: Asked) -> None:
    """Say so where ``batch_size``, which is 1 as in torch, was forgotten: packs would stay nearly empty."""
    if steps.samples is None or not steps.order.size(0):
        return
    rows = sum(len(catalog) for catalog in steps.catalogs)
    mean = sum(len(catalog) * catalog.mean_tokens for catalog in steps.catalogs) / rows
    fill = steps.samples * mean / (asked.topology.ranks * asked.max_tokens)
    if fill < SPARSE and steps.samples < steps.order.size(0):
        logger.warning(
            "a step of %d samples of %.0f tokens on average fills %.1f %% of max_tokens=%d on %d ranks: "
            "raise batch_size (samples of a rank and step), or pass global_batch_size= or step_tokens=.",
            steps.samples,
            mean,
            100 * fill,
            asked.max_tokens,
            asked.topology.ranks,
        )


def build_balanced(prepared: Prepared, asked: Asked) -> Balanced:
    """The balanced mode over opened data.

    Raises:
        ValueError: the data does not go with the arguments.
    """
    reader = _reader(prepared, asked)
    device = None if asked.device is None else checked_device(asked.device)
    pins = asked.beneath["pin_memory"] or (device is not None and device.type == "cuda")
    beneath = {**asked.beneath, "pin_memory": pins}

    def reading(queue: ShareQueue) -> Iterable[Any]:
        if prepared.engine is None:
            return _read_here(reader, queue, beneath)
        return _read_there(prepared.engine, reader, queue, asked, beneath, coming)

    def coming() -> Any:
        return coming_tokens(prepared.steps, balanced.cursor)

    timeout_s = asked.beneath["timeout"]
    limits = Limits(
        max_tokens=prepared.room, max_samples=asked.max_samples, max_units=units_limits(asked.phases)
    )
    balanced = Balanced(
        _planning(prepared, asked),
        opened=prepared.opened,
        filler_sizes=prepared.filler_sizes,
        rank=asked.rank,
        reader=reader,
        reading=reading,
        metrics=Metrics.of(asked.max_tokens, len(prepared.opened.catalogs), limits),
        groups=asked.context_groups,
        quarantine=_quarantine(prepared, asked) if asked.skips else None,
        timeout_s=max(timeout_s, PLAN_LIMIT_S) if timeout_s else 0,
        mover=None if device is None else mover_for(device),
    )
    return balanced


def _planning(prepared: Prepared, asked: Asked) -> Planning:
    return Planning(
        steps=prepared.steps,
        topology=asked.topology,
        planner=asked.bound_planner(prepared.room),
        fill_media=prepared.fill_media,
        group_media=asked.group_media,
        pad_slots=asked.pad_slots,
        separate_phases=separate_planner(asked.phases or {}) if asked.separate else None,
        options=asked.plan_options(prepared.room),
    )


def _reader(prepared: Prepared, asked: Asked) -> Reader | SeparateReader:
    sources = [catalog.source for catalog in prepared.opened.catalogs]
    layout: dict[str, Any] = {
        "capacity": prepared.capacity,
        "pad_to": asked.pad_to,
        "skip_faults": asked.skips,
    }
    if not asked.separate:
        return Reader(sources, collate_fn=asked.collate_fn, **layout)
    check_sources(sources, asked.collate_fn)
    return SeparateReader(sources, sorted(asked.phases or {}), **layout)


def _read_here(reader: Any, queue: ShareQueue, beneath: Mapping[str, Any]) -> Iterable[Any]:
    """In this process, or by torch's workers. ``beneath``: arguments of the torch loader that reads."""
    if beneath["num_workers"]:
        return ReadingLoader(Noted(reader), batch_size=None, sampler=queue, **beneath)
    here = TimedReader(reader, beneath["timeout"]) if beneath["timeout"] else reader
    if not beneath["pin_memory"]:
        return InProcess(here, queue)
    return ReadingLoader(here, batch_size=None, sampler=queue, **{**beneath, "timeout": 0})


def _read_there(
    engine: Engine,
    reader: Any,
    queue: ShareQueue,
    asked: Asked,
    beneath: Mapping[str, Any],
    coming: Callable[[], Any],
) -> Iterable[Any]:
    """On a Ray cluster."""
    return engine.reading(
        reader,
        queue,
        rank=asked.rank,
        coming=coming,
        ahead=beneath["num_workers"] * (beneath["prefetch_factor"] or 2) or 4,
        has_peers=has_peers(asked.topology),
        pin_memory=beneath["pin_memory"] and torch.cuda.is_available(),
        timeout_s=beneath["timeout"],
    )


def _quarantine(prepared: Prepared, asked: Asked) -> Quarantine:
    return open_quarantine(
        [catalog.source for catalog in prepared.opened.catalogs],
        asked.max_errors,
        asked.quarantine,
        writes_lengths=asked.rank == 0,
        lost=None if prepared.engine is None else prepared.engine.lost,
    )
