"""How many samples of each source stand before a position, exactly and in closed form.

Independent draws with probabilities w drift from ``w * p`` by the square root of p. Here the count of every
source stays within one sample of its target at every position. Positions are cut into blocks. Counts at a
block's border follow from the targets there alone (largest remainders); inside a block, the sample that is
due first comes first (earliest deadline, as in just-in-time sequencing: Steiner and Yeomans 1993). So any
position costs one block, wherever it lies, and nothing has to be remembered.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

SMALLEST_BLOCK = 256
LARGEST_BLOCK = 1 << 14
"""Positions of a block. A source should come at least once a block; the largest costs about a millisecond."""
KEPT_BLOCKS = 8

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Quota:
    """Targets that grow piecewise linearly with the position, and whole counts that follow them.

    Args:
        starts: [J] positions, rising, from 0, where rates change; fractions are allowed.
        rates: [J, n] samples of each source per position; each row sums to 1.
        cumulative: [J, n] targets at ``starts``; ``None``: sums of the rates.
        more: gives ``(starts, rates)`` that follow the last start, when a position beyond it is asked for;
            ``None``: the last rates go on for ever.
    """

    def __init__(
        self,
        starts: Floats,
        rates: Floats,
        cumulative: Floats | None = None,
        more: Callable[[float], tuple[Floats, Floats]] | None = None,
    ) -> None:
        self.starts = np.asarray(starts, np.float64)
        self.rates = np.atleast_2d(np.asarray(rates, np.float64))
        self.cumulative = _sums(self.starts, self.rates) if cumulative is None else cumulative
        self._more = more
        positive = self.rates[self.rates > 0]
        block = SMALLEST_BLOCK
        while block < LARGEST_BLOCK and block * positive.min() < 2:
            block *= 2
        self.block = block
        steady = more is None and (cumulative is not None or len(self.starts) == 1)
        self._remainders = bool(steady and block * positive.min() >= 1)
        self.total = round(self.starts[-1]) if not self.rates[-1].any() else 1 << 62
        """Positions there are; rates that end at 0 end the order."""
        # spread, so that sources with equal targets do not all step at one place
        self._phases = (np.arange(self.num_sources) * 0.6180339887498949 + 0.5) % 1.0
        self._blocks: OrderedDict[int, tuple[NDArray[np.int32], Ints, Ints]] = OrderedDict()
        self._border = 0, np.zeros(self.num_sources, np.int64)
        """Counts before the block after the last one that was filled: most often the next one asked for."""

    @property
    def num_sources(self) -> int:
        """[n] of the targets."""
        return int(self.rates.shape[1])

    def targets(self, position: float) -> Floats:
        """[n] Samples of each source that should stand before ``position``; they sum to it."""
        self._extend(position)
        j = int(np.searchsorted(self.starts, position, side="right")) - 1
        return np.asarray(self.cumulative[j] + (position - self.starts[j]) * self.rates[j])

    def counts(self, position: int) -> Ints:
        """[n] Samples of each source that do stand before ``position``."""
        number, within = divmod(int(position), self.block)
        if within == 0:
            return self._at_border(number)
        source, _, before = self._filled(number)
        return before + np.bincount(source[:within], minlength=self.num_sources)

    def locate(self, positions: Ints) -> tuple[NDArray[np.int32], Ints]:
        """Source [N] of each position, and how many samples of that source stand before it [N]."""
        places = np.asarray(positions, np.int64)
        source, ordinal = np.empty(places.size, np.int32), np.empty(places.size, np.int64)
        blocks = places // self.block
        order = None if (blocks[1:] >= blocks[:-1]).all() else np.argsort(blocks, kind="stable")
        ordered = blocks if order is None else blocks[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1)).tolist()
        # runs of one block, since a mask a block would make a whole epoch quadratic
        for begin, end in itertools.pairwise([*begins, places.size]):
            mine = slice(begin, end) if order is None else order[begin:end]
            number = int(ordered[begin])
            filled, within = self._filled(number), places[mine] - number * self.block
            source[mine], ordinal[mine] = filled[0][within], filled[1][within]
        return source, ordinal

    def first_reaching(self, wanted: Ints, *, all_of: bool) -> int:
        """Positions until every source has given ``wanted`` [n] samples, or until the first one has.

        Args:
            wanted: samples of each source; 0: it does not matter.
            all_of: wait for every source rather than for the first.

        Cost: a binary search over positions, each O(n).
        """
        asked = np.flatnonzero(wanted > 0)

        def reached(position: int) -> bool:
            enough = self.counts(position)[asked] >= wanted[asked]
            return bool(enough.all() if all_of else enough.any())

        low, high = 0, 1
        while not reached(high):
            if high > 1 << 60:
                short = asked[self.counts(high)[asked] < wanted[asked]]
                raise ValueError(
                    f"sources {short.tolist()} never give their samples: their weights are or become 0."
                )
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high

    def _filled(self, number: int) -> tuple[NDArray[np.int32], Ints, Ints]:
        from loaders.order import _kernels

        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        first = number * self.block
        before, after = self._at_border(number), self._at_border(number + 1)
        self._border = number + 1, after
        source, ordinal = np.zeros(self.block, np.int32), np.zeros(self.block, np.int64)
        low = int(np.searchsorted(self.starts, first, side="right")) - 1
        high = int(np.searchsorted(self.starts, first + self.block, side="right"))
        if high - low == 1:
            base = self.cumulative[low] + (first - self.starts[low]) * self.rates[low]
            _kernels.fill_even_block(base, self.rates[low], before.copy(), after, source, ordinal)
        else:
            _kernels.fill_block(
                first,
                self.starts[low:high],
                self.cumulative[low:high],
                self.rates[low:high],
                before.copy(),
                after,
                source,
                ordinal,
            )
        self._blocks[number] = source, ordinal, before
        if len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _at_border(self, number: int) -> Ints:
        known, counts = self._border
        if known == number:
            return counts
        position = min(number * self.block, self.total)
        if position == 0:
            return np.zeros(self.num_sources, np.int64)
        if self._remainders:
            return largest_remainders(self.targets(position), position)
        return self._stepped(position)

    def _stepped(self, position: int) -> Ints:
        """Counts that never fall, for targets that may stand still: a divisor method with spread phases.

        Source i gives its k-th sample at the time its target passes k - phase[i]; the border lies at the time
        when ``position`` samples have been given. See Balinski and Young, "Fair Representation" (1982).
        """
        low, high = float(position - self.num_sources - 1), float(position + self.num_sources + 1)
        for _ in range(80):
            middle = (low + high) / 2
            if self._given(middle).sum() < position:
                low = middle
            else:
                high = middle
        counts, before = self._given(high), self._given(low)
        surplus = int(counts.sum()) - position
        for source in np.flatnonzero(counts > before)[::-1][:surplus]:  # several step at one time
            counts[source] -= 1
        return counts

    def _given(self, time: float) -> Ints:
        return np.floor(self.targets(max(time, 0.0)) + self._phases).astype(np.int64)

    def _extend(self, position: float) -> None:
        while self._more is not None and position + 2 * self.block >= self.starts[-1]:
            starts, rates = self._more(float(self.starts[-1]))
            at = self.cumulative[-1] + (starts[0] - self.starts[-1]) * self.rates[-1]
            self.cumulative = np.concatenate([self.cumulative, at + _sums(starts - starts[0], rates)])
            self.starts = np.concatenate([self.starts, starts])
            self.rates = np.concatenate([self.rates, rates])


def _sums(starts: Floats, rates: Floats) -> Floats:
    """[J, n] Targets at the starts."""
    spans = np.diff(starts)[:, None]
    return np.concatenate([np.zeros((1, rates.shape[1])), np.cumsum(spans * rates[:-1], axis=0)])


def largest_remainders(targets: Floats, total: int) -> Ints:
    """Whole numbers that sum to ``total``, each within one of its target."""
    counts = np.floor(targets).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - targets, kind="stable")[:missing]] += 1
    return counts


def until_all_given(rates: Floats, sizes: Ints) -> Quota:
    """Each source gives ``sizes`` samples and is then left out, the others keeping their proportions."""
    starts, rows, cumulative = [0.0], [], [np.zeros(rates.size)]
    alive = sizes > 0
    while True:
        row = np.where(alive, rates, 0.0)
        if row.sum() <= 0:
            row = alive.astype(np.float64)
        rows.append(row / max(row.sum(), 1e-300))
        if not alive.any():
            break
        left = np.where(
            rows[-1] > 0, (sizes - cumulative[-1]) / np.where(rows[-1] > 0, rows[-1], 1.0), np.inf
        )
        span = float(left.min())
        ended = left <= span * (1 + 1e-12)
        reached = cumulative[-1] + span * rows[-1]
        reached[ended] = sizes[ended]  # exactly, so that nothing is rounded up behind the end
        starts.append(starts[-1] + span)
        cumulative.append(reached)
        alive &= ~ended
        if not alive.any():
            rows.append(np.full(rates.size, 0.0))
            break
    return Quota(np.array(starts), np.array(rows), np.array(cumulative))
