"""What a balanced loader was asked for: its arguments, checked by themselves and against each other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from balancer import POLICIES, CostModel, Planner, StepPlan, Topology, plan_step
from balancer.planning.problem import SYNC_MODES, check_kinds
from balancer.runtime import ContextGroups, world
from loaders.arguments import (
    check_address,
    check_assignment,
    check_cap,
    check_count,
    check_faults,
    check_grouping,
    check_order,
    check_phases,
    check_slots,
    check_stream,
    check_switches,
    checked_degrees,
    checked_pads,
    chosen_seed,
    pads_slots,
    refuse_over_rows,
    refuse_over_streams,
    slot_options,
)
from loaders.batches.reader import CollateFn
from loaders.catalog import OVERSIZE
from loaders.groups import context_groups
from loaders.lookalikes import only_balanced
from loaders.memory import Memory
from loaders.order.steps import StepTokens
from loaders.planning.encoders import encoders_too
from loaders.planning.separate import ASSIGNMENTS
from loaders.sources.streams import is_stream
from packing.checks import check_choice
from packing.table import SampleTable

logger = logging.getLogger(__name__)

ENGINES = ("local", "ray")
BENEATH = (
    "num_workers",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
)
"""Arguments that the torch loader beneath, which reads, takes as they are."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Asked:
    """The arguments of `DataLoader`, by the same names; where one is not as it was passed, it says so."""

    batch_size: int
    """1 where something else fixes the samples of a step."""
    shuffle: bool | None
    collate_fn: CollateFn | None
    drop_last: bool
    beneath: Mapping[str, Any]
    """`BENEATH`."""
    max_tokens: int
    """What fits the memory as well."""
    cost: CostModel
    """The generic one where none was passed."""
    cost_is_generic: bool
    topology: Topology
    rank: int
    device_mesh: Any
    cp_degrees: tuple[int, ...]
    """Rising, each once."""
    sync: str
    global_batch_size: int | None
    step_tokens: StepTokens | None
    policy: str
    oversize: str
    length: str | Callable[[Any], int] | None
    pad_to: tuple[int, ...]
    """Rising; empty: any size, or see ``pad_slots``."""
    pad_slots: bool
    """Whether batches are padded to the largest of their slot."""
    seed: int
    """That of the generator or of the data, where none was passed."""
    engine: str
    address: str | None
    phases: Mapping[str, Any] | None
    assignment: str
    fill_media: bool | None
    on_error: str
    max_errors: int | float
    quarantine: str | None
    bos: int | None
    eos: int | None
    max_samples: int | None
    micro_batches: int | None
    slots_multiple_of: int
    memory: Memory | None
    device: Any
    group_media: bool
    window: int
    exchange: bool

    @property
    def separate(self) -> bool:
        """Whether encoders have an assignment of their own."""
        return self.assignment == "separate"

    @property
    def skips(self) -> bool:
        """Whether samples that cannot be read are skipped."""
        return self.on_error == "skip"

    @property
    def samples_per_step(self) -> int | None:
        """Over all ranks; ``None`` where a step ends by its tokens."""
        if self.global_batch_size is not None or self.step_tokens is not None:
            return self.global_batch_size
        return int(self.batch_size) * self.topology.ranks

    @property
    def planner(self) -> Callable[..., StepPlan]:
        """What plans a step, whose encoders' work is weighed where ``phases`` says what it costs."""
        return plan_step if self.phases is None else encoders_too(self.phases)

    def bound_planner(self, max_tokens: int) -> Callable[[SampleTable], StepPlan]:
        """`planner` with what is that of every step. Without encoders, arguments are checked once.

        Args:
            max_tokens: what samples may take of a rank's tokens.
        """
        options = {"topology": self.topology, **self.plan_options(max_tokens)}
        return Planner(**options) if self.phases is None else partial(self.planner, **options)

    def plan_options(self, max_tokens: int) -> dict[str, Any]:
        """Keyword arguments of `planner` that are those of every step.

        Args:
            max_tokens: what samples may take of a rank's tokens.
        """
        return {
            "max_tokens": max_tokens,
            "cost": self.cost,
            "cp_degrees": self.cp_degrees,
            "sync": self.sync,
            **({"policy": self.policy} if self.phases is None else {}),
            "seed": self.seed,
            "max_samples": self.max_samples,
            **slot_options(self.micro_batches, self.slots_multiple_of),
        }

    def context_groups(self) -> ContextGroups | None:
        """Process groups of context parallelism; see `loaders.groups.context_groups`."""
        return context_groups(self.topology, self.rank, self.cp_degrees, self.device_mesh)


