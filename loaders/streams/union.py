"""Streams of several ranks as one: lengths are told to all once a step, and samples move by the plan.

The streams' samples in turn are one order (`order`); a step is a run of it. Every rank reads only what
the step needs of its own stream, tells the lengths, makes the same plan, sends its samples to the ranks that
compute them, and keeps nothing that is done.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import StepPlan, Topology
from balancer.runtime import HostGroup
from loaders.batches.shares import shares_of_rank
from loaders.order.steps import StepTokens, tokens_wanted
from loaders.streams.cursor import Place, StreamCursor
from loaders.streams.intake import Held, Intake
from loaders.streams.moves import packed, unpacked, wanted_of
from loaders.streams.order import first_in_turn
from loaders.streams.told import Own, Told
from loaders.streams.window import StreamStep, nothing
from packing.table import SampleTable

NAMED = 8
"""Ranks that a message about all of them names."""
COLUMNS = ("row", "start", "num_tokens", "num_loss_tokens")
"""Columns of a sample table that are told, besides its phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """How many samples of the order a step has."""

    samples: int | None
    """Over all ranks."""
    tokens: StepTokens | None
    """Where ``samples`` is not given: it ends with the sample that reaches so many tokens."""

    def __str__(self) -> str:
        if self.samples is not None:
            return f"{self.samples} samples"
        return "tokens by a function" if callable(self.tokens) else f"{self.tokens} tokens"

    def tokens_of(self, step: int) -> int:
        """Tokens that a step wants.

        Raises:
            ValueError: the user's function gives less than 1.
        """
        assert self.tokens is not None
        return tokens_wanted(self.tokens, step)


def identity_of_union(size: StepSize, capacity: int, oversize: str) -> dict[str, Any]:
    """What a state of exchanged streams rests on: steps are fixed before they are planned, so nothing more.

    Args:
        size: of a step.
        capacity: tokens of the longest sample.
        oversize: what becomes of longer ones.
    """
    cut = {} if oversize == "error" else {"samples": f"at most {capacity} tokens, else {oversize}"}
    return {"step": str(size), **cut}


