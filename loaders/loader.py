"""`DataLoader`: torch's own, and with ``max_tokens`` the balanced one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Sampler

from balancer import CostModel, StepPlan, Topology
from loaders.arguments import WINDOW, defaults_of, refuse_without_effect
from loaders.asked import asked_of
from loaders.balanced import Balanced, OrderSampler, StepSampler
from loaders.batches.batch import Batch
from loaders.batches.reader import CollateFn
from loaders.building import build_balanced, prepare
from loaders.lookalikes import only_balanced
from loaders.memory import Memory
from loaders.order.steps import StepTokens
from loaders.planning.rehearsal import HeavyBatch, heaviest, rehearsed
from loaders.planning.step import PlannedStep, Planning
from loaders.planning.tracing import StepView, Whereabouts, step_of_epoch, whereabouts
from loaders.sources.streams import is_stream
from loaders.streams.opening import open_stream
from loaders.streams.streaming import Streaming
from loaders.streams.window import StreamStep
from loaders.unbalanced import Replayed, TorchState, iterator_of
from packing import SampleTable

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
            `loaders.batches.borders.Bordered`.
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

    # arguments of the balanced mode, as `Asked` has them: torch keeps its own ones too, for frameworks to see
    cost: CostModel
    cost_is_generic: bool
    topology: Topology
    rank: int
    cp_degrees: tuple[int, ...]
    sync: str
    global_batch_size: int | None
    step_tokens: StepTokens | None
    policy: str
    oversize: str
    length: str | Callable[[Any], int] | None
    pad_to: tuple[int, ...]
    seed: int
    memory: Memory | None

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
        # the signature alone lists the arguments and their defaults
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        self.max_tokens = max_tokens
        self._mode: Balanced | Streaming | None = None
        if max_tokens is None:
            refuse_without_effect({name: given.pop(name) for name in OURS}, DEFAULTS)
            self._torch = TorchState()
            super().__init__(**given)
            return
        asked = asked_of(dataset, given, DEFAULTS)
        for name in BALANCED_ATTRIBUTES:
            setattr(self, name, getattr(asked, name))
        beneath = {**asked.beneath, "in_order": in_order, "collate_fn": asked.collate_fn}
        if is_stream(dataset):
            super().__init__(dataset, asked.batch_size, shuffle, drop_last=drop_last, **beneath)
            self._mode = open_stream(dataset, asked)
        else:
            prepared = prepare(dataset, asked)
            sampler = OrderSampler(prepared.steps)
            super().__init__(dataset, asked.batch_size, sampler=sampler, drop_last=drop_last, **beneath)
            self.__dict__["batch_sampler"] = StepSampler(prepared.steps, sampler)  # torch has no setter
            self._mode = build_balanced(prepared, asked)
        self._is_accelerate_prepared = True  # it is divided by rank already
        self.collate_fn = asked.collate_fn or only_balanced

    # ---------------------------------------------------------------- iteration

    def __iter__(self) -> Any:
        return self._torch.start(self, super().__iter__) if self._mode is None else self._mode.start()

    def __len__(self) -> int:
        return super().__len__() if self._mode is None else self._mode.count()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Never required: each iteration is a new epoch."""
        if self._mode is None:
            self._torch.set_epoch(self, epoch)
            return
        self._mode.standing.set_epoch(epoch)
        if isinstance(self.sampler, OrderSampler):
            self.sampler.set_epoch(epoch, self._required().cursor.first_step)

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
        return self._torch.save(self) if self._mode is None else self._mode.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken.

        With ``max_tokens`` the number of workers, ranks and CP degrees may be another. Without, the sampler
        is replayed up to the position, and an iterable data set without a state of its own is read up to it.

        Raises:
            ValueError: the state was saved over other data or another order; says what differs.
        """
        if self._mode is None:
            self._torch.load(self, state_dict)
        else:
            self._mode.load_state(state_dict)

    # ------------------------------------------------------------------ telling

    def metrics(self) -> dict[str, Any]:
        """What the steps given out so far were like, and what became of the data's rows.

        Means over steps: ``fill``, predicted ``imbalance`` and ``gap``, ``plan_ms``. ``wait_s`` is the time
        this rank waited for batches. ``kept``, ``dropped``, ``truncated``, ``split`` and ``empty`` count rows
        of the data, whether given out yet or not; truncated and split rows are among the kept ones.
        ``shuffle_radius`` has the rows shuffled together, of sources that are not shuffled as a whole, and
        ``epochs_by_source`` how often each source's rows were given out.
        """
        mode = self._mode if isinstance(self._mode, Streaming) else self._required()
        report = mode.report() | {"cost": "generic decoder" if self.cost_is_generic else "given"}
        if isinstance(mode, Balanced):
            report["max_tokens"] = mode.metrics.max_tokens
            if self.memory is not None:
                report["memory_bytes"] = int(report["most_tokens"] * self.memory.bytes_per_token)
        return report

    @property
    def plan(self) -> StepPlan:
        """The plan of the step that the last batch belongs to, for `check_same_plan` and for looking at."""
        return self._last_step().plan

    @property
    def table(self) -> SampleTable:
        """The samples of that step, as its plan numbers them: by them `check_same_plan` tells seeds apart."""
        return self._last_step().table

    def _last_step(self) -> PlannedStep | StreamStep:
        mode = self._mode
        last = mode.last_step if isinstance(mode, Streaming) else self._required().last_planned
        if last is None:
            raise RuntimeError("no step has begun yet: its plan and samples are known with the first batch.")
        return last

    def step(self, index: int, *, epoch: int | None = None) -> StepView:
        """The ``index``-th step of an epoch (by default of the current one), planned for all ranks."""
        balanced = self._required()
        return step_of_epoch(balanced.planning, balanced.begin_of(epoch), index)

    def where(self, row: int, *, source: int | str = 0, epoch: int | None = None) -> list[Whereabouts]:
        """The steps, ranks and slots that compute a row of a source in an epoch (by default the current one).

        Args:
            row: row of the source, as ``sample_ids`` have it.
            source: number or name of the source in its mixture.
            epoch: which epoch.
        """
        balanced = self._required()
        if isinstance(source, str):
            if source not in self.source_names:
                raise ValueError(f"source must be one of {', '.join(self.source_names)}, got {source!r}.")
            source = list(self.source_names).index(source)
        return whereabouts(balanced.planning, balanced.begin_of(epoch), source, row)

    @property
    def planning(self) -> Planning:
        """How steps are planned, the same on all ranks."""
        return self._required().planning

    @property
    def source_names(self) -> Sequence[str]:
        """Of the sources, by the numbers that ``sample_ids`` have."""
        return [self._mode.name] if isinstance(self._mode, Streaming) else self._required().opened.names

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
        return heaviest(balanced.planning, balanced.begin_of(epoch), count=count, by=by, steps=steps)

    def rehearse(
        self, count: int = 1, *, by: str = "tokens", epoch: int | None = None, steps: int | None = None
    ) -> Iterator[Batch]:
        """Batches of the heaviest micro-batches, each run by all ranks at once as a step of its own.

        Memory that does not suffice in the epoch does not suffice now. Position, state and metrics stay as
        they are. All ranks must call it with equal arguments, which are those of `worst`.
        """
        heavy = self.worst(count, by=by, epoch=epoch, steps=steps)
        return rehearsed(self._required(), heavy)

    def _required(self) -> Balanced:
        if isinstance(self._mode, Streaming):
            raise RuntimeError("this is not known of a stream, whose samples are only seen as they come.")
        if self._mode is None:
            raise RuntimeError("this is only known with max_tokens; without it the loader is torch's own.")
        return self._mode


BALANCED_ATTRIBUTES = tuple(DataLoader.__annotations__)
DEFAULTS = defaults_of(DataLoader.__init__)
OURS = [name for name in DEFAULTS if name not in defaults_of(torch.utils.data.DataLoader.__init__)]
"""Arguments that torch's loader does not have."""
