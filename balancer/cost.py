"""What a micro-batch is predicted to take, from lengths alone."""

from balancer.costs.attention import attended_pairs
from balancer.costs.communication import Communication, LinkTime
from balancer.costs.correction import OnlineCorrection
from balancer.costs.gpus import GPUS, Gpu
from balancer.costs.model import CostModel, CostRangeWarning, FitReport
from balancer.costs.presets import PRESETS

__all__ = [
    "Communication",
    "CostModel",
    "CostRangeWarning",
    "FitReport",
    "GPUS",
    "Gpu",
    "LinkTime",
    "OnlineCorrection",
    "PRESETS",
    "attended_pairs",
]
