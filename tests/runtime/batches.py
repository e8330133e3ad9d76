"""A batch that has what the runtime asks for and nothing else."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class PlainBatch:
    step: int = 0
    slot: int = 0
    last_in_step: bool = True
    cp_degree: int = 1
    cp_rank: int = 0
    cp_group: Any = None
    seq_lengths: Any = field(default_factory=lambda: np.zeros(0, np.int32))
    num_loss_tokens: int = 0
    step_loss_tokens: int = 0
    num_ranks: int = 1
