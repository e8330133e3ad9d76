"""Hugging Face Trainer.

torchrun --nproc-per-node 2 -m examples.integrations.hf_trainer
"""

import tempfile

from transformers import Trainer, TrainingArguments

from balancer.runtime.adapters.trainer import BalancedSteps
from balancer.runtime.adapters.transformers import register_attention
from examples.integrations.common import balanced_loader, finish, init, report, tiny_llama


class BalancedTrainer(BalancedSteps, Trainer):
    """The Trainer, one item of whose loader is an optimizer step."""


def main() -> None:
    _, ranks = init()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            learning_rate=1e-2,
            weight_decay=0.0,
            lr_scheduler_type="constant",
            num_train_epochs=1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model = tiny_llama(register_attention())
        trainer = BalancedTrainer(model=model, args=args, train_loader=balanced_loader(ranks))
        trainer.train()
        for entry in trainer.state.log_history:
            if "loss" in entry:
                report(entry["step"] - 1, float(entry["loss"]))
    finish()


if __name__ == "__main__":
    main()
