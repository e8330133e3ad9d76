"""Hugging Face Trainer, and TRL's trainers on top of it, over balanced steps.

    class BalancedTrainer(BalancedSteps, Trainer): ...
    trainer = BalancedTrainer(model=model, args=args, train_loader=loader)

The Trainer multiplies its loader's length by a fixed accumulation count and averages means. Here one item
of its loader is a whole optimizer step, and `training_step` runs the step's micro-batches, however many this
rank has, with the step's own weight. So ``gradient_accumulation_steps`` stays 1, and lengths, schedules and
logs count optimizer steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from balancer.runtime.loss import scale_loss
from balancer.runtime.sync import no_sync

from .steps import Step, StepLoader

NOT_FOR_THE_MODEL = ("labels", "shift_labels", "seq_idx")
"""Loss and recurrent layers read these; a causal language model's forward must not compute its own loss."""


class BalancedSteps:
    """Mix in before `transformers.Trainer` or `trl.SFTTrainer`."""

    args: Any
    accelerator: Any

    def __init__(self, *args: Any, train_loader: Any, **kwargs: Any) -> None:
        self.train_loader = StepLoader(train_loader)
        super().__init__(*args, **kwargs)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps must be 1, got {self.args.gradient_accumulation_steps}: the "
                "loader's steps hold their micro-batches already. Set batch_size or global_batch_size of the "
                "loader instead."
            )

    def get_train_dataloader(self) -> StepLoader:
        """The loader itself: its batches are this rank's own, so it is not prepared or sharded."""
        return self.train_loader

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of all micro-batches of a step. Returns the step's mean loss on this rank."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        for moved in inputs.to(self.args.device):
            with no_sync(model, moved):
                loss = scale_loss(self.loss_sum(model, moved), moved)
                self.accelerator.backward(loss)
            total += loss.detach().float()
        # averaged over ranks by the Trainer's logging, as the gradients are
        return total

    def loss_sum(self, model: Any, batch: Any) -> Tensor:
        """Sum of the token losses of this rank's part of a micro-batch; override for other losses."""
        inputs = {name: value for name, value in batch.items() if name not in NOT_FOR_THE_MODEL}
        logits = model(**inputs, use_cache=False).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), batch["shift_labels"].flatten(), ignore_index=-100, reduction="sum"
        )

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: a step is a list of batches."""
        return 0
