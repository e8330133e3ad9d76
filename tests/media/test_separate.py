"""Encoders with an assignment of their own: rows travel; losses and gradients are those of one process."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from balancer import CostModel, runtime
from balancer.phases import Phase
from loaders import DataLoader
from tests.loaders.arrays import ArraySource, epoch_of, on_all_ranks
from tests.media.test_loader import IMAGE, VIDEO, album
from tests.support.ranks import run_ranks

COST = CostModel(linear=1e-4, fixed=1e-3)
PHASES = {"vision": Phase(cost=CostModel(linear=1e-5), bytes_per_unit=64.0)}
KINDS = {"image": (IMAGE, "pixel_values"), "video": (VIDEO, "pixel_values_videos")}
VOCABULARY, WIDTH = 4096, 6
RANKS = 2


def pictures_and_video():
    return album(20, sounds=0, videos=0.3, audio=None, positions="text+mrope")


def arguments(**others):
    return {"batch_size": 4, "max_tokens": 160, "cost": COST, "seed": 0, "shuffle": True} | others


class Model(nn.Module):
    """An encoder of patches, and a reader in which every token sees those before it in its sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(1176, WIDTH)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, 32)
        self.double()

    def encode(self, patches):
        return torch.tanh(self.encoder(patches.double())).unflatten(0, (-1, 4)).mean(1)

    def read(self, batch, features):
        """Sum of the batch's losses."""
        hidden = self.embed(batch["input_ids"][0] % VOCABULARY)
        for kind, (token, _) in KINDS.items():
            mine = batch["input_ids"][0] == token
            assert int(mine.sum()) == len(features[kind])
            hidden = hidden.masked_scatter(mine[:, None], features[kind]) if mine.any() else hidden
        borders = batch["cu_seq_lens_q"].tolist()
        seen = [hidden[a:b].cumsum(0) for a, b in pairwise(borders)]
        labels = batch["shift_labels"][0]
        targets = torch.where(labels == -100, labels, labels % 32)
        return nn.functional.cross_entropy(self.head(torch.cat(seen)), targets, reduction="sum")


def encoded(model, batch):
    """Rows of each kind; none of kinds that the batch has not."""
    return {
        kind: model.encode(batch[key]) if key in batch else torch.zeros(0, WIDTH, dtype=torch.float64)
        for kind, (_, key) in KINDS.items()
    }


