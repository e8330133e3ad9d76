"""accelerate: ``prepare`` takes the loader along and leaves its batches as they are.

torchrun --nproc-per-node 2 -m examples.integrations.accelerate_loop
"""

import torch
from accelerate import Accelerator

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
accelerator = Accelerator(cpu=True)
model = tiny_llama(register_attention())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
model, optimizer, loader = accelerator.prepare(model, optimizer, balanced_loader(ranks))
loss = torch.zeros(())

for batch in loader:
    with runtime.no_sync(model, batch):
        logits = model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
        ).logits
        loss_sum = token_losses(logits, batch).sum()
        accelerator.backward(runtime.scale_loss(loss_sum, batch))
    loss += loss_sum.detach()
    if batch.last_in_step:
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(batch.step, over_ranks(loss) / batch.step_loss_tokens)
        loss.zero_()

finish()
