"""The exchange of streams with all ranks played by threads of one process: many random streams at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology
from loaders.asked import asked_of
from loaders.loader import DEFAULTS
from loaders.streams.opening import open_stream
from loaders.streams.union import StepSize
from tests.loaders.streams import Endless, Stateful, Stream

CAP = 32
COST = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)


class PlayedHost:
    """A `HostGroup` whose members are threads that meet at a barrier."""

    def __init__(self, rank, size, board, barrier):
        self.rank, self.size = rank, size
        self.board, self.barrier = board, barrier

    def gather(self, value):
        self.board[self.rank] = value
        self.barrier.wait()
        found = list(self.board)
        self.barrier.wait()
        return found

    def gather_ints(self, values):
        return np.array(self.gather(list(map(int, values))), np.int64)

    def gather_bytes(self, data):
        return self.gather(data)

    def send(self, parts, notes=()):
        heard = self.gather((list(parts), list(map(int, notes))))
        return [sent[self.rank] for sent, _ in heard], np.array([told for _, told in heard], np.int64)

    def raise_together(self, error, what):
        if any(failed is not None for failed in self.gather(error)):
            raise error or RuntimeError(what)

    tell_failure = raise_together


def streaming(stream, rank, ranks, host, size, degrees, drop_last):
    arguments = DEFAULTS | {
        "max_tokens": CAP,
        "cost": COST,
        "topology": Topology(ranks=ranks),
        "rank": rank,
        "cp_degrees": degrees,
        "global_batch_size": size.samples,
        "step_tokens": size.tokens,
        "oversize": "split",
        "drop_last": drop_last,
        "exchange": True,
    }
    loader = open_stream(stream, asked_of(stream, arguments, DEFAULTS), host=lambda: host)
    loader.identity = {}  # the streams of a state are made anew for each test
    return loader


def play(streams, *arguments, states=None, until=None):
    """By rank: the batches, told by step, up to the end or to step ``until``, and the states behind each."""
    ranks = len(streams)
    board, barrier = [None] * ranks, threading.Barrier(ranks, timeout=300)

    def run(rank):
        loader = streaming(streams[rank], rank, ranks, PlayedHost(rank, ranks, board, barrier), *arguments)
        if states is not None:
            loader.load_state(states[rank])
        batches, saved = [], {}
        for batch in loader.start():
            told = (batch["input_ids"].tolist(), batch["shift_labels"].tolist(), batch.sample_ids.tolist())
            batches.append((batch.step, batch.cp_rank, batch.starts.tolist(), told, batch.step_loss_tokens))
            if batch.last_in_step:
                saved[batch.step] = loader.state()
                if batch.step == until:
                    break
        return batches, saved, loader.report()

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


def steps_of(per_rank, size):
    """Samples of each step, by the definition: in turn, until there are enough of them or of their tokens."""
    order = sorted((row, rank) for rank, lengths in enumerate(per_rank) for row in range(len(lengths)))
    steps, tokens = [[]], 0
    for row, rank in order:
        steps[-1].append((rank, row))
        tokens += per_rank[rank][row]
        if len(steps[-1]) == size.samples or (size.tokens is not None and tokens >= size.tokens):
            steps.append([])
            tokens = 0
    full = steps[:-1]
    return full, full + [step for step in steps[-1:] if step]


@settings(max_examples=30)
@given(
    # short samples before long ones let ranks read further than a step of so many tokens needs
    per_rank=st.lists(st.lists(st.sampled_from([1, 2, 9, 31, 70]), max_size=24), min_size=2, max_size=4),
    size=st.one_of(
        st.builds(StepSize, samples=st.integers(1, 9), tokens=st.none()),
        st.builds(StepSize, samples=st.none(), tokens=st.integers(1, 200)),
        st.builds(StepSize, samples=st.none(), tokens=st.integers(50, 100)),
    ),
    wide=st.booleans(),
    drop_last=st.booleans(),
    stop=st.integers(0, 20),
    stateful=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_steps_are_runs_of_the_order_and_what_is_resumed_is_the_rest(
    per_rank, size, wide, drop_last, stop, stateful
):
    longest = CAP * (2 if wide else 1)  # a sample may lie on as many ranks as the largest degree
    arguments = (size, (1, 2) if wide else (1,), drop_last)

    def streams():
        return [(Stateful if stateful[rank] else Stream)(lengths) for rank, lengths in enumerate(per_rank)]

    heard = play(streams(), *arguments)
    full, every = steps_of(per_rank, size)
    expected = full if drop_last else every
    seen = {}
    for batches, saved, report in heard:
        assert sorted(saved) == list(range(len(expected)))
        assert report["tokens"] == sum(per_rank[rank][row] for step in expected for rank, row in step)
        for step, cp_rank, starts, (_, _, pairs), _ in batches:
            for (rank, row), start in zip(pairs, starts, strict=True):
                if cp_rank == 0:
                    assert (rank, row, start) not in seen
                    seen[rank, row, start] = step
    for number, step in enumerate(expected):
        for rank, row in step:
            for start in range(0, per_rank[rank][row], longest):
                assert seen.pop((rank, row, start)) == number
    assert not seen
    labels = [[] for _ in expected]
    for batches, _, _ in heard:
        for step, _, _, (_, shifted, _), total in batches:
            labels[step].append((sum(label != -100 for label in shifted[0]), total))
    for number, step in enumerate(expected):
        lengths = [per_rank[r][row] for r, row in step]
        pieces = [min(longest, length - s) for length in lengths for s in range(0, length, longest)]
        assert {total for _, total in labels[number]} == {sum(piece - 1 for piece in pieces)}
        assert sum(count for count, _ in labels[number]) == sum(piece - 1 for piece in pieces)
    if expected:
        stop %= len(expected)
        rest = play(streams(), *arguments, states=[saved[stop] for _, saved, _ in heard])
        for (resumed, _, _), (batches, _, _) in zip(rest, heard, strict=True):
            assert resumed == [batch for batch in batches if batch[0] > stop]


def test_samples_that_were_read_too_far_are_read_again():
    per_rank = [[1] * 12 + [70] * 6 + [5] * 6] * 2
    arguments = (StepSize(samples=None, tokens=100), (1,), False)
    heard = play([Stream(lengths) for lengths in per_rank], *arguments)
    assert any(state["skip"] for _, saved, _ in heard for state in saved.values())
    for stop in range(len(heard[0][1])):
        states = [saved[stop] for _, saved, _ in heard]
        rest = play([Stateful(lengths) for lengths in per_rank], *arguments, states=states)
        for (resumed, _, _), (batches, _, _) in zip(rest, heard, strict=True):
            assert resumed == [batch for batch in batches if batch[0] > stop]


def test_an_endless_stream_goes_on_alone_when_the_others_have_ended():
    size = StepSize(samples=6, tokens=None)
    heard = play([Endless(), Stream([5] * 7), Stream([])], size, (1, 2), False, until=20)
    assert [sorted(saved) for _, saved, _ in heard] == [list(range(21))] * 3
    seen = sorted(
        (step, *pair)
        for batches, _, _ in heard
        for step, cp_rank, _, (_, _, pairs), _ in batches
        for pair in pairs
        if cp_rank == 0
    )
    of_both = [(rank, row) for row in range(7) for rank in (0, 1)]
    order = of_both + [(0, row) for row in range(7, 7 + 21 * 6 - 14)]
    assert seen == sorted((at // 6, *pair) for at, pair in enumerate(order))
