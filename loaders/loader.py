"""`DataLoader`: torch's own, and with ``max_tokens`` the balanced one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Sampler

from balancer import POLICIES, CostModel, StepPlan, Topology, plan_step
from balancer.planning.problem import SYNC_MODES
from balancer.runtime import world
from loaders.arguments import (
    border_options,
    check_address,
    check_assignment,
    check_cap,
    check_choice,
    check_count,
    check_faults,
    check_grouping,
    check_order,
    check_slot_fillers,
    check_slots,
    check_stream,
    checked_degrees,
    checked_pads,
    chosen_seed,
    pads_slots,
    refuse_over_streams,
    refuse_without_effect,
    sample_capacity,
    slot_options,
)
from loaders.balanced import (
    PLAN_LIMIT_S,
    Balanced,
    InProcess,
    OrderSampler,
    Planning,
    ShareQueue,
    StepSampler,
)
from loaders.batch import Batch
from loaders.catalog import OVERSIZE
from loaders.device import checked_device, mover_for
from loaders.encoders import encoders_too, filler_room, filler_sizes, units_limits
from loaders.faults import open_quarantine
from loaders.groups import context_groups, has_peers, host_group
from loaders.limits import Limits
from loaders.lookalikes import only_balanced
from loaders.memory import Memory
from loaders.metrics import Metrics
from loaders.opening import open_order
from loaders.ray_engine import open_engine
from loaders.ray_engine.demand import apart, coming_tokens
from loaders.reader import CollateFn, Reader
from loaders.reading import Noted, ReadingLoader
from loaders.rehearsal import HeavyBatch, heaviest, rehearsed
from loaders.separate import ASSIGNMENTS, SeparateReader, check_sources, separate_planner
from loaders.sources.streams import is_stream
from loaders.state import from_state, to_state
from loaders.steps import Steps, StepTokens
from loaders.stream_cursor import cursor_of_stream, stream_state
from loaders.stream_union import StepSize, identity_of_union
from loaders.stream_window import identity_of_windows
from loaders.streaming import WINDOW, Streaming, as_it_is, open_stream
from loaders.timed import TimedReader, TimedStream
from loaders.tracing import StepView, Whereabouts, step_of_epoch, whereabouts
from loaders.unbalanced import Replayed, TorchState, iterator_of

logger = logging.getLogger(__name__)

ENGINES = ("local", "ray")
T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Torch's data loader with a state; with ``max_tokens``, packed micro-batches of equal time on all ranks.

    Without ``max_tokens`` every argument, attribute and error is torch's.

    With it, an epoch is a series of optimizer steps. The samples of a step follow from (seed, epoch,
    position) alone. They are planned over all ranks, and each rank is given its micro-batches as `Batch`,
    at least one a step; ``len(loader)`` is the number of steps of an epoch.

    Args:
        dataset: a `Source`, a `Mixture`, or anything `open_source` takes, such as a map-style torch Dataset.
        batch_size: samples per data rank and step, as torch with a ``DistributedSampler`` has it.
        shuffle: another order in each epoch.
        sampler, batch_sampler: not with ``max_tokens``, where the order is a function of the position.
        num_workers, pin_memory, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor,
            persistent_workers, pin_memory_device, in_order: torch's. Workers read and collate.
        collate_fn: makes model inputs, a mapping, of the list of a micro-batch's samples.
        drop_last: leave out the last, smaller step; otherwise it keeps all samples.
        max_tokens: tokens that one rank can hold in one micro-batch.
        cost: a `balancer.CostModel`; without it that of a generic decoder, which `metrics` says.
        topology, rank: the cluster and this process's data rank in it; or
        device_mesh: a ``DeviceMesh`` to take both from; or else ``torch.distributed``, or one rank.
        cp_degrees: how many neighbouring ranks may share a micro-batch.
        sync: ``"step"`` (ranks meet once a step: DDP with `no_sync`) or ``"micro_batch"`` (in every
            micro-batch: FSDP, ZeRO-3), where idle slots are filled with dummies.
        global_batch_size: samples of a step, whatever the number of ranks.
        step_tokens: tokens of a step, or a function of the step's number.
        policy: one of `balancer.POLICIES`.
        oversize: what becomes of samples above ``max_tokens`` times the largest degree: ``"error"``,
            ``"drop"``, ``"truncate"`` (keeps the beginning) or ``"split"``. Each piece of a split sample is a
            sequence of its own: its positions start at 0 and nothing predicts its first token. All pieces
            stay in one step.
        length: a column of lengths or a function of a sample, passed to `open_source`.
        pad_to: one or a few token counts; each batch is padded to the next, so that shapes are static. Or
            ``"slot"``, under ``sync="micro_batch"``: to the largest of all ranks in its slot, as exchanges
            between experts need it.
        seed: of the order.
        engine: where samples are read and batches built: ``"local"``, in this process and torch's workers, or
            ``"ray"``, on a Ray cluster (extra ``ray``), from where come the same batches. Torch's workers are
            then not used; about ``num_workers * prefetch_factor`` batches are asked for ahead.
        address: of the Ray cluster; without it ``RAY_ADDRESS``, or a new one on this machine.
        phases: cost of the encoders, by the names that a source's ``phases()`` has: each a
            `balancer.phases.Phase` or a cost model. Without it the encoders' work is not planned.
        assignment: of the phases: ``"joint"``, a sample's media are encoded on the ranks that read it;
            ``"separate"``, each encoder's work is divided by itself, its batches come first in each step, and
            their rows travel as ``batch.exchanges`` says (`balancer.runtime.Handover`).
        fill_media: give a rank that has no medium of a kind which others have the smallest one there is, so
            that all run the same encoders; ``None``: where ranks meet in every micro-batch. Takes the
            filler's few tokens off ``max_tokens``.
        on_error: ``"raise"``, or ``"skip"``: a sample that cannot be read keeps its place with labels -100,
            so all ranks stay aligned; one whose length cannot be found is left out. Media have their own
            rules (`MediaRules`).
        max_errors: samples that may be skipped before the run stops, on each rank: a number, or a share of
            all rows (of a stream: of those that came so far).
        quarantine: JSON lines on the skipped samples are appended to this file.
        bos, eos: ids of tokens that every sample begins and ends with; a sample that has one already is an
            error. Pieces of a split sample are cut from the whole, so the first has BOS and the last EOS. See
            `loaders.borders.Bordered`.
        max_samples: samples that a micro-batch may hold.
        micro_batches: micro-batches that every rank runs in each step, dummies among them; ``None``: as many
            as the plan needs.
        slots_multiple_of: every rank runs equally many micro-batches, a multiple of this, as pipelines need.
        memory: `loaders.memory.Memory`, what a rank has for logits and activations: lowers ``max_tokens`` to
            what fits.
        device: where batches are given out. A CUDA device's copies run beside the computation, one batch
            ahead, from page-locked memory.
        group_media: under ``sync="micro_batch"``, plan samples with the same kinds of media by themselves, so
            that fewer ranks need fillers; takes more slots.
        window: of an ``IterableDataset``: steps whose samples are held and divided into steps of equal time.
        exchange: of an ``IterableDataset``: plan all ranks' streams as one, and send samples to the ranks
            that compute them. ``False``: each rank balances its own window.

    Raises:
        ValueError: arguments that are out of range, conflict or have no effect in the chosen mode.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        max_tokens: int | None = None,
        cost: CostModel | None = None,
        topology: Topology | None = None,
        rank: int | None = None,
        device_mesh: Any = None,
        cp_degrees: Sequence[int] = (1,),
        sync: str = "step",
        global_batch_size: int | None = None,
        step_tokens: StepTokens | None = None,
        policy: str = "balanced",
        oversize: str = "error",
        length: str | Callable[[Any], int] | None = None,
        pad_to: int | Sequence[int] | str | None = None,
        seed: int | None = None,
        engine: str = "local",
        address: str | None = None,
        phases: Mapping[str, Any] | None = None,
        assignment: str = "joint",
        fill_media: bool | None = None,
        on_error: str = "raise",
        max_errors: int | float = 0.01,
        quarantine: str | os.PathLike[str] | None = None,
        bos: int | None = None,
        eos: int | None = None,
        max_samples: int | None = None,
        micro_batches: int | None = None,
        slots_multiple_of: int = 1,
        memory: Memory | None = None,
        device: Any = None,
        group_media: bool = False,
        window: int = WINDOW,
        exchange: bool = False,
    ) -> None:
        torch_arguments: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        of_rows = {
            "bos": (bos, None),
            "eos": (eos, None),
            "max_samples": (max_samples, None),
            "micro_batches": (micro_batches, None),
            "slots_multiple_of": (slots_multiple_of, 1),
            "device": (device, None),
            "group_media": (group_media, False),
            "assignment": (assignment, "joint"),
        }
        self.max_tokens = max_tokens
        self._streaming: Streaming | None = None
        if max_tokens is None:
            refuse_without_effect(
                {
                    "cost": (cost, None),
                    "topology": (topology, None),
                    "rank": (rank, None),
                    "device_mesh": (device_mesh, None),
                    "cp_degrees": (tuple(cp_degrees), (1,)),
                    "sync": (sync, "step"),
                    "global_batch_size": (global_batch_size, None),
                    "step_tokens": (step_tokens, None),
                    "policy": (policy, "balanced"),
                    "oversize": (oversize, "error"),
                    "length": (length, None),
                    "pad_to": (pad_to, None),
                    "seed": (seed, None),
                    "engine": (engine, "local"),
                    "address": (address, None),
                    "phases": (phases, None),
                    "fill_media": (fill_media, None),
                    "on_error": (on_error, "raise"),
                    "max_errors": (max_errors, 0.01),
                    "quarantine": (quarantine, None),
                    **of_rows,
                    "memory": (memory, None),
                    "window": (window, WINDOW),
                    "exchange": (exchange, False),
                }
            )
            self._balanced = None
            self._torch = TorchState()
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last, **torch_arguments
            )
            return

        if collate_fn is only_balanced:  # from another loader's attribute
            torch_arguments["collate_fn"] = collate_fn = None
        check_order(sampler, batch_sampler, batch_size, global_batch_size, step_tokens)
        check_count("max_tokens", max_tokens)
        check_choice("sync", sync, SYNC_MODES)
        check_choice("policy", policy, POLICIES)
        check_choice("oversize", oversize, OVERSIZE)
        check_choice("engine", engine, ENGINES)
        check_address(engine, address)
        check_faults(on_error, max_errors, quarantine)
        check_slots(micro_batches, slots_multiple_of, max_samples, phases)
        check_grouping(group_media, sync)
        check_choice("assignment", assignment, ASSIGNMENTS)
        separate = assignment == "separate"
        if separate:
            check_assignment(phases, fill_media, group_media)
        self.memory = memory
        if memory is not None:
            max_tokens = memory.lowered(max_tokens)
        check_count("window", window)
        if not in_order:
            logger.warning("in_order=False has no effect with max_tokens: a step's last batch comes last.")
        self.topology, self.rank = world(topology, rank, device_mesh)
        self.cp_degrees = checked_degrees(cp_degrees, self.topology.ranks)
        check_cap(max_tokens, self.cp_degrees)
        self.cost = CostModel.generic() if cost is None else cost
        self.cost_is_generic = cost is None
        self.sync, self.policy, self.oversize, self.length = sync, policy, oversize, length
        self.global_batch_size, self.step_tokens = global_batch_size, step_tokens
        pad_slots = pads_slots(pad_to, sync, is_stream(dataset) and not exchange, collate_fn)
        self.pad_to = checked_pads(pad_to, max_tokens)
        if memory is not None:
            memory.check_pads(self.pad_to)
        self.seed = chosen_seed(seed, generator, dataset)
        quarantine_path = None if quarantine is None else os.fspath(quarantine)
        if is_stream(dataset):
            planned_alike = ("max_samples", "micro_batches", "slots_multiple_of") if exchange else ()
            refuse_over_streams({name: value for name, value in of_rows.items() if name not in planned_alike})
            check_stream(
                exchange=exchange,
                ranks=self.topology.ranks,
                window=window,
                default_window=WINDOW,
                cp_degrees=self.cp_degrees,
                global_batch_size=global_batch_size,
                step_tokens=step_tokens,
                length=length,
                phases=phases,
                oversize=oversize,
                fill_media=fill_media,
            )
            super().__init__(
                dataset,
                1 if batch_size is None else batch_size,
                shuffle,
                drop_last=drop_last,
                **torch_arguments,
            )
            self._is_accelerate_prepared = True  # each rank has a stream of its own
            self.collate_fn = collate_fn or only_balanced
            self._balanced = None
            self._names: Sequence[str] = [type(dataset).__name__]
            size = StepSize.of(int(batch_size or 1) * self.topology.ranks, global_batch_size, step_tokens)
            room = sample_capacity(max_tokens, self.cp_degrees)
            self._identity = {
                "stream": type(dataset).__name__,
                "rank": f"{self.rank} of {self.topology.ranks}",
                "workers": num_workers,
                **(
                    identity_of_union(size, room, oversize)
                    if exchange
                    else identity_of_windows((size.samples or 1) // self.topology.ranks, window, max_tokens)
                ),
            }
            self._streaming = open_stream(
                dataset,
                samples=(lambda: TimedStream(dataset, timeout) if timeout else dataset)
                if num_workers == 0
                else self._sample_loader(torch_arguments),
                in_process=num_workers == 0,
                exchange=exchange,
                size=size,
                window=window,
                planner=plan_step if phases is None else encoders_too(phases, policy),
                options={
                    "max_tokens": max_tokens,
                    "cost": self.cost,
                    "cp_degrees": self.cp_degrees,
                    "sync": sync,
                    **({"policy": policy} if phases is None else {}),
                    "seed": self.seed,
                    "max_samples": max_samples,
                    **slot_options(micro_batches, slots_multiple_of),
                },
                capacity=room,
                pad_slots=pad_slots,
                oversize=oversize,
                length=length,
                phases=sorted(phases or ()),
                quarantine=open_quarantine([], max_errors, quarantine_path, writes_lengths=False)
                if on_error == "skip"
                else None,
                collate_fn=collate_fn,
                pad_to=self.pad_to,
                topology=self.topology,
                rank=self.rank,
                drop_last=drop_last,
                pin=pin_memory,
                setup=f"steps of {size}, drop_last={drop_last}, max_tokens={max_tokens}, sync={sync!r}, "
                f"cp_degrees={self.cp_degrees}, phases={sorted(phases or ())}",
                host=lambda: host_group(self.topology, self.rank, device_mesh),
                groups=lambda: context_groups(self.topology, self.rank, self.cp_degrees, device_mesh),
            )
            return
        if exchange:
            raise ValueError(
                "exchange only has an effect on an IterableDataset: the rows of other data are planned over "
                "all ranks as it is."
            )
        if window != WINDOW:
            raise ValueError(
                "window only has an effect on an IterableDataset: other data is planned as a whole."
            )
        fills = (sync == "micro_batch" and collate_fn is None) if fill_media is None else fill_media
        fills = fills and not separate
        self._filler_sizes = filler_sizes(dataset, collate_fn) if fills else {}
        check_slot_fillers(pad_slots, self._filler_sizes, separate)
        room = max_tokens - filler_room(self._filler_sizes)
        capacity = sample_capacity(room, self.cp_degrees)
        samples = global_batch_size
        if samples is None and step_tokens is None:
            samples = int(batch_size or 1) * self.topology.ranks
        ray_data = open_engine(address) if engine == "ray" else None
        opened = (open_order if ray_data is None else ray_data.open)(
            dataset,
            length=length,
            capacity=capacity,
            oversize=oversize,
            shuffle=bool(shuffle),
            seed=self.seed,
            samples_per_step=samples,
            on_bad="skip" if on_error == "skip" else "error",
            **border_options(bos, eos),
        )
        steps = Steps(
            order=opened.order,
            catalogs=opened.catalogs,
            samples=samples,
            tokens=step_tokens,
            drop_last=drop_last,
        )
        if drop_last and samples is not None and not steps.count(0):
            logger.warning(
                "%d samples do not make one step of %d, and drop_last leaves smaller steps out.",
                opened.order.size(0),
                samples,
            )
        self._order_sampler = OrderSampler(steps)
        super().__init__(
            dataset,
            1 if batch_size is None else batch_size,
            sampler=self._order_sampler,
            drop_last=drop_last,
            **torch_arguments,
        )
        self.__dict__["batch_sampler"] = StepSampler(steps, self._order_sampler)  # torch has no setter
        self._is_accelerate_prepared = True  # it is sharded by rank already
        self.collate_fn = collate_fn or only_balanced

        reader: Any = Reader(
            [catalog.source for catalog in opened.catalogs],
            capacity=capacity,
            collate_fn=collate_fn,
            pad_to=self.pad_to,
            skip_faults=on_error == "skip",
        )
        if separate:
            check_sources(reader.sources, collate_fn, engine)
            reader = SeparateReader(
                reader.sources,
                sorted(phases or {}),
                capacity=capacity,
                pad_to=self.pad_to,
                skip_faults=on_error == "skip",
            )
        reading_arguments = {**torch_arguments, "collate_fn": None, "in_order": True}
        target = None if device is None else checked_device(device)
        if target is not None and target.type == "cuda":
            pin_memory = reading_arguments["pin_memory"] = True

        def reading(queue: ShareQueue) -> Iterable[Any]:
            if ray_data is not None:
                foreseen = apart(steps)
                return ray_data.reading(
                    reader,
                    queue,
                    rank=self.rank,
                    coming=lambda: coming_tokens(foreseen, self._required().cursor),
                    ahead=num_workers * (prefetch_factor or 2) or 4,
                    has_peers=has_peers(self.topology),
                    pin_memory=pin_memory and torch.cuda.is_available(),
                    timeout_s=timeout,
                )
            if num_workers == 0:
                here = TimedReader(reader, timeout) if timeout else reader
                if not pin_memory:
                    return InProcess(here, queue)
                untimed = reading_arguments | {"timeout": 0}
                return ReadingLoader(here, batch_size=None, sampler=queue, **untimed)
            return ReadingLoader(Noted(reader), batch_size=None, sampler=queue, **reading_arguments)

        planning = Planning(
            steps=steps,
            topology=self.topology,
            planner=plan_step if phases is None else encoders_too(phases, policy),
            fill_media=fills,
            group_media=group_media,
            pad_slots=pad_slots,
            separate_phases=separate_planner(phases or {}, policy) if separate else None,
            options={
                "max_tokens": room,
                "cost": self.cost,
                "cp_degrees": self.cp_degrees,
                "sync": sync,
                **({"policy": policy} if phases is None else {}),
                "seed": self.seed,
                "max_samples": max_samples,
                **slot_options(micro_batches, slots_multiple_of),
            },
        )
        self._identity = opened.identity
        self._names = opened.names
        self._radius = opened.radius
        faults = None
        if on_error == "skip":
            sources = [catalog.source for catalog in opened.catalogs]
            faults = open_quarantine(
                sources,
                max_errors,
                quarantine_path,
                writes_lengths=self.rank == 0,
                lost=None if ray_data is None else ray_data.lost,
            )
        self._balanced = Balanced(
            planning,
            rank=self.rank,
            reading=reading,
            metrics=Metrics.of(
                max_tokens,
                len(opened.catalogs),
                Limits(max_tokens=room, max_samples=max_samples, max_units=units_limits(phases)),
            ),
            groups=lambda: context_groups(self.topology, self.rank, self.cp_degrees, device_mesh),
            quarantine=faults,
            timeout_s=max(timeout, PLAN_LIMIT_S) if timeout else 0,
            mover=None if target is None else mover_for(target),
        )
        self._reader = reader

    # ---------------------------------------------------------------- iteration

    def _sample_loader(self, torch_arguments: Mapping[str, Any]) -> Callable[[], Iterable[Any]]:
        arguments = {**torch_arguments, "collate_fn": as_it_is, "pin_memory": False}
        loader: Any = ReadingLoader(self.dataset, batch_size=None, **arguments)
        return lambda: loader

    def __iter__(self) -> Any:
        if self._streaming is not None:
            return self._streaming.start()
        if self._balanced is None:
            return self._torch.start(self, super().__iter__)
        return self._balanced.start()

    def __len__(self) -> int:
        if self._streaming is not None:
            return self._streaming.count()
        return super().__len__() if self._balanced is None else self._balanced.count()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Never required: each iteration is a new epoch."""
        if self._streaming is not None:
            self._streaming.set_epoch(epoch)
        elif self._balanced is None:
            self._torch.set_epoch(self, epoch)
        else:
            self._balanced.set_epoch(epoch)
            self._order_sampler.set_epoch(epoch)

    def _get_iterator(self) -> Any:
        return iterator_of(self)

    @property
    def _index_sampler(self) -> Any:
        sampler = super()._index_sampler
        progress = self.__dict__.get("_replay")
        return sampler if progress is None else Replayed(sampler, self, progress)

    # -------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from.

        With ``max_tokens``: the position behind the last finished step; a few hundred bytes, O(1), equal on
        all ranks. Without: the batches taken since the epoch began and the state of torch's generators then.
        """
        if self._streaming is not None:
            return stream_state(self._streaming.cursor, self._identity)
        if self._balanced is None:
            return self._torch.save(self)
        return to_state(self._balanced.cursor, self._identity)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken.

        With ``max_tokens`` the number of workers, ranks and CP degrees may be another. Without, the sampler
        is replayed up to the position, and an iterable data set without a state of its own is read up to it.

        Raises:
            ValueError: the state was saved over other data or another order; says what differs.
        """
        if self._streaming is not None:
            self._streaming.load(cursor_of_stream(state_dict, self._identity))
        elif self._balanced is None:
            self._torch.load(self, state_dict)
        else:
            self._balanced.load(from_state(state_dict, self._identity))

    # ------------------------------------------------------------------ telling

    def metrics(self) -> dict[str, Any]:
        """What the steps given out so far were like, and what became of the data's rows.

        Means over steps: ``fill``, predicted ``imbalance`` and ``gap``, ``plan_ms``. ``wait_s`` is the time
        this rank waited for batches. ``kept``, ``dropped``, ``truncated``, ``split`` and ``empty`` count rows
        of the data, whether given out yet or not; truncated and split rows are among the kept ones.
        ``shuffle_radius`` has the rows shuffled together, of sources that are not shuffled as a whole, and
        ``epochs_by_source`` how often each source's rows were given out.
        """
        cost = "generic decoder" if getattr(self, "cost_is_generic", False) else "given"
        if self._streaming is not None:
            return self._streaming.report(self._names) | {"cost": cost}
        balanced = self._required()
        catalogs = balanced.planning.steps.catalogs
        report = balanced.metrics.report(self._names, self._filler_sizes)
        for name in ("kept", "dropped", "truncated", "split", "unlabelled", "empty"):
            report[name] = sum(catalog.counts.get(name, 0) for catalog in catalogs)
        report["skipped"] = 0 if balanced.quarantine is None else len(balanced.quarantine.rejected)
        report["cut_tokens"] = sum(catalog.cut_tokens for catalog in catalogs)
        report["cost"] = cost
        report["shuffle_radius"] = dict(self._radius)
        drawn = zip(report["samples_by_source"].items(), catalogs, strict=True)
        report["epochs_by_source"] = {name: count / max(len(one), 1) for (name, count), one in drawn}
        report["max_tokens"] = balanced.metrics.max_tokens
        if self.memory is not None:
            report["memory_bytes"] = int(report["most_tokens"] * self.memory.bytes_per_token)
        return report

    @property
    def plan(self) -> StepPlan:
        """The plan of the step that the last batch belongs to, for `check_same_plan` and for looking at."""
        if self._streaming is not None and self._streaming.last_plan is not None:
            return self._streaming.last_plan
        planned = self._required().last_planned
        if planned is None:
            raise RuntimeError("no step has begun yet: the plan is known with the first batch.")
        return planned.plan

    def step(self, index: int, *, epoch: int | None = None) -> StepView:
        """The ``index``-th step of an epoch (by default of the current one), planned for all ranks."""
        balanced = self._required()
        return step_of_epoch(balanced.planning, balanced.cursor.epoch if epoch is None else epoch, index)

    def where(self, row: int, *, source: int | str = 0, epoch: int | None = None) -> list[Whereabouts]:
        """The steps, ranks and slots that compute a row of a source in an epoch (by default the current one).

        Args:
            row: row of the source, as ``sample_ids`` have it.
            source: number or name of the source in its mixture.
            epoch: which epoch.
        """
        balanced = self._required()
        if isinstance(source, str):
            if source not in self._names:
                raise ValueError(f"source must be one of {', '.join(self._names)}, got {source!r}.")
            source = list(self._names).index(source)
        chosen = balanced.cursor.epoch if epoch is None else epoch
        return whereabouts(balanced.planning, chosen, source, row)

    @property
    def planning(self) -> Planning:
        """How steps are planned, the same on all ranks."""
        return self._required().planning

    @property
    def source_names(self) -> Sequence[str]:
        """Of the sources, by the numbers that ``sample_ids`` have."""
        return self._names

    def worst(
        self, count: int = 1, *, by: str = "tokens", epoch: int | None = None, steps: int | None = None
    ) -> list[HeavyBatch]:
        """The heaviest micro-batches of an epoch (by default the current one), found without reading.

        Args:
            count: how many, heaviest first.
            by: ``"tokens"`` or ``"samples"`` of a rank, predicted ``"time"``, or a phase (``"vision"``).
            epoch: which epoch.
            steps: look at the first so many steps only.
        """
        balanced = self._required()
        chosen = balanced.cursor.epoch if epoch is None else epoch
        return heaviest(balanced.planning, epoch=chosen, count=count, by=by, steps=steps)

    def rehearse(
        self, count: int = 1, *, by: str = "tokens", epoch: int | None = None, steps: int | None = None
    ) -> Iterator[Batch]:
        """Batches of the heaviest micro-batches, each run by all ranks at once as a step of its own.

        Memory that does not suffice in the epoch does not suffice now. Position, state and metrics stay as
        they are. All ranks must call it with equal arguments, which are those of `worst`.
        """
        heavy = self.worst(count, by=by, epoch=epoch, steps=steps)
        if not isinstance(self._reader, Reader):
            raise RuntimeError('rehearse plays one micro-batch at a time, so not with assignment="separate".')
        return rehearsed(self._required(), self._reader, heavy)

    def _required(self) -> Balanced:
        if self._streaming is not None:
            raise RuntimeError("this is not known of a stream, whose samples are only seen as they come.")
        if self._balanced is None:
            raise RuntimeError("this is only known with max_tokens; without it the loader is torch's own.")
        return self._balanced
