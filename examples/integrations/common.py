"""What the integration examples share: a small data set, a small Llama, a loader, and their output."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from loaders import DataLoader

VOCABULARY = 61
LONGEST = 120
STEPS = 6
SAMPLES_PER_STEP = 8


class Sentences(Dataset[dict[str, np.ndarray]]):
    """Samples of mixed lengths; each token follows from the one before, so there is something to learn."""

    def __init__(self, size: int = STEPS * SAMPLES_PER_STEP) -> None:
        random = np.random.default_rng(0)
        self.lengths = np.minimum(random.lognormal(3.0, 1.0, size).astype(int) + 2, LONGEST)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {"input_ids": (row + 7 * np.arange(self.lengths[row])) % VOCABULARY}


def init() -> tuple[int, int]:
    """Rank and number of processes; under torchrun the process group is made."""
    torch.set_num_threads(1)
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def balanced_loader(ranks: int, **options: Any) -> DataLoader[Any]:
    """The same steps for any number of ranks. More ranks hold less each and share long samples."""
    return DataLoader(
        Sentences(),
        shuffle=True,
        max_tokens=LONGEST // ranks,
        cp_degrees=tuple(range(1, ranks + 1)),
        global_batch_size=SAMPLES_PER_STEP,
        length=lambda sample: len(sample["input_ids"]),
        **options,
    )


def tiny_llama(attention: str) -> Any:
    """A causal language model of Hugging Face's, from its configuration alone."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config)


def token_losses(logits: torch.Tensor, batch: Any) -> torch.Tensor:
    """[T] Loss of each token, 0 where there is no label. shift_labels are right for shared samples too."""
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), batch["shift_labels"].flatten(), ignore_index=-100, reduction="none"
    )


def report(step: int, loss: float) -> None:
    """One line a step, from one rank."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"step {step} loss {loss:.6f}", flush=True)


def over_ranks(loss: torch.Tensor) -> float:
    """Sum over all ranks."""
    total = loss.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return float(total)


def finish() -> None:
    """Ends the job on all ranks together, as the last line of a script.

    A gloo thread may still hold the last collective's tensors when its caller goes on, and aborts the
    process if the interpreter ends meanwhile; a barrier gives it the time to drop them.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
