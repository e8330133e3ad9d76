"""The only home of `torch.distributed`: groups, attention over a CP group, loss scaling, agreement."""

from .agreement import check_same_plan
from .attention import attention
from .groups import ContextGroups
from .loss import auxiliary_weight, scale_loss
from .protocol import RunnableBatch
from .sync import no_sync
from .world import world

__all__ = [
    "ContextGroups",
    "RunnableBatch",
    "attention",
    "auxiliary_weight",
    "check_same_plan",
    "no_sync",
    "scale_loss",
    "world",
]
