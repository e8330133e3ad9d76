"""What data ranks tell each other on the CPU, apart from the collectives of training.

Lengths and samples of streams lie in ordinary memory, so they travel through a gloo group of their own, also
where training runs on NCCL. Every member calls the same methods in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from .members import default_store, fresh_name, timeout

PATIENCE_S, PAUSE_S = 15.0, 0.05
"""How long, and in which turns, ranks that lost one wait for each other's word, to name who stays silent."""


class HostGroup:
    """Some data ranks, or this process alone.

    Args:
        ranks: global ranks of the members, in the order of their data ranks. With one there is nothing to
            send and ``torch.distributed`` is not needed.

    Making it is collective over the members where they are several; other ranks take no part.
    """

    def __init__(self, ranks: Sequence[int] = (0,)) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = 0
        if self.size == 1:
            return
        self.rank = self.ranks.index(dist.get_rank())
        self._name = fresh_name("host", self.ranks)
        store = dist.distributed_c10d.PrefixStore(self._name, default_store())
        with self._answered():
            self._group: Any = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=timeout())

    def gather_ints(self, values: Sequence[int]) -> NDArray[np.int64]:
        """[size, n] Every member's ``values``, equally many on each."""
        return self._gather(torch.tensor(list(values), dtype=torch.int64)).numpy()

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every member's ``data``, of any sizes: one message on the sizes, one padded to the longest."""
        sizes = self.gather_ints([len(data)])[:, 0].tolist()
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(data)] = _tensor(data)
        gathered = self._gather(mine).numpy() if mine.numel() else [np.zeros(0, np.uint8)] * self.size
        return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def send(
        self, parts: Sequence[bytes], notes: Sequence[int] = ()
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        """``parts[i]`` goes to member i.

        Args:
            parts: one for each member; this one's own comes back as it is. They may be empty.
            notes: a few numbers of 64 bits that all members get to see, equally many on each.

        Returns:
            What each member sent to this one, and [size, n] their notes.
        """
        told = torch.tensor([[len(part), *notes] for part in parts], dtype=torch.int64)
        heard = torch.empty_like(told)
        self._trade(heard, told, [1] * self.size, [1] * self.size)
        to_each, from_each = told[:, 0].tolist(), heard[:, 0].tolist()
        arrived = torch.empty(sum(from_each), dtype=torch.uint8)
        self._trade(arrived, _tensor(b"".join(parts)), from_each, to_each)
        flat, ends = arrived.numpy(), np.cumsum(from_each).tolist()
        pieces = [flat[end - size : end].tobytes() for end, size in zip(ends, from_each, strict=True)]
        return pieces, heard.numpy()[:, 1:]

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        """[size, n] mine: [n] equally long on all members."""
        if self.size == 1:
            return mine[None]
        gathered = torch.empty(self.size, mine.numel(), dtype=mine.dtype)
        with self._answered():
            self._group.allgather([list(gathered.unbind())], [mine]).wait()
        return gathered

    def _trade(
        self, heard: torch.Tensor, told: torch.Tensor, from_each: list[int], to_each: list[int]
    ) -> None:
        """Rows of ``told`` to the members, ``to_each`` of them; theirs into ``heard``."""
        if self.size == 1:
            heard.copy_(told)
            return
        with self._answered():
            self._group.alltoall_base(heard, told, from_each, to_each).wait()

    def raise_together(self, error: Exception | None, what: str) -> None:
        """Raise on every member where any has an error, so that none waits for one that has left.

        Args:
            error: what happened on this member; None: nothing.
            what: the errand, for the message.

        Raises:
            Exception: ``error`` itself on the members that have one.
            RuntimeError: on the others; names the members that failed, and the first one's error.
        """
        if self.size == 1 and error is not None:
            raise error
        if self.gather_ints([error is not None]).any():
            self.tell_failure(error, what)

    def tell_failure(self, error: Exception | None, what: str) -> None:
        """The second half of `raise_together`: all members know already that some have failed."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        texts = [data.decode(errors="replace") for data in self.gather_bytes(text.encode())]
        if error is not None:
            raise error
        failed = [rank for rank, told in enumerate(texts) if told]
        raise RuntimeError(
            f"{what}: data ranks {failed} failed, so rank {self.rank} cannot go on. Rank {failed[0]} says: "
            f"{texts[failed[0]]}"
        )

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Say who is missing where a message fails: the members that do not notice its failure."""
        try:
            yield
        except RuntimeError as error:
            silent = self._silent()
            who = f"data ranks {silent} did not answer" if silent else "a data rank did not answer"
            raise RuntimeError(
                f"{who} to rank {self.rank}: who stays silent for {PATIENCE_S:g} s more has ended, hangs, "
                "or left its loop over the batches before the others did. All ranks must take equally many "
                f"steps. The message failed with: {error}"
            ) from error

    def _silent(self) -> list[int]:
        """Data ranks that do not say within `PATIENCE_S` that they noticed a failure; none if unknown."""
        with suppress(Exception):  # the store may have gone with its process
            store = default_store()
            store.set(f"{self._name}/{self.rank}", "1")
            keys = [f"{self._name}/{rank}" for rank in range(self.size)]
            for _ in range(round(PATIENCE_S / PAUSE_S)):  # turns: a machine that stood still blames nobody
                if store.check(keys):
                    break
                time.sleep(PAUSE_S)
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
        return []


def _tensor(data: bytes) -> torch.Tensor:
    """The bytes as a tensor of their own."""
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
