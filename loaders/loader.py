"""`DataLoader`: torch's own, and with ``max_tokens`` the balanced one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, Sampler

from balancer import POLICIES, CostModel, Topology, plan_step
from balancer.planning.problem import SYNC_MODES
from balancer.runtime import world
from balancer.sharding import alignment
from loaders.balanced import Balanced, OrderSampler, PlannedStep, Planning, ShareQueue, StepSampler
from loaders.batch import Batch
from loaders.catalog import OVERSIZE, Catalog, open_catalog
from loaders.metrics import Metrics
from loaders.order import SampleOrder, SourceOrder, derive
from loaders.reader import CollateFn, Reader
from loaders.sources.base import Source
from loaders.state import from_state, to_state
from loaders.steps import Steps, StepTokens

logger = logging.getLogger(__name__)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Torch's data loader with a state; with ``max_tokens``, packed micro-batches that take all ranks the same time.

    Without ``max_tokens`` every argument, attribute and error is torch's.

    With it, an epoch is a series of optimizer steps. The samples of a step follow from (seed, epoch, position)
    alone. They are planned over all ranks, and each rank is given its micro-batches as `Batch`, at least
    one a step; ``len(loader)`` is the number of steps of an epoch.

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
        oversize: what becomes of samples above ``max_tokens`` times the largest degree: ``"error"``, ``"drop"``,
            ``"truncate"`` (keeps the beginning) or ``"split"``. Each piece of a split sample is a sequence of its
            own: its positions start at 0 and nothing predicts its first token. All pieces stay in one step.
        length: a column of lengths or a function of a sample, passed to `open_source`.
        pad_to: one or a few token counts; each batch is padded to the next, so that shapes are static.
        seed: of the order.
        engine: ``"local"``.

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
        pad_to: int | Sequence[int] | None = None,
        seed: int | None = None,
        engine: str = "local",
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
        self._balanced: Balanced | None = None
        if max_tokens is None:
            _refuse_without_effect(
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
                }
            )
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last, **torch_arguments
            )
            return

        _check_order_arguments(sampler, batch_sampler, batch_size, global_batch_size, step_tokens)
        degrees = _checked_degrees(cp_degrees)
        _check_choices(sync=(sync, SYNC_MODES), policy=(policy, POLICIES), oversize=(oversize, OVERSIZE))
        if engine != "local":
            raise ValueError(f'engine must be "local", got {engine!r}.')
        if not _is_count(max_tokens):
            raise ValueError(f"max_tokens must be a whole number of at least 1, got {max_tokens!r}.")
        topology, rank = world(topology, rank, device_mesh)
        capacity = sample_capacity(max_tokens, degrees)
        self.max_tokens = max_tokens
        self.topology = topology
        self.rank = rank
        self.cost_is_generic = cost is None
        self.seed = _chosen_seed(seed, generator)
        catalogs, order, self._order_identity = _open(
            dataset,
            length=length,
            capacity=capacity,
            oversize=oversize,
            shuffle=bool(shuffle),
            seed=self.seed,
        )
        if not any(len(catalog) for catalog in catalogs):
            raise ValueError(_nothing_left(catalogs))
        samples = global_batch_size
        if samples is None and step_tokens is None:
            assert batch_size is not None
            samples = batch_size * topology.ranks
        steps = Steps(
            order=order, catalogs=catalogs, samples=samples, tokens=step_tokens, drop_last=drop_last
        )
        order_sampler = OrderSampler(steps)
        super().__init__(
            dataset,
            1 if batch_size is None else batch_size,
            sampler=order_sampler,
            drop_last=drop_last,
            **torch_arguments,
        )
        self.__dict__["batch_sampler"] = StepSampler(steps, order_sampler)  # torch forbids setting it later
        # frameworks would shard the loader again, by rank; this one is sharded already
        self._is_accelerate_prepared = True

        reader = Reader(
            [catalog.source for catalog in catalogs],
            capacity=capacity,
            collate_fn=collate_fn,
            pad_to=_checked_pads(pad_to, max_tokens),
        )

        def reading(queue: ShareQueue) -> torch.utils.data.DataLoader[Any]:
            arguments = {**torch_arguments, "collate_fn": None, "in_order": True}
            return torch.utils.data.DataLoader(reader, batch_size=None, sampler=queue, **arguments)

        planning = Planning(
            steps=steps,
            topology=topology,
            planner=plan_step,
            options={
                "max_tokens": max_tokens,
                "cost": CostModel.generic() if cost is None else cost,
                "cp_degrees": degrees,
                "sync": sync,
                "policy": policy,
                "seed": self.seed,
            },
        )
        self._names = [catalog.source.name for catalog in catalogs]
        self._balanced = Balanced(
            planning,
            rank=rank,
            reading=reading,
            metrics=Metrics.of(max_tokens, len(catalogs)),
            attach=lambda batch: batch,
        )

    # ---------------------------------------------------------------- iteration

    def __iter__(self) -> Any:
        if self._balanced is None:
            return super().__iter__()
        return self._balanced.start()

    def __len__(self) -> int:
        if self._balanced is None:
            return super().__len__()
        return self._balanced.count()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs over. Never required: each iteration is a new epoch."""
        if self._balanced is not None:
            self._balanced.set_epoch(epoch)

    # -------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last finished step; O(1), equal on all ranks."""
        assert self._balanced is not None
        return to_state(self._balanced.cursor, self._identity())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken, with any number of workers and ranks.

        Raises:
            ValueError: the state was saved over other data or another order; says what differs.
        """
        assert self._balanced is not None
        self._balanced.load(from_state(state_dict, self._identity()))

    def _identity(self) -> dict[str, Any]:
        return self._order_identity

    # ------------------------------------------------------------------ telling

    def metrics(self) -> dict[str, Any]:
        """What the steps given out so far were like, and what became of the data's rows.

        Means over steps: ``fill``, predicted ``imbalance`` and ``gap``, ``plan_ms``. ``wait_s`` is the time this
        rank waited for batches. ``kept``, ``dropped``, ``truncated``, ``split`` and ``empty`` count rows of the
        data, whether given out yet or not; truncated and split rows are among the kept ones.
        """
        balanced = self._required()
        report = balanced.metrics.report(self._names)
        catalogs = balanced.planning.steps.catalogs
        for name in ("kept", "dropped", "truncated", "split", "empty"):
            report[name] = sum(catalog.counts[name] for catalog in catalogs)
        report["cut_tokens"] = sum(catalog.cut_tokens for catalog in catalogs)
        report["cost"] = "generic decoder" if self.cost_is_generic else "given"
        return report

    def _required(self) -> Balanced:
        if self._balanced is None:
            raise RuntimeError("this is only known with max_tokens; without it the loader is torch's own.")
        return self._balanced


def sample_capacity(max_tokens: int, degrees: Sequence[int]) -> int:
    """Tokens of the longest sample that some allowed degree can hold, its alignment padding included."""
    return max(max_tokens * degree // alignment(degree) * alignment(degree) for degree in degrees)


def _open(
    dataset: Any, *, length: Any, capacity: int, oversize: str, shuffle: bool, seed: int
) -> tuple[list[Catalog], SampleOrder, dict[str, Any]]:
    """Sources with their usable rows, the order over them, and what a saved state must agree with."""
    source = _as_source(dataset, length)
    catalog = open_catalog(source, capacity=capacity, oversize=oversize)
    order = SourceOrder(len(catalog), shuffle=shuffle, seed=seed)
    identity = {
        "data": source.fingerprint(),
        "rows": len(catalog),
        "order": f"shuffled with seed {seed}" if shuffle else "in row order",
    }
    return [catalog], order, identity


def _as_source(dataset: Any, length: Any) -> Source:
    if isinstance(dataset, Source):
        if length is not None:
            raise ValueError(f"length={length!r} has no effect on an opened source: pass it to open_source.")
        return dataset
    from loaders.sources import open_source

    return open_source(dataset, length=length)


def _nothing_left(catalogs: Sequence[Catalog]) -> str:
    rows = sum(catalog.lengths.size for catalog in catalogs)
    empty = sum(catalog.counts["empty"] for catalog in catalogs)
    dropped = sum(catalog.counts["dropped"] for catalog in catalogs)
    names = ", ".join(catalog.source.name for catalog in catalogs)
    return (
        f"there is no sample to give out: of {rows} rows in {names}, {empty} are empty and {dropped} are dropped for "
        "their length. Check the path and the token column, or raise max_tokens."
    )


def _refuse_without_effect(arguments: Mapping[str, tuple[Any, Any]]) -> None:
    set_ones = [
        name for name, (value, default) in arguments.items() if value is not default and value != default
    ]
    if set_ones:
        raise ValueError(
            f"{', '.join(set_ones)} only has an effect with max_tokens, which is not set. Pass max_tokens= for "
            "balanced, packed micro-batches, or leave the rest out for torch's own loader."
        )


def _check_order_arguments(
    sampler: Any, batch_sampler: Any, batch_size: Any, global_batch_size: Any, step_tokens: Any
) -> None:
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None:
            raise ValueError(
                f"{name} cannot be used with max_tokens: all ranks must see one order, which is a function of the "
                "position. Leave it out and pass shuffle=, or a Mixture or torch.utils.data.Subset as dataset."
            )
    if global_batch_size is not None and step_tokens is not None:
        raise ValueError(
            "global_batch_size and step_tokens both fix the samples of a step: pass one of them."
        )
    for name, value in (("global_batch_size", global_batch_size), ("step_tokens", step_tokens)):
        if value is None or callable(value):
            continue
        if not _is_count(value):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if global_batch_size is None and step_tokens is None:
        if not _is_count(batch_size):
            raise ValueError(
                f"batch_size must be a positive integer with max_tokens, got {batch_size!r}. It is the samples per "
                "rank and step; global_batch_size= or step_tokens= fix the step for any number of ranks."
            )
    elif batch_size not in (None, 1):
        logger.warning(
            "batch_size=%s has no effect: %s fixes the samples of a step.",
            batch_size,
            "step_tokens" if global_batch_size is None else "global_batch_size",
        )


def _check_choices(**choices: tuple[str, Iterable[str]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")


def _checked_degrees(cp_degrees: Sequence[int]) -> tuple[int, ...]:
    degrees = tuple(cp_degrees) if isinstance(cp_degrees, Iterable) else (cp_degrees,)
    if not degrees or not all(_is_count(degree) for degree in degrees):
        raise ValueError(f"cp_degrees must be one or more whole numbers of at least 1, got {cp_degrees!r}.")
    return tuple(sorted({int(degree) for degree in degrees}))


def _checked_pads(pad_to: int | Sequence[int] | None, max_tokens: int) -> tuple[int, ...]:
    if pad_to is None:
        return ()
    sizes = tuple(pad_to) if isinstance(pad_to, Iterable) else (pad_to,)
    if not sizes or not all(_is_count(size) for size in sizes) or max(sizes) < max_tokens:
        raise ValueError(
            f"pad_to must be one or more whole numbers, the largest at least max_tokens ({max_tokens}), since a "
            f"batch may be that long; got {pad_to!r}."
        )
    return tuple(sorted({int(size) for size in sizes}))


def _chosen_seed(seed: int | None, generator: Any) -> int:
    if seed is not None:
        return int(seed)
    return int(generator.initial_seed()) if generator is not None else 0


def _is_count(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and int(value) == value and value >= 1
    except (TypeError, ValueError):
        return False
