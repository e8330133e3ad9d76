"""How `evenload simulate` says what it found: as a table or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from balancer.cost import CostModel
from balancer.simulation import SimulatedPolicy
from loaders.cli import plan_report
from loaders.reporting.words import many

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_QUANTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What was asked for and what came out."""

    setting: plan_report.Setting
    cost: CostModel
    admitted: plan_report.Admitted
    cluster: dict[str, Any]
    """Jitter, stragglers, stage multipliers and overhead."""
    pipeline_stages: int
    outcomes: tuple[SimulatedPolicy, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything that the table shows, as plain data."""
        plain = plan_report.as_json(self.setting, self.cost, self.admitted, [])
        return {
            **plain,
            **self.cluster,
            "pipeline_stages": self.pipeline_stages,
            "policies": {outcome.policy: policy_numbers(outcome) for outcome in self.outcomes},
        }

    def show(self, console: Console) -> None:
        """Print samples, cost, what cannot fit, and the table of policies."""
        samples = self.admitted.lengths
        lines = [
            f"{many(samples.size, 'sample')}, {samples.sum():,} tokens (from {self.setting.lengths_from}); "
            f"{self.admitted.num_empty:,} empty",
            f"cost: {self.cost.source}: {plan_report.coefficients(self.cost)}",
            plan_report.step_line(self.setting, samples.size),
            *plan_report.too_long_lines(self.setting, self.admitted),
        ]
        for line in lines:
            console.print(line, highlight=False, markup=False)
        console.print(self._table())
        if self.cost.source == CostModel.generic().source:
            console.print(plan_report.ARBITRARY, highlight=False)
        if not self._knows_mfu():
            console.print("MFU is unknown: give --model config.json and --gpu.", highlight=False)
        for outcome in self.outcomes:
            if outcome.error:
                console.print(f"{outcome.policy}: {outcome.error}", highlight=False, markup=False)

    def _table(self) -> Table:
        from rich.table import Table

        setting, mfu = self.setting, self._knows_mfu()
        steps = many(max(map(len, self.outcomes), default=0), "step")
        samples = many(setting.global_batch_size, "sample")
        unit, scale, decimals = _unit(
            max((float(one.step_s.max(initial=0.0)) for one in self.outcomes), default=0.0)
        )
        table = Table(
            padding=0,  # ten columns fit a terminal of 80
            show_edge=False,
            title=f"{plan_report.cluster(setting, self.pipeline_stages)}\nstep times in {unit}",
            caption=f"simulated over {steps} of {samples}\n{self._cluster_line()}",
        )
        table.add_column("policy", no_wrap=True)
        for name in (
            "step",
            "p50",
            "p95",
            "p99",
            "planned",
            "idle",
            *(["MFU"] if mfu else []),
            "memory",
            "tokens/s",
        ):
            table.add_column(name, justify="right", no_wrap=True)
        for outcome in self.outcomes:
            style = "bold" if outcome.policy == "balanced" else ""
            table.add_row(*_cells(outcome, scale, decimals, mfu=mfu), style=style)
        return table

    def _knows_mfu(self) -> bool:
        return any(outcome.mfu is not None for outcome in self.outcomes)

    def _cluster_line(self) -> str:
        stragglers = self.cluster["stragglers"]
        slow = ", ".join(f"rank {rank} at {speed:g}" for rank, speed in stragglers.items())
        return f"jitter {self.cluster['jitter']:g}, stragglers: {slow or 'none'}"


def policy_numbers(outcome: SimulatedPolicy) -> dict[str, Any]:
    """One policy as plain data, or why it cannot plan."""
    if outcome.error:
        return {"error": outcome.error}
    quantiles = outcome.quantiles_s(tuple(_QUANTILES.values())).tolist()
    return {
        "steps": len(outcome),
        "step_time_s": outcome.mean_s,
        **{f"step_time_{name}_s": value for name, value in zip(_QUANTILES, quantiles, strict=True)},
        "planned_step_time_s": float(outcome.planned_s.mean()) if len(outcome) else 0.0,
        "idle": outcome.idle,
        "mfu": outcome.mfu,
        "tokens_per_s": outcome.tokens_per_s,
        "held_tokens": float(outcome.held_tokens.max(initial=0.0)),
        "memory": float(outcome.memory.max(initial=0.0)),
        "gpus": outcome.gpus,
    }


def _unit(most_s: float) -> tuple[str, float, int]:
    """(unit, its seconds, decimals) that give the longest time five digits: narrow columns."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if most_s >= scale or unit == "\u00b5s":
            whole = len(str(int(most_s / scale)))
            return unit, scale, max(5 - whole, 0)
    raise AssertionError("microseconds take whatever is left")


def _cells(outcome: SimulatedPolicy, scale: float, decimals: int, *, mfu: bool) -> list[str]:
    if outcome.error:
        return [outcome.policy, "-"]
    numbers = policy_numbers(outcome)
    times = ("step_time_s", "step_time_p50_s", "step_time_p95_s", "step_time_p99_s", "planned_step_time_s")
    return [
        outcome.policy,
        *(f"{numbers[name] / scale:.{decimals}f}" for name in times),
        f"{outcome.idle:.1%}",
        *([] if not mfu else ["unknown" if outcome.mfu is None else f"{outcome.mfu:.1%}"]),
        f"{numbers['memory']:.0%}",
        plan_report.rate(outcome.tokens_per_s),
    ]