class UnionSteps:
    """Steps of all ranks' streams together.

    Args:
        place: this rank's stream.
        intake: looks at its samples.
        received: the sources that this rank's micro-batches read from, one for each rank's stream; that of
            this rank is the intake's.
        size: what a step has.
        planner: `plan_step`, or one that weighs phases as well.
        options: its keyword arguments.
        topology: of the ranks.
        drop_last: leave out the last, smaller step.
        pad_slots: pad all batches of a slot to its largest.
        setup: what must be equal on all ranks, in words.
    """

    def __init__(
        self,
        place: Place,
        intake: Intake,
        received: Sequence[Held],
        *,
        size: StepSize,
        planner: Callable[..., StepPlan],
        options: Mapping[str, Any],
        topology: Topology,
        drop_last: bool,
        pad_slots: bool,
        setup: str,
    ) -> None:
        self.place, self.intake, self.received = place, intake, received
        self.size, self.planner, self.options, self.topology = size, planner, options, topology
        self.drop_last, self.pad_slots = drop_last, pad_slots
        # their number was asked for, so all ranks run all slots
        self.every_slot = "micro_batches" in options or "slots_multiple_of" in options
        self.setup = setup
        self.sent_bytes = 0
        """Of samples that this rank sent to others."""
        self._counters: NDArray[np.int64] | None = None

    def steps(self, cursor: StreamCursor, host: HostGroup) -> Iterator[StreamStep]:
        """Steps until all streams are at their end. Collective over the ranks of ``host``."""
        error: Exception | None = None
        try:
            own = Own(self.place, self.intake, cursor)
        except Exception as failed:
            error = failed
        host.raise_together(error, f"step {cursor.step}, opening a stream")
        told = self._meet(cursor, host)
        while (counts := self._counts(cursor.step, own, told, host)) is not None:
            table = told.first(counts)
            started = time.perf_counter()
            plan = self.planner(table, topology=self.topology, **self.options)
            plan_s = time.perf_counter() - started
            self._move(plan, table, cursor.step, host)
            mine = int(counts[host.rank])
            cursor = replace(own.cursor(cursor, mine), step=cursor.step + 1)
            yield StreamStep(
                shares=shares_of_rank(
                    plan,
                    table,
                    rank=host.rank,
                    step=cursor.step - 1,
                    every_slot=self.every_slot,
                    pad_slots=self.pad_slots,
                    step_samples=int(np.count_nonzero(table.num_loss_tokens)),
                ),
                table=replace(table, source=np.zeros_like(table.source)),
                plan=plan,
                plan_s=plan_s,
                imbalance=plan.imbalance,
                behind=cursor,
            )
            own.finish(mine)
            told.finish(counts)

    def counters(self) -> dict[str, int]:
        """What became of the samples of all ranks' streams, as far as they have told."""
        own = self._own_counters()
        values = list(own.values()) if self._counters is None else self._counters.tolist()
        return dict(zip(own, values, strict=True))

    def _own_counters(self) -> dict[str, int]:
        return self.intake.counters() | {"exchanged_bytes": self.sent_bytes}

    def _meet(self, cursor: StreamCursor, host: HostGroup) -> Told:
        """Where each rank stands; they must be at one step and agree on what a step is."""
        digest = hashlib.blake2b(self.setup.encode(), digest_size=8).digest()
        told = host.gather_ints(  # [R, 5]
            [
                cursor.epoch,
                cursor.step,
                int.from_bytes(digest, "little", signed=True),
                cursor.taken,
                cursor.ended,
            ]
        )
        for column, what in ((0, "epoch"), (1, "step")):
            if (told[:, column] != told[0, column]).any():
                where = ", ".join(
                    f"rank {rank} at {at}" for rank, at in enumerate(told[:NAMED, column].tolist())
                )
                where += ", ..." if host.size > NAMED else ""
                raise RuntimeError(
                    f"data ranks stand at different {what}s: {where}. Load the states that all ranks saved "
                    "at one step, each its own, or start all of them anew."
                )
        different = np.flatnonzero(told[:, 2] != told[0, 2]).tolist()
        if different:
            raise RuntimeError(
                f"data ranks {different} make other steps than rank 0. What decides them must be equal on "
                f"all ranks; here it is {self.setup}."
            )
        return Told(told[:, 3], told[:, 4], self.intake.phases)

    def _counts(self, step: int, own: Own, told: Told, host: HostGroup) -> NDArray[np.int64] | None:
        """[R] Samples of the step on each rank, all of them read and told; ``None`` where none is left."""
        tokens = None if self.size.samples is not None else self.size.tokens_of(step)
        if self.size.samples is not None:
            wanted = self.size.samples
        elif told.samples:
            wanted = max(int((tokens or 0) * told.samples / told.tokens), 1)
        else:
            wanted = host.size
        while True:
            counts = first_in_turn(told.begun, told.ends, wanted)
            missing = np.maximum(counts - told.held, 0)
            if missing.any():
                self._tell(int(missing[host.rank]), step, own, told, host)
                continue
            size = int(counts.sum())
            if tokens is not None and size:
                table = told.first(counts)
                first = np.flatnonzero(table.start == 0)
                sums = np.cumsum(np.add.reduceat(table.num_tokens, first))  # [samples]
                reached = int(np.searchsorted(sums, tokens))
                if reached < size:
                    return first_in_turn(told.begun, told.ends, reached + 1)
                if size == wanted:  # streams may have more
                    more = int((tokens - sums[-1]) * told.samples / told.tokens)
                    wanted += min(max(more, 1), wanted)  # a few short samples tell little of the others
                    continue
            elif size == self.size.samples:
                return counts
            return None if size == 0 or self.drop_last else counts

    def _tell(self, count: int, step: int, own: Own, told: Told, host: HostGroup) -> None:
        """Every rank reads what is missing of its stream, and tells the lengths."""
        error, table = None, nothing(self.intake.phases)
        try:
            table = own.draw(count)
        except Exception as failed:  # the others are waiting to hear of it
            error = failed
        columns = [getattr(table, name) for name in COLUMNS]
        columns += [table.phases[name] for name in self.intake.phases]
        head = [error is not None, own.ended, *self._own_counters().values()]
        message = np.concatenate([np.array(head, np.int64), *columns])
        heard = [np.frombuffer(data, np.int64) for data in host.gather_bytes(message.tobytes())]
        heads = np.stack([values[: len(head)] for values in heard])
        if heads[:, 0].any():
            host.tell_failure(error, f"step {step}, reading a stream")
        told.ended = heads[:, 1] > 0
        self._counters = heads[:, 2:].sum(0)
        parts = [values[len(head) :].reshape(len(columns), -1) for values in heard]
        source = np.repeat(np.arange(host.size, dtype=np.int32), [part.shape[1] for part in parts])
        told.add(self._table(np.concatenate(parts, axis=1), source))

    def _table(self, columns: NDArray[np.int64], source: NDArray[np.int32]) -> SampleTable:
        """columns: [COLUMNS and phases, rows]; source: [rows]"""
        named = dict(zip(COLUMNS, columns, strict=False))
        phases = dict(zip(self.intake.phases, columns[len(COLUMNS) :], strict=True))
        return SampleTable(source=source, phases=phases, **named)

    def _move(self, plan: StepPlan, table: SampleTable, step: int, host: HostGroup) -> None:
        """Send samples to the ranks whose micro-batches hold them, and take in those of other ranks."""
        if host.size == 1:
            return
        parts, error = [b""] * host.size, None
        try:
            for rank, rows in wanted_of(plan, table, host.rank).items():
                if rank != host.rank:
                    parts[rank] = packed(self.intake.source, rows)
        except Exception as failed:  # an entry that cannot be pickled
            error, parts = failed, [b""] * host.size
        arrived, notes = host.send(parts, [error is not None, _signed(plan.digest())])
        if notes[:, 0].any():
            host.tell_failure(error, f"step {step}, sending samples")
        different = np.flatnonzero(notes[:, 1] != notes[0, 1]).tolist()
        if different:
            raise RuntimeError(
                f"step {step}: data ranks {different} built another plan than rank 0. Check that seed, cost, "
                "topology and cp_degrees are equal on all ranks."
            )
        self.sent_bytes += sum(map(len, parts))
        for rank, data in enumerate(arrived):
            if rank != host.rank:
                self.received[rank].held = unpacked(data)


def _signed(unsigned: int) -> int:
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned
