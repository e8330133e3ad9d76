from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology
from balancer.phases import Phase
from loaders import DataLoader, Mixture
from loaders.media.config import MediaKind, MediaRules
from loaders.media.presence import fillers_of
from loaders.media.rules import FixedImage, PatchGrid, TokensPerSecond, VideoGrid, WhisperFrames
from loaders.sources.multimodal import MultimodalSource
from tests.loaders.arrays import ArraySource, epoch_of, on_all_ranks
from tests.media.files import MediaRows, clip, picture, sound, text, tone

IMAGE, AUDIO, VIDEO = 1, 4, 5
GRID = PatchGrid(min_pixels=28 * 28, max_pixels=28 * 28 * 64)


def rules(**others):
    kinds = {
        "image": MediaKind(column="images", token=IMAGE, rule=GRID, wrap=(2, 3)),
        "audio": MediaKind(column="audio", token=AUDIO, rule=TokensPerSecond(rate=10)),
        "video": MediaKind(
            column="video", token=VIDEO, rule=VideoGrid(min_pixels=28 * 28, max_pixels=56 * 56)
        ),
    }
    return MediaRules(**(kinds | others))


def album(size=24, *, seed=0, images=0.5, sounds=0.2, videos=0.1, **others):
    """Samples of text, some with pictures, sound and video."""
    draw = np.random.default_rng(seed)
    rows = []
    for row in range(size):
        ids, media = text(int(draw.integers(3, 30)), 1000 + 40 * row), {}
        if draw.random() < images:
            count = int(draw.integers(1, 3))
            media["images"] = [
                picture(*map(int, draw.integers(20, 140, 2)), seed=row * 7 + k) for k in range(count)
            ]
            for _ in range(count):
                ids += [2, IMAGE, 3, 99]
        if draw.random() < sounds:
            media["audio"] = sound(tone(float(draw.uniform(0.1, 1.5))))
            ids += [AUDIO, 98]
        if draw.random() < videos:
            media["video"] = clip(int(draw.integers(2, 8)))
            ids += [VIDEO]
        rows.append({"input_ids": ids} | media)
    return MultimodalSource(MediaRows(rows), rules(**others))


def plain():
    """A source of text alone."""
    return MediaRows([{"input_ids": text(size, 500 + 50 * size)} for size in (9, 5, 30, 12)], name="text")


def merged_counts(batch):
    """Features of each kind after the encoder's merge, from the batch's own grids."""
    counts = {IMAGE: 0, AUDIO: 0, VIDEO: 0}
    for token, key in ((IMAGE, "image_grid_thw"), (VIDEO, "video_grid_thw")):
        if key in batch:
            counts[token] = int(batch[key].prod(dim=1).sum()) // 4
    return counts


def check_media(batch):
    """What a model relies on: patches as the grids say, and a placeholder for each feature."""
    for patches, grid in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
        assert (patches in batch) == (grid in batch)
        if patches in batch:
            assert batch[patches].dtype == torch.float32
            assert batch[grid].dtype == torch.int64
            assert batch[patches].shape == (int(batch[grid].prod(dim=1).sum()), 1176)
    if batch.cp_degree == 1:
        counts = merged_counts(batch)
        for token in (IMAGE, VIDEO):
            assert int((batch["input_ids"] == token).sum()) == counts[token]
    for token in (IMAGE, AUDIO, VIDEO):
        assert not torch.any(batch["labels"] == token)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_comes_once_with_its_own_features(workers):
    source = album()
    seen = {}
    for rank in on_all_ranks(
        source, 2, batch_size=6, max_tokens=512, shuffle=True, seed=3, num_workers=workers
    ):
        for batch in rank:
            check_media(batch)
            assert batch["input_ids"].shape[1] <= 512
            images = 0
            for (_, row), a, b in zip(
                batch.sample_ids.tolist(),
                batch["cu_seq_lens_q"][:-1],
                batch["cu_seq_lens_q"][1:],
                strict=False,
            ):
                assert row not in seen
                seen[row] = batch["input_ids"][0, a:b]
                alone = source.read(np.array([row]))
                assert seen[row].tolist() == alone.input_ids.tolist()
                pixels = alone.columns["pixel_values"][0]
                if pixels is not None:
                    part = batch["pixel_values"][images : images + len(pixels)]
                    assert np.array_equal(part.numpy(), pixels)
                    images += len(pixels)
    assert sorted(seen) == list(range(24))


def test_media_join_text_of_another_source():
    source = Mixture(
        {"album": album(12), "text": plain()},
        weights={"album": 1, "text": 1},
        by="samples",
    )
    batches = list(DataLoader(source, batch_size=8, max_tokens=400, seed=0))
    assert sum(len(batch.sample_ids) for batch in batches) >= 16
    for batch in batches:
        check_media(batch)


@pytest.mark.parametrize("positions", ["mrope", "text+mrope"])
def test_positions_on_several_axes_follow_their_samples(positions):
    source = Mixture(
        {"album": album(12, positions=positions), "text": plain()},
        weights={"album": 1, "text": 1},
        by="samples",
    )
    rows = 3 if positions == "mrope" else 4
    for batch in DataLoader(source, batch_size=8, max_tokens=400, seed=0, pad_to=400):
        assert batch["position_ids"].shape == (rows, 1, 400)
        assert batch["position_ids"].dtype == torch.int64
        borders = batch["cu_seq_lens_q"][:-1]
        assert torch.all(batch["position_ids"][:, 0, borders.long()] == 0)
        if rows == 4:
            counted = torch.arange(400) - torch.repeat_interleave(borders, torch.diff(batch["cu_seq_lens_q"]))
            assert torch.equal(batch["position_ids"][0, 0], counted)


def test_ranks_that_share_a_micro_batch_have_its_features_and_know_which_are_theirs():
    source = album(8, images=1.0, sounds=0, videos=0, positions="mrope", indices=True)
    whole = {}
    for batch in DataLoader(source, batch_size=8, max_tokens=4096, seed=0):
        for (_, row), a, b in zip(
            batch.sample_ids.tolist(), batch["cu_seq_lens_q"][:-1], batch["cu_seq_lens_q"][1:], strict=True
        ):
            whole[row] = batch["position_ids"][:, 0, a:b]
    ranks = on_all_ranks(
        source,
        2,
        batch_size=4,
        max_tokens=4096,
        seed=0,
        cp_degrees=(2,),
        topology=Topology(ranks=2, ranks_per_node=2),
    )
    for together in zip(*ranks, strict=True):
        first, second = together
        assert first.cp_degree == 2
        assert torch.equal(first["pixel_values"], second["pixel_values"])
        indices = torch.cat([batch["image_index"][0] for batch in together])
        held = torch.cat([batch["input_ids"][0] for batch in together])
        assert torch.equal(indices >= 0, held == IMAGE)
        features = int(first["image_grid_thw"].prod(dim=1).sum()) // 4
        assert sorted(indices[indices >= 0].tolist()) == list(range(features))
        # positions of both ranks together are those of the unshared samples
        found = torch.cat([batch["position_ids"][:, 0] for batch in together], dim=1)
        expected = torch.cat([whole[row] for _, row in first.sample_ids.tolist()], dim=1)
        assert found.shape[1] >= expected.shape[1]
        for axis in range(3):
            both = np.bincount(found[axis].numpy(), minlength=200)
            assert np.all(both >= np.bincount(expected[axis].numpy(), minlength=both.size))


def test_u47_samples_with_media_are_never_split():
    source = album(6, images=1.0)
    longest = int(source.lengths().max())
    for oversize in ("split", "truncate"):
        with pytest.raises(
            ValueError, match=r"album, row \d+ has \d+ tokens, of \d+ that fit, and cannot be cut"
        ):
            DataLoader(source, batch_size=2, max_tokens=longest - 1, oversize=oversize)
    kept = DataLoader(source, batch_size=2, max_tokens=longest - 1, oversize="drop").metrics()
    assert kept["dropped"] >= 1
    assert kept["kept"] + kept["dropped"] == 6


def test_u41_a_sample_that_cannot_be_decoded_trains_nothing_and_the_ranks_stay_aligned():
    rows = [{"input_ids": [*text(5), IMAGE, 90], "images": picture(60, 60, seed=k)} for k in range(8)]
    rows[3]["images"] = picture(200, 200, kind="JPEG")[:-45]
    rows[7]["images"] = b""
    source = MultimodalSource(MediaRows(rows), rules(on_bad="skip", max_bad=2))
    ranks = on_all_ranks(source, 2, batch_size=2, max_tokens=200, seed=0)
    trained, weight = {}, set()
    for together in zip(*map(epoch_of, ranks), strict=True):
        for batch in chain.from_iterable(together):
            weight.add((batch.step, batch.step_loss_tokens))
            borders = batch["cu_seq_lens_q"].tolist()
            for (_, row), a, b in zip(batch.sample_ids.tolist(), borders[:-1], borders[1:], strict=True):
                trained[row] = int((batch["labels"][0, a:b] != -100).sum())
            found = int((batch["shift_labels"] != -100).sum())
            assert batch.num_loss_tokens == found
    assert sorted(trained) == [0, 1, 2, 3, 4, 5, 6]
    assert [row for row, labels in trained.items() if labels == 0] == [3]
    assert len(weight) == len({step for step, _ in weight})  # all ranks weigh the step alike
    assert sum(loader.metrics()["rejected"] for loader in ranks) == 1


def test_corrected_media_are_counted_by_the_loader():
    rows = [{"input_ids": [55, AUDIO], "audio": sound(tone(1.0))}]
    inner = MediaRows(rows)
    source = MultimodalSource(inner, rules())
    loader = DataLoader(source, batch_size=1, max_tokens=64)
    inner.given[0] = {"input_ids": [55, AUDIO], "audio": sound(tone(0.99))}
    list(loader)
    assert loader.metrics()["corrected"] == 1


def test_a_users_own_collate_function_gets_each_samples_arrays():
    rows = [{"input_ids": [*text(5), IMAGE], "images": picture(60, 60, seed=k)} for k in range(4)]

    def collate(samples):
        assert all(int(sample["image_grid_thw"].prod()) == len(sample["pixel_values"]) for sample in samples)
        return {"rows": torch.tensor([len(sample["input_ids"]) for sample in samples])}

    rows[2]["images"] = picture(90, 90, kind="JPEG")[:-45]
    source = MultimodalSource(MediaRows(rows), rules(positions="mrope", on_bad="skip"))
    loader = DataLoader(source, batch_size=4, max_tokens=200, collate_fn=collate)
    batches = list(loader)
    assert sum(len(batch["rows"]) for batch in batches) == 4
    assert loader.metrics()["rejected"] == 1
    assert all(set(batch) == {"rows"} for batch in batches)


# ------------------------------------------------------------------------------------------- presence


def calls(batch):
    return tuple(key in batch for key in ("pixel_values", "audio_features", "pixel_values_videos"))


@pytest.mark.parametrize("sync", ["micro_batch", "step"])
@pytest.mark.parametrize("ranks", [4])
def test_u20_all_ranks_run_the_same_encoders_where_they_meet(sync, ranks):
    rows = [{"input_ids": text(10 + k)} for k in range(32)]
    for k in (1, 9, 17, 25, 30):
        rows[k] = {"input_ids": [*text(8), 2, IMAGE, 3, 99], "images": picture(60, 60)}
    for k in (2, 3):
        rows[k] = {"input_ids": [*text(8), VIDEO, 99], "video": clip(4)}
    source = MultimodalSource(MediaRows(rows), rules(audio=None))
    loaders = on_all_ranks(source, ranks, batch_size=4, max_tokens=64, sync=sync, fill_media=True, seed=0)
    steps = list(zip(*map(epoch_of, loaders), strict=True))
    filled = 0
    for step in steps:
        meets = zip(*step, strict=True) if sync == "micro_batch" else [[batches[-1] for batches in step]]
        for together in meets:
            assert len({calls(batch) for batch in together}) == 1
        for batch in chain.from_iterable(step):
            check_media(batch)
            assert batch["input_ids"].shape[1] <= 64
            assert len(batch["cu_seq_lens_q"]) - 1 >= len(batch.sample_ids)
            borders = batch["cu_seq_lens_q"].tolist()
            for a, b in zip(
                borders[len(batch.sample_ids) : -1], borders[len(batch.sample_ids) + 1 :], strict=True
            ):
                filled += 1
                assert torch.all(batch["labels"][0, a:b] == -100)
            assert batch.num_loss_tokens == int((batch["shift_labels"] != -100).sum())
    assert filled > 0
    told = loaders[0].metrics()
    assert sum(told["filler_media"].values()) == filled
    tokens = told["filler_media"].get("image", 0) * 3 + told["filler_media"].get("video", 0)
    assert told["filler_share"] == pytest.approx(tokens / (told["tokens"] + tokens))


def test_u20_text_alone_gets_no_fillers():
    source = album(12, images=0, sounds=0, videos=0)
    loaders = on_all_ranks(source, 3, batch_size=2, max_tokens=64, sync="micro_batch", seed=0)
    for batch in chain.from_iterable(chain.from_iterable(map(epoch_of, loaders))):
        assert calls(batch) == (False, False, False)
    assert loaders[0].metrics()["filler_media"] == {}


def test_u20_ranks_that_share_a_micro_batch_share_its_filler():
    source = album(16, images=0.3, sounds=0.3, videos=0.2, positions="mrope")
    loaders = on_all_ranks(
        source,
        4,
        batch_size=4,
        max_tokens=256,
        sync="micro_batch",
        cp_degrees=(1, 2),
        seed=0,
        cost=CostModel(linear=1e-6, quadratic=1e-6, fixed=0.0),
    )
    for step in zip(*map(epoch_of, loaders), strict=True):
        for together in zip(*step, strict=True):
            assert len({calls(batch) for batch in together}) == 1
            for batch in together:
                assert batch["input_ids"].shape[1] <= 256
                assert batch["position_ids"].shape == (3, 1, batch["input_ids"].shape[1])


@settings(max_examples=40)
@given(
    has=st.lists(st.booleans(), min_size=1, max_size=24),
    ranks=st.integers(1, 5),
    sync=st.sampled_from(["micro_batch", "step"]),
)
def test_fillers_stand_exactly_where_a_kind_is_missing(has, ranks, sync):
    from balancer import plan_step

    lengths = np.full(len(has), 30)
    cost = CostModel(linear=1e-6, quadratic=0.0, fixed=1e-4)
    plan = plan_step(lengths, topology=Topology(ranks=ranks), max_tokens=64, cost=cost, sync=sync)
    fillers = fillers_of(plan, {"image": np.array(has)})
    batches = plan.micro_batches
    for rank in range(ranks):
        mine = plan.for_rank(rank)
        slots = (
            range(plan.num_slots)
            if sync == "micro_batch"
            else [int(batches.slot[mine[-1]]) if mine.size else 0]
        )
        for slot in slots:
            here = [m for m in mine if batches.slot[m] == slot]
            own = any(has[s] for m in here for s in batches.samples(m))
            meeting = range(len(batches)) if sync == "step" else np.flatnonzero(batches.slot == slot)
            anyone = any(has[s] for m in meeting for s in batches.samples(m))
            assert fillers.of(rank, slot) == (("image",) if anyone and not own else ())
    if sync == "step":
        assert len(fillers) <= ranks


@pytest.mark.parametrize(
    "kind",
    [
        MediaKind(column="m", token=IMAGE, rule=FixedImage(tokens=4, size=28)),
        MediaKind(column="m", token=IMAGE, rule=GRID, wrap=(2, 3)),
        MediaKind(column="m", token=AUDIO, rule=WhisperFrames()),
        MediaKind(column="m", token=AUDIO, rule=TokensPerSecond(rate=3)),
        MediaKind(column="m", token=VIDEO, rule=VideoGrid()),
    ],
)
@pytest.mark.parametrize("positions", ["1d", "mrope"])
def test_every_rule_has_a_smallest_medium(kind, positions):
    name = {IMAGE: "image", AUDIO: "audio", VIDEO: "video"}[kind.token]
    one = MediaRules(**{name: kind}, positions=positions, indices=True)
    source = MultimodalSource(MediaRows([{"input_ids": [7], "m": None}]), one)
    (filler,) = source.fillers().values()
    assert np.all(filler.labels == -100)
    assert (filler.input_ids == kind.token).sum() >= 1
    for key, join in source.joins().items():
        if join.per_token:
            assert filler.columns[key][0].shape[-1] == filler.input_ids.size
        elif key in kind.rule.keys:
            assert key in filler.columns


def test_fillers_need_the_loaders_own_layout():
    with pytest.raises(ValueError, match="fill_media needs the loader's own layout"):
        DataLoader(album(4), max_tokens=256, collate_fn=dict, fill_media=True)


# -------------------------------------------------------------------------------------------- phases


def u56_source():
    patches = (0, 0, 0, 0, 8000, 8000, 16_000, 16_000)
    return ArraySource([2000] * 8), np.array(patches)


def test_u56_patches_are_balanced_beside_tokens():
    source, patches = u56_source()
    source.phases = lambda: {"vision": patches}
    cost = CostModel(linear=1e-6, quadratic=0.0, fixed=0.0)
    vision = CostModel(linear=1e-6, quadratic=0.0, fixed=0.0)
    found = {}
    for name, phases in (("both", {"vision": Phase(cost=vision)}), ("text", None)):
        loader = DataLoader(
            source,
            batch_size=2,
            max_tokens=4000,
            topology=Topology(ranks=4),
            rank=0,
            cost=cost,
            phases=phases,
        )
        list(loader)
        found[name] = loader.metrics()
    assert found["both"]["imbalance"] == pytest.approx(1.0)
    assert found["both"]["phase_imbalance"]["vision"] == pytest.approx(16_000 / 12_000)
    assert found["text"]["phase_imbalance"]["vision"] >= found["both"]["phase_imbalance"]["vision"]
    assert found["both"]["units"] == {"vision": 48_000}


def test_u26_encoder_patches_of_a_micro_batch_keep_their_limit():
    rows = [
        {
            "input_ids": [*text(100), *[IMAGE] * (k % 3)],
            "images": [picture(58 * 14, 36 * 14)] * (k % 3),
        }
        for k in range(12)
    ]
    one = MediaRules(
        image=MediaKind(column="images", token=IMAGE, rule=PatchGrid(max_pixels=14 * 14 * 5000)),
        max_units={"vision": 5000},
        oversize="drop",
    )
    source = MultimodalSource(MediaRows(rows), one)
    cost = CostModel(linear=1e-6, quadratic=0.0, fixed=0.0)
    phase = Phase(cost=cost, max_units=5000)
    for loader in on_all_ranks(source, 2, batch_size=6, max_tokens=8192, cost=cost, phases={"vision": phase}):
        for batch in loader:
            assert len(batch.get("pixel_values", ())) <= 5000


def test_phases_go_with_the_balanced_policy_only():
    with pytest.raises(ValueError, match='policy="balanced" only'):
        DataLoader(album(4), max_tokens=256, phases={"vision": CostModel.generic()}, policy="equal_tokens")
