"""The only home of `torch.distributed`: groups, attention over a CP group, loss scaling, agreement."""

from .agreement import check_same_plan
from .attention import attention
from .clipping import clip_grad_norm
from .exchange import exchange, keep_in_graph
from .groups import ContextGroups
from .handover import Handover
from .host import HostGroup
from .isolation import check_isolation
from .loss import auxiliary_weight, sample_weights, scale_loss, sum_over_ranks
from .protocol import RunnableBatch
from .running import current_batch, running
from .sync import no_sync
from .watch import Watch
from .world import process_rank, world

__all__ = [
    "ContextGroups",
    "Handover",
    "HostGroup",
    "RunnableBatch",
    "Watch",
    "attention",
    "auxiliary_weight",
    "check_isolation",
    "check_same_plan",
    "clip_grad_norm",
    "current_batch",
    "exchange",
    "keep_in_graph",
    "no_sync",
    "process_rank",
    "running",
    "sample_weights",
    "scale_loss",
    "sum_over_ranks",
    "world",
]
