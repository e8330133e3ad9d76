"""Which of the settings that were tried is recommended, and why, in words that the grid bears out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from balancer.planning.problem import SYNC_MODES
from loaders.reporting.question import Question, Setting
from loaders.reporting.search import FITS, Candidate, caps
from loaders.reporting.words import share

CAP_TOLERANCE = 0.01
"""The given cap is kept unless another is faster by more; among others, the least within it is taken."""
SYNC_TOLERANCE = 0.03
"""The given sync is kept unless the other is faster by more: to change has costs that no plan knows."""
_EQUAL = 0.0005
_MEANS = {
    "step": "Ranks meet once a step (DDP with no_sync, ZeRO-1/2)",
    "micro_batch": "Ranks meet in every micro-batch (FSDP, ZeRO-3)",
}

Times = dict[Setting, float]
"""Mean step of every setting that fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What was given as far as it is as good as any, else the least demanding setting that is."""

    setting: Setting
    step_s: float
    """Mean over the steps that every setting was tried on."""
    fastest_s: float
    """The same of the fastest setting that fits."""
    reasons: dict[str, str]
    """``max_tokens``, ``cp_degrees``, ``sync`` -> why."""


def recommend(question: Question, tried: tuple[Candidate, ...]) -> Recommendation:
    """The given sync and cap where others gain little; then the least cap, then the fewest degrees.

    Raises:
        ValueError: none fits.
    """
    times = {one.setting: one.step_s for one in tried if one.verdict == FITS and one.step_s is not None}
    if not times:
        reasons = "; ".join(sorted({f"{one.setting}: {one.reason}" for one in tried})[:3])
        raise ValueError(f"no setting can run these samples: {reasons}")
    given = question.given
    own = _with_sync(times, _choose_sync(times, given))
    near = [setting for setting, step_s in own.items() if step_s <= min(own.values()) * (1 + CAP_TOLERANCE)]
    kept = [setting for setting in near if setting.max_tokens == given.max_tokens]
    best = min(kept or near, key=lambda setting: (setting.max_tokens, len(setting.cp_degrees)))
    return Recommendation(
        setting=best,
        step_s=times[best],
        fastest_s=min(times.values()),
        reasons={
            "max_tokens": _why_cap(question, tried, own, best),
            "cp_degrees": _why_degrees(tried, best, times[best]),
            "sync": _why_sync(tried, times, best, given),
        },
    )


def _with_sync(times: Times, sync: str) -> Times:
    return {setting: step_s for setting, step_s in times.items() if setting.sync == sync}


def _choose_sync(times: Times, given: Setting) -> str:
    """The given one, unless the fastest setting with the other is faster by more than the tolerance."""
    own = _with_sync(times, given.sync)
    others = {one: step_s for one, step_s in times.items() if one not in own and not _in_vain(one, times)}
    if not own or (others and min(own.values()) > min(others.values()) * (1 + SYNC_TOLERANCE)):
        return _other(given.sync)
    return given.sync


def _in_vain(setting: Setting, times: Times) -> bool:
    """Whether ranks would meet in every micro-batch where they need not.

    The same micro-batches take no longer where ranks meet once a step; that the planner finds better ones
    for the stricter sync is chance, and no reason to change.
    """
    return setting.sync == "micro_batch" and replace(setting, sync="step") in times


def _other(sync: str) -> str:
    return SYNC_MODES[1 - SYNC_MODES.index(sync)]


def _cell(tried: tuple[Candidate, ...], setting: Setting) -> Candidate | None:
    return next((one for one in tried if one.setting == setting), None)


def _more_or_less(step_s: float, than_s: float) -> str:
    """``takes 4.0 % more time``."""
    slower = step_s / than_s - 1
    if abs(slower) < _EQUAL:
        return "takes as long"
    return f"takes {share(abs(slower))} {'more' if slower > 0 else 'less'} time"


def _compared(cell: Candidate, best_s: float) -> str:
    """How another setting compares, in words."""
    if cell.step_s is None:
        return f"is out: {cell.reason or cell.verdict}"
    words = _more_or_less(cell.step_s, best_s)
    return words if cell.verdict == FITS else f"{words}, but {cell.reason}"


def _why_cap(question: Question, tried: tuple[Candidate, ...], own: Times, best: Setting) -> str:
    """own: of the settings with the recommended sync."""
    given, all_caps, best_s = question.given.max_tokens, caps(question), own[best]
    if best.max_tokens == given:
        parts = [f"What you gave: with sync {best.sync} no other cap that fits is more than 1 % faster"]
    else:
        parts = [f"The smallest cap within 1 % of the fastest with sync {best.sync}"]
        at_best = [step_s for setting, step_s in own.items() if setting.max_tokens == given]
        asked = _cell(tried, replace(best, max_tokens=given))
        if at_best:
            slower = share(min(at_best) / min(own.values()) - 1)
            parts.append(f"the {given:,} that you gave takes {slower} more time than that fastest one")
        elif asked is not None:
            parts.append(f"the {given:,} that you gave {_compared(asked, best_s)}")
    place = all_caps.index(best.max_tokens)
    for other in (place - 1, place + 1):
        if 0 <= other < len(all_caps) and all_caps[other] != given:
            cell = _cell(tried, replace(best, max_tokens=all_caps[other]))
            if cell is not None:
                parts.append(f"{all_caps[other]:,} {_compared(cell, best_s)}")
    return "; ".join(parts) + "."


def _why_degrees(tried: tuple[Candidate, ...], best: Setting, best_s: float) -> str:
    same = [one for one in tried if replace(one.setting, cp_degrees=best.cp_degrees) == best]
    same.sort(key=lambda one: len(one.setting.cp_degrees))
    place = next(i for i, one in enumerate(same) if one.setting == best)
    parts = ["Every micro-batch picks its own degree among these"]
    for other in (place - 1, place + 1):
        if 0 <= other < len(same):
            widest = same[other].setting.cp_degrees[-1]
            parts.append(f"stopping at {widest} {_compared(same[other], best_s)}")
    return "; ".join(parts) + "."


def _why_sync(tried: tuple[Candidate, ...], times: Times, best: Setting, given: Setting) -> str:
    """Fastest against fastest, as the two tables of the grid have them."""
    means, other = _MEANS[best.sync], _other(best.sync)
    others = _with_sync(times, other)
    own_s = min(_with_sync(times, best.sync).values())
    if best.sync != given.sync:
        if not others:
            return f"{means}: with {other} no setting that was tried can run these samples."
        less = share(1 - own_s / min(others.values()))
        gathering = ", before the gathering of sharded weights, which is not timed"
        return (
            f"{means}: the fastest such setting takes {less} less time than the fastest with {other}"
            f"{gathering if best.sync == 'micro_batch' else ''}."
        )
    if not others:
        cell = _cell(tried, replace(best, sync=other))
        return f"{means}." if cell is None else f"{means}; {other} {_compared(cell, times[best])}."
    others_s = min(others.values())
    told = f"{means}; the fastest setting with {other} {_more_or_less(others_s, own_s)}"
    if others_s >= own_s * (1 - _EQUAL):
        return f"{told}."
    if own_s <= others_s * (1 + SYNC_TOLERANCE):
        gathering = ": the gathering of sharded weights in every micro-batch is not timed"
        return f"{told}, too little to change for{gathering if other == 'micro_batch' else ''}."
    return (
        f"{told}, but the same micro-batches take no longer where ranks meet once a step, and the gathering "
        "of sharded weights is not timed."
    )
