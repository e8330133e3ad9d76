"""Lightning, with manual optimization: one training_step is an optimizer step of one or more micro-batches.

torchrun --nproc-per-node 2 -m examples.integrations.lightning_loop
"""

from typing import Any

import lightning
import torch

from balancer import runtime
from balancer.runtime.adapters.steps import Step, StepLoader
from balancer.runtime.adapters.transformers import register_attention
from examples.integrations.common import (
    balanced_loader,
    finish,
    init,
    over_ranks,
    report,
    tiny_llama,
    token_losses,
)


class Balanced(lightning.LightningModule):
    """Gradients meet once a step, whatever the number of micro-batches on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama(register_attention())
        self.automatic_optimization = False

    def forward(self, batch: Any) -> torch.Tensor:
        return self.model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
        ).logits

    def training_step(self, step: Step, _: int) -> None:
        optimizer = self.optimizers()
        wrapped = self.trainer.strategy.model  # DDP around this module, whose gradients are held back
        loss = torch.zeros((), device=self.device)
        optimizer.zero_grad()
        for batch in step:
            with runtime.no_sync(wrapped, batch):
                loss_sum = token_losses(self(batch), batch).sum()
                self.manual_backward(runtime.scale_loss(loss_sum, batch))
            loss += loss_sum.detach()
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        report(batch.step, over_ranks(loss) / batch.step_loss_tokens)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)


def main() -> None:
    _, ranks = init()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=1,
        use_distributed_sampler=False,  # the loader's batches are this rank's own
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Balanced(), StepLoader(balanced_loader(ranks)))
    finish()


if __name__ == "__main__":
    main()
