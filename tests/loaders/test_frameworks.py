"""accelerate, Lightning and the Trainer read a loader's attributes and rebuild it: no batch is changed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from balancer import Topology
from balancer.runtime.adapters.steps import StepLoader
from loaders import DataLoader
from tests.loaders.arrays import ArraySource, epoch_of, ids_of

pytestmark = pytest.mark.slow


class Rows(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return {"x": torch.tensor([float(row)]), "labels": torch.tensor(row % 2)}


def rows_of(loader):
    return [batch["x"].flatten().tolist() for batch in loader]


def balanced(**arguments):
    return DataLoader(ArraySource([5, 9, 2, 7] * 5), batch_size=4, max_tokens=16, **arguments)


# ---------------------------------------------------------------------------------------------- accelerate


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"drop_last": True}, {"num_workers": 1}])
def test_accelerate_prepares_the_unbalanced_loader_as_torchs(arguments):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def run(kind):
        torch.manual_seed(0)
        prepared = accelerator.prepare(kind(Rows(), batch_size=3, **arguments))
        found = [rows_of(prepared), len(prepared), prepared.total_batch_size, prepared.total_dataset_length]
        prepared.set_epoch(1)
        return [*found, rows_of(prepared), rows_of(accelerate.skip_first_batches(prepared, 2))]

    assert run(DataLoader) == run(TorchLoader)


def test_accelerate_divides_the_unbalanced_loader_among_processes():
    data_loader = pytest.importorskip("accelerate.data_loader")

    def run(kind, rank, split):
        loader = kind(Rows(), batch_size=4)
        prepared = data_loader.prepare_data_loader(
            loader, num_processes=2, process_index=rank, split_batches=split, put_on_device=False
        )
        return rows_of(data_loader.DataLoader(prepared.dataset, batch_sampler=prepared.batch_sampler))

    for rank in (0, 1):
        for split in (False, True):
            assert run(DataLoader, rank, split) == run(TorchLoader, rank, split)
    together = [row for rank in (0, 1) for batch in run(DataLoader, rank, False) for row in batch]
    assert sorted(set(together)) == list(map(float, range(20)))


@pytest.mark.parametrize("skipped", [0, 2, 7])
def test_accelerate_skips_batches_of_the_unbalanced_loader(skipped):
    accelerate = pytest.importorskip("accelerate")
    whole = rows_of(TorchLoader(Rows(), batch_size=3))
    rest = accelerate.skip_first_batches(DataLoader(Rows(), batch_size=3), skipped)
    assert rows_of(rest) == whole[skipped:]


def test_accelerate_leaves_the_balanced_loader_alone():
    accelerate = pytest.importorskip("accelerate")
    loader = balanced()
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    assert prepared is loader
    assert ids_of(epoch_of(prepared)) == ids_of(epoch_of(balanced()))


def test_skipping_batches_of_the_balanced_loader_is_refused_with_the_way_out():
    accelerate = pytest.importorskip("accelerate")
    with pytest.raises(RuntimeError, match=r"loader\.load_state_dict\(\) instead of accelerate's skip_first"):
        list(accelerate.skip_first_batches(balanced(), 1))


def test_the_collate_fn_of_a_balanced_loader_may_be_given_to_another():
    loader = balanced()
    again = balanced(collate_fn=loader.collate_fn)
    assert ids_of(epoch_of(again)) == ids_of(epoch_of(loader))


# ----------------------------------------------------------------------------------------------- Lightning


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 3}, {"batch_size": 3, "shuffle": True}, {"batch_size": 3, "drop_last": True}]
)
def test_lightning_gives_the_unbalanced_loader_another_sampler(arguments):
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")

    def run(kind):
        sampler = DistributedSampler(Rows(), num_replicas=2, rank=1, shuffle=False)
        rebuilt = lightning._update_dataloader(kind(Rows(), **arguments), sampler)
        return type(rebuilt) is kind, rows_of(rebuilt), len(rebuilt)

    assert run(DataLoader) == run(TorchLoader)
    assert run(DataLoader)[0]


def test_lightning_keeps_track_of_indices_when_it_predicts():
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    mode = pytest.importorskip("lightning.pytorch.trainer.states").RunningStage.PREDICTING

    def run(kind):
        loader = kind(Rows(), batch_size=3, drop_last=True)
        rebuilt = lightning._update_dataloader(loader, SequentialSampler(Rows()), mode=mode)
        found = rows_of(rebuilt)
        return found, rebuilt.batch_sampler.seen_batch_indices

    assert run(DataLoader) == run(TorchLoader)


def test_lightning_does_not_change_the_balanced_loaders_sampler_unheard():
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    loader = balanced(topology=Topology(ranks=2), rank=1)
    with pytest.raises(ValueError, match=r"Trainer\(use_distributed_sampler=False\)"):
        lightning._update_dataloader(loader, DistributedSampler(Rows(), num_replicas=2, rank=1))


@pytest.mark.parametrize("in_hook", [False, True])
@pytest.mark.parametrize("mode", ["unbalanced", "balanced", "workers"])
def test_lightning_trains_on_all_batches(mode, in_hook, tmp_path):
    lightning = pytest.importorskip("lightning")

    def loader():
        if mode == "balanced":
            return StepLoader(balanced())
        return DataLoader(Rows(), batch_size=3, num_workers=mode == "workers", shuffle=True)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, given, index):
            for batch in given if mode == "balanced" else [given]:
                self.seen.append(next(iter(batch.values())).flatten().tolist())
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Hooked(Module):
        def train_dataloader(self):
            return loader()

    module = Hooked() if in_hook else Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, *([] if in_hook else [loader()]))
    if mode == "balanced":
        assert module.seen == [batch["input_ids"].flatten().tolist() for batch in balanced()]
    else:
        assert sorted(row for batch in module.seen for row in batch) == list(map(float, range(20)))
        assert len(module.seen) == 7


# ------------------------------------------------------------------------------------- Hugging Face Trainer


def test_the_trainer_trains_on_the_unbalanced_loader_as_on_torchs(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def forward(self, x=None, labels=None):
            self.seen.append(x.flatten().tolist())
            return {"loss": (self.layer(x).flatten() - labels).square().mean()}

    def run(kind):
        class Own(transformers.Trainer):
            def get_train_dataloader(self):
                loader = kind(Rows(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1))
                return self.accelerator.prepare(loader)

        torch.manual_seed(0)
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            num_train_epochs=2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Own(model=Model(), args=arguments)
        trainer.train()
        examples = trainer.num_examples(trainer.get_train_dataloader())
        return trainer.model.seen, trainer.state.global_step, trainer.state.max_steps, examples

    seen, steps, max_steps, examples = run(DataLoader)
    assert (seen, steps, max_steps, examples) == run(TorchLoader)
    assert (steps, max_steps, examples, len(seen)) == (14, 14, 20, 14)


def test_the_trainer_counts_the_balanced_loaders_steps(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from balancer.runtime.adapters.trainer import BalancedSteps

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Embedding(50021, 1)

    class Own(BalancedSteps, transformers.Trainer):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.ids = []

        def loss_sum(self, model, batch):
            self.ids.append((batch.step, batch.sample_ids[:, 1].tolist()))
            return model.layer(batch["input_ids"]).sum() * 1e-3

    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no"
    )
    loader = balanced()
    trainer = Own(model=Model(), args=arguments, train_loader=loader)
    assert len(trainer.get_train_dataloader()) == len(loader) == 5
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 10
    assert sorted(row for step, rows in trainer.ids if step < 5 for row in rows) == list(range(20))
