"""What a micro-batch is predicted to take, from lengths alone."""

from balancer.costs.attention import attended_pairs
from balancer.costs.communication import Communication
from balancer.costs.model import CostModel

__all__ = ["Communication", "CostModel", "attended_pairs"]
