import numpy as np
import pytest

from loaders.media.config import MediaKind, MediaRules
from loaders.media.processor import ProcessorRule
from loaders.sources.multimodal import MultimodalSource
from tests.media.files import MediaRows, picture, text

IMAGE = 1


class Processor:
    """Counts and cuts as `transformers` processors do: one token for each begun 10 x 10 pixels."""

    def __init__(self):
        self.asked = []

    def _get_num_multimodal_tokens(self, image_sizes):
        self.asked += [tuple(size) for size in image_sizes]
        patches = [-(-height // 10) * -(-width // 10) for height, width in image_sizes]
        return {"num_image_tokens": patches, "num_image_patches": patches}

    def image_processor(self, images, return_tensors):
        assert return_tensors == "np"
        (image,) = images
        rows, columns = -(-image.height // 10), -(-image.width // 10)
        grey = np.asarray(image).mean(dtype=np.float32)
        return {
            "pixel_values": np.full((rows * columns, 3), grey, np.float32),
            "image_grid_thw": np.array([[1, rows, columns]]),
        }


def source_of(rows, processor, **others):
    kind = MediaKind(column="images", token=IMAGE, rule=ProcessorRule(processor, **others))
    return MultimodalSource(MediaRows(rows), MediaRules(image=kind))


def test_a_processor_says_how_many_tokens_and_makes_the_features():
    processor = Processor()
    rows = [{"input_ids": [*text(3), IMAGE], "images": picture(35, 21)}] * 5
    source = source_of(rows, processor)
    assert source.lengths().tolist() == [3 + 12] * 5
    assert source.phases()["vision"].tolist() == [12] * 5
    assert processor.asked == [(21, 35)]  # each size once, without a picture
    got = source.read(np.array([4]))
    assert got.columns["pixel_values"][0].shape == (12, 3)
    assert np.sum(got.input_ids == IMAGE) == 12


def test_a_processor_that_cannot_count_from_sizes_is_refused():
    with pytest.raises(ValueError, match="object cannot count tokens from picture sizes"):
        ProcessorRule(object())


def test_features_that_the_processor_does_not_give_are_named():
    rows = [{"input_ids": [IMAGE], "images": picture(35, 21)}]
    source = source_of(rows, Processor(), keys=("pixel_values", "image_sizes"))
    with pytest.raises(
        RuntimeError, match="the processor gave pixel_values, image_grid_thw, not image_sizes"
    ):
        source.read(np.array([0]))


@pytest.mark.slow
def test_our_patches_and_spectra_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    import io

    from PIL import Image

    from loaders.media.audio import log_mel
    from loaders.media.images import Look, decode_image
    from loaders.media.rules import PatchGrid
    from tests.media.files import tone

    name = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    module = pytest.importorskip(name, reason="needs the Pillow processors of transformers 5")
    processor = module.Qwen2VLImageProcessorPil()
    for size in ((640, 480), (30, 31), (57, 900)):
        data = picture(*size)
        counts = PatchGrid().count(*(np.array([side]) for side in size))
        ours, _ = decode_image(data, PatchGrid(), counts.grid[0], Look())
        theirs = processor(images=[Image.open(io.BytesIO(data))], return_tensors="np")
        assert np.array_equal(ours["image_grid_thw"], theirs["image_grid_thw"])
        assert np.abs(ours["pixel_values"] - theirs["pixel_values"]).max() < 1e-5
    heard = np.pad(tone(3.0, 16_000), (0, 480_000 - 48_000))
    theirs = transformers.WhisperFeatureExtractor()(heard, sampling_rate=16_000, return_tensors="np")
    assert np.abs(log_mel(heard) - theirs["input_features"][0]).max() < 1e-4
