"""A small Qwen2-VL of transformers reads our batches; packed samples have the losses they have alone."""

import numpy as np
import pytest
import torch

from loaders import DataLoader
from loaders.media.config import MediaKind, MediaRules
from loaders.media.rules import PatchGrid, VideoGrid
from loaders.sources.multimodal import MultimodalSource
from tests.media.files import MediaRows, clip, picture, text

pytestmark = pytest.mark.slow

IMAGE, VIDEO, START, END = 5, 6, 7, 8


@pytest.fixture(scope="module")
def model():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2VLConfig(
        text_config={
            "vocab_size": 128,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0},
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    torch.manual_seed(0)
    return transformers.Qwen2VLForConditionalGeneration(config).double().eval()


def source():
    rules = MediaRules(
        image=MediaKind(
            column="images",
            token=IMAGE,
            rule=PatchGrid(min_pixels=28 * 28, max_pixels=84 * 84),
            wrap=(START, END),
        ),
        video=MediaKind(
            column="video",
            token=VIDEO,
            rule=VideoGrid(min_pixels=28 * 28, max_pixels=56 * 56),
            wrap=(START, END),
        ),
        positions="text+mrope",
    )
    rows = [
        {"input_ids": [*text(5, 20), START, IMAGE, END, *text(6, 40)], "images": picture(60, 90)},
        {"input_ids": text(9, 60)},
        {"input_ids": [START, VIDEO, END, *text(7, 30)], "video": clip(8)},
        {
            "input_ids": [*text(3, 90), START, IMAGE, END, *text(2, 50), START, IMAGE, END, *text(4, 70)],
            "images": [picture(40, 40, seed=2), picture(100, 30, seed=3)],
        },
    ]
    return MultimodalSource(MediaRows(rows), rules)


INPUTS = (
    "input_ids",
    "position_ids",
    "pixel_values",
    "image_grid_thw",
    "pixel_values_videos",
    "video_grid_thw",
)


def losses(model, batch):
    """[T] the loss of each token's prediction."""
    inputs = {key: batch[key] for key in INPUTS if key in batch}
    inputs = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(
        logits, batch["shift_labels"][0], ignore_index=-100, reduction="none"
    )


def test_packed_samples_have_the_losses_they_have_alone(model):
    together = list(DataLoader(source(), batch_size=4, max_tokens=256))
    assert len(together) == 1
    packed = losses(model, together[0])
    borders = together[0]["cu_seq_lens_q"].tolist()
    alone = {
        int(batch.sample_ids[0, 1]): losses(model, batch)
        for batch in DataLoader(source(), batch_size=1, max_tokens=256)
    }
    assert len(alone) == 4
    for (_, row), a, b in zip(together[0].sample_ids.tolist(), borders[:-1], borders[1:], strict=True):
        assert torch.allclose(packed[a:b], alone[row], rtol=1e-9, atol=1e-9)


def test_our_positions_are_the_models_own(model):
    for batch in DataLoader(source(), batch_size=1, max_tokens=256):
        ids = batch["input_ids"]
        kinds = torch.where(ids == IMAGE, 1, torch.where(ids == VIDEO, 2, 0))
        if not kinds.any():
            continue
        theirs, _ = model.model.get_rope_index(
            ids,
            mm_token_type_ids=kinds.int(),
            image_grid_thw=batch.get("image_grid_thw"),
            video_grid_thw=batch.get("video_grid_thw"),
        )
        assert torch.equal(batch["position_ids"][1:], theirs)
    assert np.array_equal(batch["position_ids"][0, 0], np.arange(ids.shape[1]))


def test_a_batch_of_filler_media_alone_runs_and_has_no_loss(model):
    from balancer import Topology

    loaders = [
        DataLoader(
            source(), batch_size=2, max_tokens=256, topology=Topology(ranks=3), rank=rank, sync="micro_batch"
        )
        for rank in range(3)
    ]
    for batches in zip(*loaders, strict=True):
        kinds = {tuple(key in batch for key in INPUTS) for batch in batches}
        assert len(kinds) == 1
        for batch in batches:
            found = losses(model, batch)
            assert torch.isfinite(found).all()
            assert int((found > 0).sum()) == batch.num_loss_tokens
