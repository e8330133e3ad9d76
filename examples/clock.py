"""When a rank reads, computes, waits and updates, told by hooks: the training loop stays the user's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

Batch = TypeVar("Batch")


@dataclass(kw_only=True)
class StepRecord:
    """One step of one policy on one rank."""

    policy: str
    step: int
    rank: int
    segments: list[tuple[str, float, float]] = field(default_factory=list)
    """("load" | "compute" | "wait" | "update", start, end) in seconds of the machine's monotonic clock."""
    cpu_s: float = 0.0
    """CPU seconds of the whole process; waiting for another rank costs next to none."""
    real_tokens: int = 0
    computed_tokens: int = 0
    """With padding."""
    capacity_tokens: int = 0
    """Token budget of the packs; a padded sample is a pack of its own."""
    predicted_s: float = 0.0
    """What the cost model says of the rank's micro-batches."""
    samples: list[int] = field(default_factory=list)
    """Rows of the rank's samples."""
    loss_sum: float = 0.0
    loss_tokens: int = 0

    @property
    def start(self) -> float:
        return self.segments[0][1]

    @property
    def end(self) -> float:
        return self.segments[-1][2]

    def seconds(self, kind: str) -> float:
        return sum(end - start for name, start, end in self.segments if name == kind)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class StepClock:
    """Cuts a rank's steps into segments.

    A micro-batch ends when its last gradient is there; what follows until the optimizer starts is the
    exchange with the other ranks, and for the faster one above all the wait for the slower. ``count`` is
    called with the record of the step and each of its batches.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, count: Callable[[StepRecord, Any], None]
    ) -> None:
        self.record: StepRecord | None = None
        self.count = count
        self._mark = self._last_gradient = self._cpu_start = 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
        optimizer.register_step_pre_hook(lambda *_: self._on_exchanged())
        optimizer.register_step_post_hook(lambda *_: self._close("update"))

    def begin(self, record: StepRecord) -> None:
        self.record = record
        self._mark, self._cpu_start = time.perf_counter(), time.process_time()

    def end(self) -> None:
        assert self.record is not None, "end() follows begin()"
        self.record.cpu_s = time.process_time() - self._cpu_start
        self.record = None

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time to get each counts as "load"."""
        iterator = iter(batches)
        while True:
            if self.record is not None and self._last_gradient > self._mark:
                self._close("compute", self._last_gradient)
            batch = next(iterator, None)
            if batch is None:
                return
            self._close("load")
            if self.record is not None:
                self.count(self.record, batch)
            yield batch

    def _on_gradient(self, _: Any) -> None:
        self._last_gradient = time.perf_counter()

    def _on_exchanged(self) -> None:
        self._close("compute", self._last_gradient)
        self._close("wait")

    def _close(self, kind: str, end: float | None = None) -> None:
        if self.record is None:
            return
        end = time.perf_counter() if end is None else end
        self.record.segments.append((kind, self._mark, end))
        self._mark = end
