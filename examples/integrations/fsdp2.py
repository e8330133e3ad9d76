"""FSDP2: ranks meet in every layer of every micro-batch, so the loader gives all of them the same number.

torchrun --nproc-per-node 2 -m examples.integrations.fsdp2
"""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from balancer import runtime
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

_, ranks = init()
mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",)) if ranks > 1 else None
model = tiny_llama(register_attention())
if mesh is not None:
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
loss = torch.zeros(())

for batch in balanced_loader(ranks, device_mesh=mesh, sync="micro_batch"):
    with runtime.no_sync(model, batch):
        logits = model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
        ).logits
        loss_sum = token_losses(logits, batch).sum()
        runtime.scale_loss(loss_sum, batch).backward()
    loss += loss_sum.detach()
    if batch.last_in_step:
        runtime.clip_grad_norm(model.parameters(), 1.0, batch)
        optimizer.step()
        optimizer.zero_grad()
        report(batch.step, over_ranks(loss) / batch.step_loss_tokens)
        loss.zero_()

finish()
