"""The order of a mixture: quota first, then each source's own permutation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaders.order.permutation import Permutation, derive, grouped, shuffled
from loaders.order.quota import Quota


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixtureOrder:
    """Position -> source and place within its usable rows. Axis: n = leaves."""

    quota: Quota
    rows: NDArray[np.int64]
    """[n] Usable rows."""
    names: Sequence[str]
    epoch_size: int
    restarts: bool
    """Whether every epoch runs through the same counts; a schedule goes on over epochs instead."""
    shuffle: bool
    seed: int
    shuffles: Sequence[Permutation | None] = ()
    """[n] Shuffles of leaves that are not shuffled over all their rows; empty: all are."""

    def size(self, epoch: int) -> int:
        """Samples of an epoch; equal for all."""
        return self.epoch_size

    def locate(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Source and place of each position.

        A source goes on where it stood at the end of the last epoch, so that its rows come equally often.
        Cost: a block of the quota, and a permutation for each source present.
        """
        places = np.asarray(positions, np.int64)
        if self.restarts:
            source, ordinal = self.quota.locate(places)
            if epoch:
                ordinal = ordinal + epoch * self.quota.counts(self.epoch_size)[source]
        else:
            source, ordinal = self.quota.locate(places + epoch * self.epoch_size)
        passes, place = np.divmod(ordinal, self.rows[source])
        if self.shuffle:
            for number, mine in grouped(source, len(self.names)):
                for turn in np.unique(passes[mine]).tolist():
                    these = mine[passes[mine] == turn]
                    key = derive(self.seed, "source", self.names[number], turn)
                    within = self.shuffles[number] if self.shuffles else None
                    place[these] = shuffled(place[these], int(self.rows[number]), key, within)
        return source, place
