"""TRL's SFTTrainer: the same mix-in. Its own data pipeline stays unused.

torchrun --nproc-per-node 2 -m examples.integrations.trl_sft
"""

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from balancer.runtime.adapters.trainer import BalancedSteps
from balancer.runtime.adapters.transformers import register_attention
from examples.integrations.common import VOCABULARY, balanced_loader, finish, init, report, tiny_llama


class BalancedSFTTrainer(BalancedSteps, SFTTrainer):
    """The SFTTrainer, one item of whose loader is an optimizer step."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Any will do: the loader's samples are tokens already."""
    words = {str(number): number for number in range(VOCABULARY)}
    bare = Tokenizer(models.WordLevel(words, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="1", pad_token="0")


def main() -> None:
    _, ranks = init()
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
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
            bf16=False,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        trainer = BalancedSFTTrainer(
            model=tiny_llama(register_attention()),
            args=args,
            train_loader=balanced_loader(ranks),
            train_dataset=Dataset.from_dict({"input_ids": [[1, 2]]}),  # asked for, never read
            processing_class=tokenizer(),
        )
        trainer.train()
        for entry in trainer.state.log_history:
            if "loss" in entry:
                report(entry["step"] - 1, float(entry["loss"]))
    finish()


if __name__ == "__main__":
    main()