def asked_of(dataset: Any, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> Asked:
    """The arguments of a loader with ``max_tokens``, checked. Finds this process's rank.

    Args:
        dataset: what is loaded.
        arguments: all of `DataLoader`'s, by their names.
        defaults: what they are when nobody passes them.

    Raises:
        ValueError: an argument is out of range, or conflicts with another.
        TypeError: a topology, cost or memory is something else.
    """
    given = SimpleNamespace(**arguments)
    if given.collate_fn is only_balanced:  # from another loader's attribute
        given.collate_fn = None
    check_order(
        given.sampler, given.batch_sampler, given.batch_size, given.global_batch_size, given.step_tokens
    )
    check_count("max_tokens", given.max_tokens)
    if given.collate_fn is not None and not callable(given.collate_fn):
        raise TypeError(
            f"collate_fn must be a function of a micro-batch's samples, got {given.collate_fn!r}."
        )
    check_choice("sync", given.sync, SYNC_MODES)
    check_choice("policy", given.policy, POLICIES)
    check_choice("oversize", given.oversize, OVERSIZE)
    check_choice("engine", given.engine, ENGINES)
    check_address(given.engine, given.address)
    check_faults(given.on_error, given.max_errors, given.quarantine)
    check_phases(given.phases, given.policy)
    check_slots(given.micro_batches, given.slots_multiple_of, given.max_samples, given.phases)
    check_switches(group_media=given.group_media, exchange=given.exchange)
    if given.fill_media is not None:
        check_switches(fill_media=given.fill_media)
    check_grouping(given.group_media, given.sync)
    check_choice("assignment", given.assignment, ASSIGNMENTS)
    if given.assignment == "separate":
        check_assignment(given.phases, given.fill_media, given.group_media)
    check_kinds(
        Topology(ranks=1) if given.topology is None else given.topology,
        CostModel.generic() if given.cost is None else given.cost,
    )
    if given.device_mesh is not None and not hasattr(given.device_mesh, "mesh_dim_names"):
        raise TypeError(
            "device_mesh must be a torch DeviceMesh, as init_device_mesh makes it, got "
            f"{given.device_mesh!r}."
        )
    if not isinstance(given.memory, Memory | None):
        raise TypeError(f"memory must be a loaders.memory.Memory(budget_bytes=...), got {given.memory!r}.")
    max_tokens = given.max_tokens if given.memory is None else given.memory.lowered(given.max_tokens)
    check_count("window", given.window)
    if not given.in_order:
        logger.warning("in_order=False has no effect with max_tokens: a step's last batch comes last.")
    topology, rank = world(given.topology, given.rank, given.device_mesh)
    degrees = checked_degrees(given.cp_degrees, topology.ranks)
    check_cap(max_tokens, degrees)
    alike = not is_stream(dataset) or given.exchange  # all ranks know what the others are given
    pad_slots = pads_slots(given.pad_to, given.sync, not alike, given.collate_fn)
    pad_to = checked_pads(given.pad_to, max_tokens)
    if given.memory is not None:
        given.memory.check_pads(pad_to)
    if not is_stream(dataset):
        refuse_over_rows(exchange=given.exchange, window=given.window)
    else:
        refuse_over_streams(arguments, defaults, exchange=given.exchange)
        check_stream(
            exchange=given.exchange,
            ranks=topology.ranks,
            window=given.window,
            cp_degrees=degrees,
            global_batch_size=given.global_batch_size,
            step_tokens=given.step_tokens,
            length=given.length,
            phases=given.phases,
            oversize=given.oversize,
            fill_media=given.fill_media,
        )
    found = {
        "batch_size": 1 if given.batch_size is None else int(given.batch_size),
        "beneath": {name: arguments[name] for name in BENEATH},
        "max_tokens": max_tokens,
        "cost": CostModel.generic() if given.cost is None else given.cost,
        "cost_is_generic": given.cost is None,
        "topology": topology,
        "rank": rank,
        "cp_degrees": degrees,
        "pad_to": pad_to,
        "pad_slots": pad_slots,
        "seed": chosen_seed(given.seed, given.generator, dataset),
        "quarantine": None if given.quarantine is None else os.fspath(given.quarantine),
    }
    as_given = {name: value for name, value in vars(given).items() if name in Asked.__slots__}
    return Asked(**as_given | found)
