"""A loop in the manner of torchtitan: a device mesh, a generator of (inputs, labels), one train step.

torchrun --nproc-per-node 2 -m examples.integrations.titan_style
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from balancer import runtime
from balancer.runtime.adapters.schedule import TokenSchedule
from balancer.runtime.adapters.steps import StepLoader
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


class Trainer:
    """Data ranks are the dp_shard and cp dimensions flattened; each batch brings its own CP degree."""

    def __init__(self, ranks: int) -> None:
        self.mesh: DeviceMesh | None = None
        self.model = tiny_llama(register_attention())
        if ranks > 1:
            self.mesh = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("dp_shard", "cp"))
            flat = self.mesh._flatten("dp_shard_cp")
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=flat)
            fully_shard(self.model, mesh=flat)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.0)
        self.schedule = TokenSchedule(self.optimizer, lambda tokens: 1.0)
        self.loader = StepLoader(balanced_loader(ranks, device_mesh=self.mesh, sync="micro_batch"))

    def batches(self) -> Iterator[list[tuple[dict[str, torch.Tensor], Any]]]:
        for step in self.loader:
            yield [({name: batch[name] for name in ("input_ids", "position_ids")}, batch) for batch in step]

    def train_step(self, step: list[tuple[dict[str, torch.Tensor], Any]]) -> None:
        self.optimizer.zero_grad()
        loss = torch.zeros(())
        for inputs, batch in step:
            with runtime.no_sync(self.model, batch):
                loss_sum = token_losses(self.model(**inputs, use_cache=False).logits, batch).sum()
                runtime.scale_loss(loss_sum, batch).backward()
            loss += loss_sum.detach()
        runtime.clip_grad_norm(self.model.parameters(), 1.0, batch)
        self.optimizer.step()
        self.schedule.step(batch)
        report(batch.step, over_ranks(loss) / batch.step_loss_tokens)


def main() -> None:
    _, ranks = init()
    trainer = Trainer(ranks)
    for step in trainer.batches():
        trainer.train_step(step)
    finish()


if __name__ == "__main__":
    main()