def gradients_of(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def alone():
    """Losses and gradients of each step in one process that encodes what it reads."""
    found = []
    loader = DataLoader(pictures_and_video(), **arguments(batch_size=4 * RANKS))
    for step in epoch_of(loader):
        model, total = Model(), 0.0
        for batch in step:
            loss = runtime.scale_loss(model.read(batch, encoded(model, batch)), batch, "sum")
            loss.backward()
            total += float(loss.detach())
        found.append((total, gradients_of(model)))
    return found


def separately(rank, sync):
    """The same on ranks: encoders first, rows sent once, gradients sent back once."""
    found = []
    loader = DataLoader(pictures_and_video(), phases=PHASES, assignment="separate", **arguments(sync=sync))
    model, made, handed, total = Model(), {}, {}, 0.0
    for batch in loader:
        if batch.phase == "vision":
            for kind, rows in encoded(model, batch).items():
                made.setdefault(kind, []).append(rows)
            if batch.last_in_phase:
                for kind, table in batch.exchanges.items():
                    handed[kind] = runtime.Handover(torch.cat(made[kind]), table)
                made = {}
            continue
        features = {kind: torch.zeros(0, WIDTH, dtype=torch.float64) for kind in KINDS}
        features |= {kind: one.rows(batch.feature_rows[kind]) for kind, one in handed.items()}
        loss = runtime.scale_loss(model.read(batch, features), batch, "sum")
        loss.backward()
        total += float(loss.detach())
        if batch.last_in_step:
            for one in handed.values():
                one.backward()
            for parameter in model.parameters():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.distributed.all_reduce(gradient)
                parameter.grad = gradient
            found.append((runtime.sum_over_ranks(total), gradients_of(model)))
            model, handed, total = Model(), {}, 0.0
    return found, loader.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_losses_and_gradients_are_those_of_one_process(sync):
    expected = alone()
    assert len(expected) == 3
    for found, told in run_ranks(separately, RANKS, sync):
        assert len(found) == len(expected)
        for (loss, gradients), (loss_alone, gradients_alone) in zip(found, expected, strict=True):
            assert loss == pytest.approx(loss_alone, rel=1e-9)
            for got, wanted in zip(gradients, gradients_alone, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
        assert told["phase_imbalance"]["vision"] >= 1.0


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_every_sample_is_encoded_once_and_read_once(sync):
    source = pictures_and_video()
    loaders = on_all_ranks(source, 3, phases=PHASES, assignment="separate", **arguments(sync=sync))
    with_media = np.flatnonzero(source.phases()["vision"])
    tokens = source.media_tokens()
    travelling = 0
    for step in zip(*map(epoch_of, loaders), strict=True):
        batches = [batch for batches in step for batch in batches]
        read = sorted(int(r) for b in batches if b.phase == "language" for r in b.sample_ids[:, 1])
        made = sorted(int(r) for b in batches if b.phase == "vision" for r in b.sample_ids[:, 1])
        assert made == sorted(set(read) & set(with_media.tolist()))
        for mine in step:
            phases = [batch.phase for batch in mine]
            assert phases == sorted(phases, reverse=True)  # vision before language
            assert [b.last_in_phase for b in mine].count(True) == ("vision" in phases)
            assert [b.last_in_step for b in mine] == [False] * (len(mine) - 1) + [True]
        for batch in batches:
            if batch.phase == "vision":
                assert "input_ids" not in batch
                assert "pixel_values" in batch or "pixel_values_videos" in batch
                assert batch.num_loss_tokens == 0
                for table in batch.exchanges.values():
                    travelling += int(np.count_nonzero(table.source != table.target))
                continue
            assert not {"pixel_values", "pixel_values_videos"} & set(batch)
            for kind, (token, _) in KINDS.items():
                placeholders = int((batch["input_ids"] == token).sum())
                if kind in batch.feature_rows:
                    span = batch.feature_rows[kind]
                    assert span.stop - span.start == placeholders
                else:
                    assert placeholders == 0
                assert placeholders == int(tokens[kind][batch.sample_ids[:, 1]].sum())
        if sync == "micro_batch":
            assert len({len(mine) for mine in step}) == 1
    assert travelling > 0


def test_own_assignments_divide_the_encoder_better_than_joint_ones():
    source = album(24, seed=3, sounds=0, videos=0, audio=None)
    told = {}
    for assignment in ("joint", "separate"):
        loaders = on_all_ranks(
            source, 4, phases=PHASES, assignment=assignment, **arguments(batch_size=6, max_tokens=512)
        )
        list(loaders[0])
        told[assignment] = loaders[0].metrics()["phase_imbalance"]["vision"]
    assert told["separate"] <= told["joint"] + 1e-9


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_resume_between_encoding_and_reading_starts_the_step_again(num_workers):
    def loader():
        return DataLoader(
            pictures_and_video(), phases=PHASES, assignment="separate", num_workers=num_workers, **arguments()
        )

    first = loader()
    assert next(iter(first)).last_in_phase
    again = loader()
    again.load_state_dict(first.state_dict())
    batch = next(iter(again))
    assert (batch.step, batch.phase) == (0, "vision")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"phases": None}, "divides the work of phases="),
        ({"phases": {"vision": COST}}, "bytes_per_unit"),
        (
            {"phases": {"vision": Phase(cost=COST, bytes_per_unit=1.0, cp_degrees=(1, 2))}},
            "cp_degrees must be",
        ),
        ({"fill_media": True}, "fill_media and group_media have no effect"),
        ({"policy": "equal_tokens"}, 'policy="balanced" only'),
        ({"collate_fn": list}, "the loader's own layout"),
        ({"engine": "ray"}, "cannot be used with engine=.ray., whose readers"),
        ({"assignment": "apart"}, "assignment must be one of joint, separate"),
    ],
)
def test_what_does_not_go_with_it_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(
            pictures_and_video(), max_tokens=160, **({"phases": PHASES, "assignment": "separate"} | more)
        )


def test_samples_that_another_rank_could_not_decode_cannot_be_skipped():
    source = album(4, sounds=0, videos=0, audio=None, on_bad="skip")
    with pytest.raises(ValueError, match='needs on_bad="error"'):
        DataLoader(source, max_tokens=160, phases=PHASES, assignment="separate")


def test_other_sources_with_phases_are_refused():
    source = ArraySource([3, 4])
    source.phases = lambda: {"vision": np.array([4, 8])}
    with pytest.raises(ValueError, match="MultimodalSource, arrays is none"):
        DataLoader(source, max_tokens=160, phases=PHASES, assignment="separate")


def test_a_rehearsal_is_refused():
    loader = DataLoader(pictures_and_video(), phases=PHASES, assignment="separate", **arguments())
    assert loader.worst()[0].tokens > 0
    with pytest.raises(RuntimeError, match="one micro-batch at a time"):
        loader.rehearse()
