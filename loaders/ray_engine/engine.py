"""The consuming side: shares in, micro-batches out, made by actors on a Ray cluster.

Everything that comes back is a function of the share that was asked for, so whatever is lost is asked for
again. Actors belong to the process that started them: when it ends, however it ends, Ray ends them. The other
ranks then start them anew under the same names and go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loaders.balanced import ShareQueue
from loaders.batch import Batch
from loaders.collate import Packed
from loaders.faults import Fault
from loaders.opening import Opened
from loaders.ray_engine.asking import ReaderGone
from loaders.ray_engine.builders import BatchBuilder, Built
from loaders.ray_engine.catalogs import CatalogKeeper, SharedData
from loaders.ray_engine.parcels import to_packed
from loaders.ray_engine.readers import SourceReader
from loaders.ray_engine.session import NAMESPACE, data_name, job_name, join_cluster, this_node
from loaders.reader import Reader
from loaders.shares import Share

logger = logging.getLogger(__name__)

RANKS_PER_BUILDER = 8
"""Ranks of a node that one builder serves."""
CALLS_AT_ONCE = 64
"""Of a builder: most of them wait for readers."""
PATIENCE_S = 120.0
"""Without any batch after a loss, the cluster is given up."""
POLL_S = 2.0
BUDGET_BYTES = 1 << 28
"""Of micro-batches that wait for one rank in the object store."""

LOST = (RayActorError, ObjectLostError, OutOfMemoryError)

Made = tuple[type, dict[str, Any], tuple[Any, ...], dict[str, Any]]
"""Class of an actor, its options, and its arguments."""


@dataclass(slots=True, eq=False)
class Order:
    """A micro-batch that was asked for."""

    share: Share
    shared: bool
    size_bytes: int
    """As it is expected to be."""
    reference: Any = None
    builder: str = ""


@dataclass(eq=False)
class Engine:
    """A rank's way to the data plane.

    Args:
        address: of the cluster; see `join_cluster`.
    """

    address: str | None
    lost: tuple[Fault, ...] = field(init=False, default=())
    """Rows that were left out while lengths were counted."""
    _name: str = field(init=False)
    _node: str = field(init=False)
    _reader: Reader | None = field(init=False, default=None)
    _blob: Any = field(init=False, default=None)
    _handles: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        join_cluster(self.address)
        self._name = job_name()
        self._node = this_node()

    def open(self, dataset: Any, **options: Any) -> Opened:
        """What `open_order` gives for the data: found by the first rank that asks, once for all of them."""
        name = f"{self._name}:catalog:{data_name((dataset, sorted(options.items())))}"
        made_of: Made = (CatalogKeeper, {"num_cpus": 0}, (dataset, options), {})
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                (reference,) = ray.get(self._actor(name, lambda: made_of).shared.remote())
                found: SharedData = ray.get(reference)
                self.lost = found.lost
                return found.opened
            except RayTaskError as error:
                raise error.cause from error
            except LOST as error:
                self._forget(name)
                if time.monotonic() > give_up:
                    raise _given_up(error) from error

    def reading(self, reader: Reader, queue: ShareQueue, **options: Any) -> RayReading:
        """What draws shares from ``queue`` and has them read; see `RayReading` for the options."""
        self._reader = reader
        self._name = f"{self._name}:{data_name(reader)}"
        return RayReading(self, queue, **options)

    # ---------------------------------------------------------------------------------------------- batches

    def ask(self, order: Order) -> None:
        """Let a micro-batch be built."""
        assert self._reader is not None
        order.builder = (
            f"{self._name}:builder:{self._node[:12]}:{order.share.first_rank // RANKS_PER_BUILDER}"
        )
        builder = self._actor(order.builder, self._builder)
        routes = {int(number): self._routes(int(number)) for number in np.unique(order.share.source)}
        for names in routes.values():
            for name in names:
                self._actor(name, self._source_reader)
        method = builder.build_shared if order.shared else builder.build
        order.reference = method.remote(order.share, routes)

    def take(self, order: Order) -> Built:
        """What was asked for, asked again as often as it is lost."""
        lost_since: float | None = None
        while True:
            try:
                found = ray.get(order.reference, timeout=POLL_S)
                built: Built = ray.get(found[0], timeout=POLL_S) if order.shared else found
                return built
            except GetTimeoutError:
                continue
            except RayTaskError as error:
                if not isinstance(error.cause, ReaderGone):
                    raise error.cause from error
                self._forget(str(error.cause))
                reason: Exception = error.cause
            except (ObjectStoreFullError, OutOfDiskError) as error:
                raise RuntimeError(
                    f"step {order.share.step}: Ray's object store on this node is full ({error}). Give it "
                    "more memory (ray start --object-store-memory), or read fewer batches ahead "
                    "(prefetch_factor)."
                ) from error
            except LOST as error:
                self._forget(order.builder)
                reason = error
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > PATIENCE_S:
                raise _given_up(reason) from reason
            time.sleep(0.05)
            self.ask(order)

    # ----------------------------------------------------------------------------------------------- actors

    def _routes(self, number: int) -> Sequence[str]:
        return (f"{self._name}:reader:0",)

    def _builder(self) -> Made:
        here = NodeAffinitySchedulingStrategy(self._node, soft=True)
        options = {
            "num_cpus": 0,
            "max_restarts": -1,
            "max_concurrency": CALLS_AT_ONCE,
            "scheduling_strategy": here,
        }
        return BatchBuilder, options, (_pickled(self._reader),), {}

    def _source_reader(self) -> Made:
        assert self._reader is not None
        if self._blob is None:
            self._blob = ray.put([_pickled(source) for source in self._reader.sources])
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": "SPREAD"}
        keywords = {"capacity": self._reader.capacity, "skip_faults": self._reader.skip_faults}
        return SourceReader, options, ([self._blob],), keywords

    def _actor(self, name: str, made_of: Any) -> Any:
        """The actor of this name, started where there is none."""
        if name not in self._handles:
            kind, options, arguments, keywords = made_of()
            self._handles[name] = (
                ray.remote(kind)
                .options(name=name, namespace=NAMESPACE, get_if_exists=True, **options)
                .remote(*arguments, **keywords)
            )
        return self._handles[name]

    def _forget(self, name: str) -> None:
        self._handles.pop(name, None)


class RayReading(Iterable[Packed | Batch]):
    """Micro-batches of a rank, in order, some asked for ahead.

    Args:
        engine: makes them.
        queue: shares of the iteration that is being started.
        ahead: micro-batches that are asked for before they are needed, at most.
        has_peers: whether other processes have this data rank (tensor or pipeline parallel ones).
        pin_memory: hand out batches in page-locked memory.
        budget_bytes: of the micro-batches that are asked for ahead; one is in any case.
    """

    def __init__(
        self,
        engine: Engine,
        queue: ShareQueue,
        *,
        ahead: int,
        has_peers: bool,
        pin_memory: bool,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.engine = engine
        self.queue = queue
        self.ahead = ahead
        self.budget_bytes = budget_bytes
        self.has_peers = has_peers
        self.pin_memory = pin_memory

    def __iter__(self) -> Iterator[Packed | Batch]:
        # the queue makes its shares now, as torch's loader has it, and not with the first batch
        return self._batches(iter(self.queue))

    def _batches(self, shares: Iterator[Share]) -> Iterator[Packed | Batch]:
        waiting: list[Order] = []
        more = True
        while True:
            while more and self._has_room(waiting):
                share = next(shares, None)
                if share is None:
                    more = False
                    break
                shared = self.has_peers or share.cp_degree > 1
                order = Order(share=share, shared=shared, size_bytes=int(share.num_tokens.sum()) * 4)
                self.engine.ask(order)
                waiting.append(order)
            if not waiting:
                return
            order = waiting.pop(0)
            packed = to_packed(self.engine.take(order).parcel, order.share)
            yield packed.pin_memory() if self.pin_memory else packed

    def _has_room(self, waiting: Sequence[Order]) -> bool:
        if not waiting:
            return True
        held = sum(order.size_bytes for order in waiting)
        return len(waiting) <= self.ahead and held < self.budget_bytes


def _pickled(value: Any) -> Any:
    return np.frombuffer(ray.cloudpickle.dumps(value), np.uint8)


def _given_up(error: BaseException) -> ConnectionError:
    return ConnectionError(
        f"for {PATIENCE_S:.0f} s the Ray cluster has given no batch ({type(error).__name__}: {error}). Look "
        "at `ray status`: is the head alive, and is there a node with room for the actors? Training can go "
        'on from the last saved state of the loader, on any cluster or with engine="local".'
    )
