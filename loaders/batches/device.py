"""Batches moved to a device while the one before them is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from loaders.batches.batch import Batch


class Mover(Protocol):
    """Begins a copy, and ends it for whoever computes."""

    def begin(self, batch: Batch) -> Any:
        """Begin to move a batch; returns what `end` needs."""
        ...

    def end(self, begun: Any) -> Batch:
        """The batch on the device, fit for what is computed next."""
        ...


def checked_device(device: Any) -> torch.device:
    """The device by its name or number.

    Raises:
        ValueError: there is none of that kind.
    """
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device must name a torch device such as 'cuda' or 'cpu', got {device!r}."
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: torch sees no CUDA device. Leave device= out, or pass 'cpu'.")
    return found


def mover_for(device: torch.device) -> Mover:
    """Copies beside the computation on a CUDA device; plain ones elsewhere."""
    return SideStream(device) if device.type == "cuda" else Plain(device)


def one_ahead(batches: Iterable[Batch], mover: Mover) -> Iterator[Batch]:
    """The batches on the device; when one is given out, the copy of the next has begun."""
    begun: list[Any] = []
    for batch in batches:
        begun.append(mover.begin(batch))
        if len(begun) > 1:
            yield mover.end(begun.pop(0))
    if begun:
        yield mover.end(begun.pop())


class Plain:
    """Moves where it stands: for devices without streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self, batch: Batch) -> Batch:
        """The copy itself."""
        return batch.to(self.device)

    def end(self, begun: Batch) -> Batch:
        """Nothing is left to do."""
        return begun


class SideStream:
    """Copies on a stream of its own; the stream that computes waits for a copy when it is given out.

    Batches must be page-locked, or else the copy waits for the host. Their memory on the device is not given
    away again before the computing stream is through with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def begin(self, batch: Batch) -> tuple[Batch, Batch, Any]:
        """(batch on the host, batch on the device, event behind the copy)."""
        with torch.cuda.stream(self.stream):
            moved = batch.to(self.device, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self.stream)
        return batch, moved, done  # the host's batch lives until its copy is given out

    def end(self, begun: tuple[Batch, Batch, Any]) -> Batch:
        """Let the current stream wait for the copy."""
        _, moved, done = begun
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(done)
        for value in moved.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(computing)
        return moved
