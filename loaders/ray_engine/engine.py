"""The consuming side: shares in, micro-batches out, made by actors on a Ray cluster.

Everything that comes back is a function of the share that was asked for, so whatever is lost is asked for
again. Actors belong to the process that started them: when it ends, however it ends, Ray ends them. The other
ranks then start them anew under the same names and go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayTaskError,
)

from loaders.balanced import ShareQueue
from loaders.batches.batch import Batch
from loaders.batches.collate import Packed
from loaders.batches.reader import Reader
from loaders.batches.shares import Share
from loaders.faults import Fault
from loaders.opening import Opened
from loaders.ray_engine.asking import ReaderGone
from loaders.ray_engine.builders import Built, Wait
from loaders.ray_engine.catalogs import SharedData
from loaders.ray_engine.parcels import to_packed
from loaders.ray_engine.plane import Plane, actors_of_this_job
from loaders.ray_engine.profile import Profile
from loaders.ray_engine.raised import ENDED, GONE, dismiss, raise_here
from loaders.ray_engine.scaling import Scaler
from loaders.ray_engine.session import data_name, join_cluster, pickled
from loaders.ray_engine.watching import RESUME, Watch

PATIENCE_S = 120.0
"""Without any batch after a loss, the cluster is given up."""
POLL_S = 2.0
BUDGET_BYTES = 1 << 28
"""Of micro-batches that wait for one rank in the object store."""

LOST = (*GONE, ObjectLostError, OutOfMemoryError)


@dataclass(slots=True, eq=False)
class Order:
    """A micro-batch that was asked for."""

    share: Share
    shared: bool
    size_bytes: float
    """As it is expected to be."""
    reference: Any = None
    builder: str = ""


class Engine:
    """A rank's way to the data plane.

    Args:
        address: of the cluster; see `join_cluster`.
    """

    def __init__(self, address: str | None) -> None:
        join_cluster(address)
        self.actors = actors_of_this_job()
        self.watch = Watch(self.actors.node)
        self.lost: tuple[Fault, ...] = ()
        """Rows that were left out while lengths were counted."""

    def open(self, dataset: Any, **options: Any) -> Opened:
        """What `open_order` gives for the data: found by the first rank that asks, once for all of them."""
        key = data_name((dataset, sorted(options.items())))
        told = pickled(dataset)
        give_up = time.monotonic() + PATIENCE_S
        while True:
            keeper = self.actors.get(self.actors.keeper)
            try:
                found = ray.get(keeper.find.remote(key)) or ray.get(keeper.open.remote(key, told, options))
                data: SharedData = ray.get(found[0])
                self.lost = data.lost
                return data.opened
            except RayTaskError as error:
                raise_here(error)
            except LOST as error:
                self.watch.check()
                if time.monotonic() > give_up:
                    raise _given_up(error) from error
                if isinstance(error, ENDED):
                    self.actors.look_again(self.actors.keeper)
                time.sleep(0.1)

    def reading(self, reader: Reader, queue: ShareQueue, **options: Any) -> RayReading:
        """What draws shares from ``queue`` and has them read; see `RayReading` for the options."""
        return RayReading(self, Plane(self.actors, reader), queue, **options)


class RayReading(Iterable[Packed | Batch]):
    """Micro-batches of a rank, in order, some asked for ahead.

    Args:
        engine: the way to the cluster.
        plane: the actors.
        queue: shares of the iteration that is being started.
        rank: data rank of this process; the first one looks after the number of readers.
        coming: tokens of each source, [n], that a coming step needs.
        ahead: micro-batches that are asked for before they are needed, at most.
        has_peers: whether other processes have this data rank (tensor or pipeline parallel ones).
        pin_memory: hand out batches in page-locked memory.
        timeout_s: an error after so long without a batch; 0: the cluster is given up after `PATIENCE_S` of
            losses, and slow reading is waited for.
        budget_bytes: of the micro-batches that are asked for ahead; one is in any case.
    """

    def __init__(
        self,
        engine: Engine,
        plane: Plane,
        queue: ShareQueue,
        *,
        rank: int,
        coming: Callable[[], NDArray[np.float64]],
        ahead: int,
        has_peers: bool,
        pin_memory: bool,
        timeout_s: float = 0.0,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.engine = engine
        self.plane = plane
        self.queue = queue
        self.rank = rank
        self.ahead = ahead
        self.has_peers = has_peers
        self.pin_memory = pin_memory
        self.timeout_s = timeout_s
        self.budget_bytes = budget_bytes
        sources = plane.reader.sources
        heavy = np.array([not source.divisible for source in sources])
        self.profile = Profile(heavy)
        self.scaler = Scaler(plane=plane, profile=Profile(heavy), coming=coming) if rank == 0 else None
        self._waits: list[Wait] = []

    def __iter__(self) -> Iterator[Packed | Batch]:
        # the queue makes its shares now, as torch's loader has it, and not with the first batch
        return self._batches(iter(self.queue))

    def _batches(self, shares: Iterator[Share]) -> Iterator[Packed | Batch]:
        waiting: deque[Order] = deque()
        try:
            yield from self._in_order(shares, waiting)
        finally:
            dismiss(order.reference for order in waiting)

    def _in_order(self, shares: Iterator[Share], waiting: deque[Order]) -> Iterator[Packed | Batch]:
        more = True
        while True:
            if self.scaler is not None:
                self.scaler.beat()
            while more and self._has_room(waiting):
                share = next(shares, None)
                if share is None:
                    more = False
                    break
                waiting.append(self._ordered(share))
            if not waiting:
                return
            order = waiting.popleft()
            packed = to_packed(self._taken(order, waiting).parcel, order.share)
            yield packed.pin_memory() if self.pin_memory else packed

    def _has_room(self, waiting: Sequence[Order]) -> bool:
        if not waiting:
            return True
        held = sum(order.size_bytes for order in waiting)
        return len(waiting) <= self.ahead and held < self.budget_bytes

    def _ordered(self, share: Share) -> Order:
        sources = len(self.plane.reader.sources)
        tokens = np.bincount(share.source, share.num_tokens, sources).astype(np.float64)
        order = Order(
            share=share,
            shared=self.has_peers or share.cp_degree > 1,
            size_bytes=self.profile.size_bytes(tokens),
            builder=self.plane.actors.builder_of(share),
        )
        self._ask(order)
        return order

    def _ask(self, order: Order) -> None:
        actors = self.plane.actors
        builder = actors.get(order.builder)
        actors.get(f"{actors.readers}0")
        waits, self._waits = self._waits, []
        method = builder.build_shared if order.shared else builder.build
        order.reference = method.remote(self.plane.name, order.share, self.rank, waits)

    def _taken(self, order: Order, others: Iterable[Order]) -> Built:
        """What was asked for, asked again as often as it is lost."""
        began, begun_s = time.perf_counter(), time.time()
        self.engine.watch.check()  # actors go on without a head for a while, and then Ray ends this process
        built = self._got(order, others)
        waited = time.perf_counter() - began
        self.profile.add(built.read_tokens, built.read_s, built.read_bytes)
        self._waits.append(Wait(rank=self.rank, step=order.share.step, start_s=begun_s, seconds=waited))
        if self.scaler is not None:
            self.scaler.wait_s += waited
            self.scaler.steps += order.share.last_in_step
        return built

    def _got(self, order: Order, others: Iterable[Order]) -> Built:
        began = time.monotonic()
        lost_since: float | None = None
        while True:
            try:
                found = ray.get(order.reference, timeout=POLL_S)
                if found:
                    built: Built = ray.get(found[0], timeout=POLL_S) if order.shared else found
                    return built
                ray.get(self.plane.prepare(order.builder), timeout=POLL_S)
                self._ask_again(order, others)
                continue
            except GetTimeoutError as error:
                self.engine.watch.check()
                if 0 < self.timeout_s < time.monotonic() - began:
                    raise TimeoutError(
                        f"step {order.share.step}: no batch within timeout={self.timeout_s:g} s."
                    ) from error
                if lost_since is not None and time.monotonic() - lost_since > PATIENCE_S:
                    raise _given_up(error) from error
                continue
            except RayTaskError as error:
                reason: Exception = error.cause
                if isinstance(reason, ReaderGone):
                    self.plane.actors.look_again(str(reason))
                    self.plane.actors.get(str(reason))
                elif isinstance(reason, (ObjectStoreFullError, OutOfDiskError)):
                    raise _full(order, reason) from error
                else:
                    raise_here(error)
            except (ObjectStoreFullError, OutOfDiskError) as error:
                raise _full(order, error) from error
            except LOST as error:
                if isinstance(error, ENDED):
                    self.plane.actors.look_again(order.builder)
                reason = error
                time.sleep(0.05)
            self.engine.watch.check()
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > PATIENCE_S:
                raise _given_up(reason) from reason
            self._ask_again(order, others)

    def _ask_again(self, order: Order, others: Iterable[Order]) -> None:
        """With an order that was lost, those behind it that are known to be lost too."""
        self._ask(order)
        for other in others:
            done, _ = ray.wait([other.reference], timeout=0, fetch_local=False)
            if done and _is_lost(other.reference):
                self._ask(other)


def _is_lost(reference: Any) -> bool:
    try:
        return not ray.get(reference, timeout=0)
    except GetTimeoutError:
        return False
    except Exception:  # whatever it is, asking again mends it or shows it again
        return True


def _full(order: Order, error: BaseException) -> RuntimeError:
    return RuntimeError(
        f"step {order.share.step}: Ray's object store on this node is full ({error}). Give it more memory "
        "(`ray start --object-store-memory`), or ask for fewer batches ahead (prefetch_factor)."
    )


def _given_up(error: BaseException) -> ConnectionError:
    return ConnectionError(
        f"for {PATIENCE_S:.0f} s the Ray cluster has given no batch ({type(error).__name__}: {error}). Look "
        "at `ray status`: is the head alive, and is there a node with room for the actors? " + RESUME
    )
