"""Which settings suit the data: a small grid, each cell planned by the production planner and simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from balancer import admission
from balancer.costs.memory import MemoryEstimate
from balancer.planning.problem import SYNC_MODES
from balancer.simulation import SimulatedPolicy
from loaders.reporting.question import Progress, Question, Setting
from loaders.reporting.running import Ints, run
from loaders.reporting.words import many

LEAST_CAP = 512
FITS, TOO_LARGE, UNKNOWN, HOMELESS, REFUSED = "fits", "too large", "not known", "too short", "cannot plan"
CAP_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One cell of the grid."""

    setting: Setting
    verdict: str
    """``"fits"``; ``"too large"`` for the memory; ``"not known"`` whether it fits; ``"too short"``: some
    sample fits none of its groups; ``"cannot plan"``."""
    step_s: float | None = None
    """Mean over the steps tried; ``None`` where nothing was simulated."""
    used_bytes: float | None = None
    """Estimated memory with a full micro-batch; ``None`` without a model."""
    reason: str = ""
    """Why it does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Census:
    """How often each length occurs: what fits is the same for all samples of a length. Axis: K = lengths."""

    lengths: Ints
    """[K] Rising."""
    counts: Ints
    """[K]"""

    @staticmethod
    def of(lengths: Ints) -> Census:
        """Count. lengths: [S]."""
        values, counts = np.unique(lengths, return_counts=True)
        return Census(lengths=values, counts=counts.astype(np.int64))

    def refused(self, question: Question, setting: Setting) -> int:
        """Samples that no degree of a setting can hold."""
        cap, degrees = setting.max_tokens, setting.cp_degrees
        asked = admission(self.lengths, topology=question.topology, max_tokens=cap, cp_degrees=degrees)
        return int(self.counts[asked.rows].sum())


def candidates(question: Question, lengths: Ints, progress: Progress) -> tuple[Candidate, ...]:
    """Try caps around the given one, the allowed degrees up to each of them, and both ways to meet.

    lengths: [S] samples that fit at the given setting; a setting that holds fewer is marked, not favoured by
    leaving them out.
    """
    degrees = question.given.cp_degrees
    grid = [
        Setting(cap, degrees[: count + 1], sync)
        for sync in SYNC_MODES
        for cap in caps(question)
        for count in range(len(degrees))
    ]
    census = Census.of(lengths)
    found = []
    for number, setting in enumerate(grid):
        found.append(_try(question, lengths, census, setting))
        progress("settings", number + 1, len(grid))
    return tuple(found)


def caps(question: Question) -> list[int]:
    """Tokens a rank: the given cap, a quarter and half of it, twice and four times as much."""
    given = question.given.max_tokens
    found = {given} | {int(given * factor) for factor in CAP_FACTORS if given * factor >= LEAST_CAP}
    return sorted(found)


def fit(question: Question, setting: Setting) -> tuple[str, str]:
    """(verdict, reason) on memory. What is run today is believed to fit, whatever the estimate says."""
    given = question.given
    if setting.sync == given.sync and setting.max_tokens <= given.max_tokens:
        return FITS, ""
    memory = question.memory
    if memory is None:
        if given.sync == "step" and setting.max_tokens <= given.max_tokens:
            return FITS, ""  # sharing out weights and gradients takes less memory
        return UNKNOWN, "give a model for an estimate of the memory"
    used = memory.used_bytes(setting.max_tokens, setting.sync, question.topology.ranks)
    if used <= memory.room_bytes():
        return FITS, ""
    return TOO_LARGE, f"estimated {used / 1e9:,.0f} GB, room for {memory.room_bytes() / 1e9:,.0f} GB"


def _try(question: Question, lengths: Ints, census: Census, setting: Setting) -> Candidate:
    verdict, reason = fit(question, setting)
    used = _used(question.memory, setting, question.topology.ranks)
    refused = census.refused(question, setting)
    if refused:
        reason = f"{many(refused, 'sample')} would not fit"
        return Candidate(setting=setting, verdict=HOMELESS, used_bytes=used, reason=reason)
    (outcome,) = run(question, lengths, setting, ["balanced"], steps=question.search_steps)
    if outcome.error:
        return Candidate(setting=setting, verdict=REFUSED, used_bytes=used, reason=outcome.error)
    return Candidate(setting=setting, verdict=verdict, step_s=outcome.mean_s, used_bytes=used, reason=reason)


def _used(memory: MemoryEstimate | None, setting: Setting, ranks: int) -> float | None:
    return None if memory is None else memory.used_bytes(setting.max_tokens, setting.sync, ranks)


def tuned_static(
    question: Question, lengths: Ints, best: Setting, progress: Progress
) -> tuple[Setting, str] | None:
    """The fastest (setting, policy) at one degree for the whole run, over the caps that fit; if any.

    Degree and cap are searched as the recommendation's are, and both balancers of predicted time are tried:
    what a careful user reaches without a degree for each micro-batch.
    """
    fitting = [cap for cap in caps(question) if fit(question, replace(best, max_tokens=cap))[0] == FITS]
    census, policies = Census.of(lengths), static_policies(question.topology.ranks)
    grid = [
        Setting(cap, (degree,), best.sync)
        for cap in fitting
        for degree in question.given.cp_degrees
        if not census.refused(question, Setting(cap, (degree,), best.sync))
    ]
    found: list[tuple[float, Setting, str]] = []
    for number, setting in enumerate(grid):
        outcomes = run(question, lengths, setting, policies, steps=question.search_steps)
        found += [(one.mean_s, setting, one.policy) for one in outcomes if _ran(one)]
        progress("one degree for all", number + 1, len(grid))
    if not found:
        return None
    _, setting, policy = min(found, key=lambda one: (one[0], one[1].max_tokens, one[1].cp_degrees))
    return setting, policy


def _ran(outcome: SimulatedPolicy) -> bool:
    return not outcome.error and len(outcome) > 0


def static_policies(ranks: int) -> list[str]:
    """Balancers at one degree. Largest differencing takes 17 s a step at 16,384 ranks: left out there."""
    return ["static_cp"] if ranks > 4096 else ["static_cp", "karmarkar_karp"]
