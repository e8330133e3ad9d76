"""A loader seen step by step, for stacks that count optimizer steps and not micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from balancer.runtime.protocol import RunnableBatch


class Step(list[Any]):
    """The micro-batches of one optimizer step on this rank; their number may differ by rank and step."""

    def to(self, *args: Any, **kwargs: Any) -> Step:
        """All of them moved."""
        return Step(batch.to(*args, **kwargs) for batch in self)


class StepLoader:
    """Yields a `Step` per optimizer step; ``len`` is the number of steps.

    A stack that multiplies by a fixed number of accumulation steps is given 1 of them: the accumulation is
    inside the step. Everything else is the loader's own.
    """

    _is_accelerate_prepared = True  # sharded by rank already: accelerate must not shard it again

    def __init__(self, loader: Iterable[RunnableBatch]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Step]:
        step = Step()
        for batch in self.loader:
            step.append(batch)
            if batch.last_in_step:
                yield step
                step = Step()
        if step:
            raise RuntimeError(
                f"the loader ended inside step {step[0].step}: no micro-batch had last_in_step. Drain it "
                "to the end of a step."
            )

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # a loader of endless data has none, and says so

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)
