"""What is saved of a loader: a position, and what it must be a position in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

VERSION = 1
"""States of older versions are read as long as this code knows them; newer ones are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Finished steps, and where the next one starts. Equal on all ranks."""

    epoch: int = 0
    position: int = 0
    """First position of the epoch that no finished step holds."""
    step: int = 0
    """Finished steps, over all epochs."""
    first_step: int = 0
    """Steps that were finished when the epoch began: by it a function for ``step_tokens`` counts."""

    @property
    def begin(self) -> Cursor:
        """Where the cursor's epoch began."""
        return replace(self, position=0, step=self.first_step)


def epoch_begin(cursor: Cursor, epoch: int) -> Cursor:
    """Where an epoch begins, as many steps on as ``cursor``."""
    return Cursor(epoch=epoch, step=cursor.step, first_step=cursor.step)


def to_state(cursor: Cursor, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A plain dict of a few hundred bytes, fit for ``torch.save`` and distributed checkpoints."""
    return {
        "version": VERSION,
        "epoch": cursor.epoch,
        "position": cursor.position,
        "step": cursor.step,
        "first_step": cursor.first_step,
        "identity": dict(identity),
    }


def from_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Cursor:
    """The cursor of a saved state, once it is clear that it was saved over the same data and order.

    Raises:
        ValueError: a state of another kind or version, or of another order; says what differs.
    """
    version = state.get("version")
    if version is None or "position" not in state:
        raise ValueError(
            "this is not a state of a loader with max_tokens: keys version and position must be there, got "
            f"{sorted(map(str, state))}. A state saved without max_tokens cannot be loaded with it, nor the "
            "other way round."
        )
    check_version(version, VERSION)
    saved = state["identity"]
    differing = [name for name in identity if saved.get(name) != identity[name]]
    if differing:
        detail = "; ".join(f"{name} was {saved.get(name)!r}, is {identity[name]!r}" for name in differing)
        raise ValueError(
            f"the state belongs to another order of samples: {detail}. Resuming would repeat or skip "
            "samples. Open the same data with the same arguments, or start anew without a state."
        )
    fields = {name: int(state[name]) for name in Cursor.__slots__ if name in state}
    return Cursor(**fields)


def check_version(version: int, newest: int) -> None:
    """Raises ValueError where a state is of a version that this code does not know."""
    if not 1 <= version <= newest:
        raise ValueError(
            f"the state has version {version}, this code reads 1..{newest}. Load it with the version of "
            "evenload that saved it, or a later one."
        )
