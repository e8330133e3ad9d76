import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly

from loaders.media import reference
from loaders.media.audio import decode_audio, filter_taps, fitted, log_mel, mel_filters, read_mono, resample
from loaders.media.errors import MediaError
from loaders.media.images import Look, cut_patches, decode_image, pixels_of
from loaders.media.rules import FixedImage, PatchGrid, Tiles, TokensPerSecond, VideoGrid, WhisperFrames
from loaders.media.video import decode_video, frames_at
from tests.media.files import clip, encoded, picture, pixels, sound, tone, turned, turned_clip

PLAIN = Look(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))
"""Leaves pixel values as they are."""


def grid_of(rule, *header):
    return rule.count(*(np.array([value]) for value in header)).grid[0]


@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    merge=st.sampled_from([1, 2]),
    patch=st.sampled_from([2, 3]),
)
def test_patches_equal_their_slow_twin(rows, columns, merge, patch):
    shape = (2, rows * merge * patch, columns * merge * patch, 3)
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    ours = cut_patches(frames, patch, merge, PLAIN, depth=2)
    upright = frames.transpose(0, 3, 1, 2).astype(np.float32)
    assert np.allclose(ours, reference.patches_of(upright, patch, merge), atol=1e-4)
    once = cut_patches(frames[:1], patch, merge, PLAIN, depth=2)
    assert np.array_equal(once, cut_patches(frames[[0, 0]], patch, merge, PLAIN, depth=2))


def test_a_picture_of_the_right_size_keeps_its_pixels():
    features, header = decode_image(picture(56, 84, seed=3), PatchGrid(), (1, 6, 4), PLAIN)
    assert (header.width, header.height) == (56, 84)
    assert features["image_grid_thw"].tolist() == [[1, 6, 4]]
    frames = np.stack([pixels(56, 84, 3).transpose(2, 0, 1)] * 2).astype(np.float32)
    expected = reference.patches_of(frames, 14, 2)
    assert features["pixel_values"].dtype == np.float32
    assert np.allclose(features["pixel_values"], expected, atol=1e-4)


@pytest.mark.parametrize(
    "rule", [PatchGrid(), FixedImage(size=56), Tiles(size=56, canvases=((112, 56), (112, 112)))]
)
def test_features_fit_the_plan_even_when_the_picture_has_changed(rule):
    counts = rule.count(np.array([100]), np.array([70]))
    before, _ = decode_image(picture(100, 70), rule, counts.grid[0], Look())
    after, header = decode_image(picture(300, 20), rule, counts.grid[0], Look())
    assert (header.width, header.height) == (300, 20)
    assert {key: value.shape for key, value in before.items()} == {k: v.shape for k, v in after.items()}


def test_scaling_gives_mean_zero_and_deviation_one():
    from PIL import Image

    grey = Image.new("RGB", (28, 28), (100, 150, 200))
    features, _ = decode_image(encoded(grey), FixedImage(size=28), (1, 2, 2), Look())
    expected = [(v / 255 - m) / s for v, m, s in zip((100, 150, 200), Look().mean, Look().std, strict=True)]
    assert np.allclose(features["pixel_values"][0].mean(axis=(1, 2)), expected, atol=1e-6)


def test_u41_sixteen_bit_grey_keeps_its_upper_bits():
    from PIL import Image

    values = np.linspace(0, 65535, 64 * 32).astype(np.uint16).reshape(32, 64)
    image, _ = pixels_of(encoded(Image.fromarray(values)))
    assert np.array_equal(np.asarray(image)[..., 0], (values >> 8).astype(np.uint8))


def test_transparency_becomes_white_and_palettes_become_colours():
    from PIL import Image

    for kind in ("RGBA", "LA"):
        image, _ = pixels_of(encoded(Image.new(kind, (4, 4), 0)))
        assert np.all(np.asarray(image) == 255)
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30])
    assert np.asarray(pixels_of(encoded(palette))[0])[0, 0].tolist() == [10, 20, 30]
    assert pixels_of(encoded(Image.new("CMYK", (4, 4)), "JPEG"))[0].mode == "RGB"


def test_floating_point_pixels_are_refused():
    from PIL import Image

    with pytest.raises(MediaError, match="floating-point"):
        pixels_of(encoded(Image.new("F", (4, 4)), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_u41_rotation_is_undone_as_pillow_does_it(orientation):
    import io

    from PIL import Image, ImageOps

    data = turned(40, 24, orientation)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    found, header = pixels_of(data)
    assert found.size == expected.size == (header.width, header.height)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_u41_a_picture_cut_short_is_an_error_and_not_grey():
    for kind in ("JPEG", "PNG"):
        with pytest.raises(MediaError, match="cannot be decoded"):
            pixels_of(picture(90, 90, kind=kind)[:-45])


# ------------------------------------------------------------------------------------------------ sound


@settings(max_examples=15)
@given(rate=st.sampled_from([8000, 11_025, 22_050, 24_000, 44_100, 48_000]), hertz=st.integers(50, 2500))
def test_a_tone_stays_the_same_tone_at_another_rate(rate, hertz):
    found = resample(tone(0.5, rate, hertz), rate, 16_000)
    assert found.size == -(-round(0.5 * rate) * 16_000 // rate)
    expected = tone(0.5, 16_000, hertz)[: found.size]
    inner = slice(400, -400)  # the filter's ends see silence beyond the sound
    assert np.abs(found[: expected.size][inner] - expected[inner]).max() < 2e-3


def test_resampling_agrees_with_scipy_on_noise_below_the_cut():
    noise = np.random.default_rng(0).standard_normal(48_000)
    smooth = resample_poly(resample_poly(noise, 1, 8), 8, 1).astype(np.float32)  # below 3 kHz
    ours, theirs = resample(smooth, 48_000, 16_000), resample_poly(smooth, 1, 3)
    inner = slice(200, -200)
    assert np.sqrt(np.mean((ours[inner] - theirs[inner]) ** 2)) < 0.01 * np.std(theirs)


def test_what_the_lower_rate_cannot_hold_is_filtered_out():
    assert np.abs(resample(tone(0.5, 48_000, 12_000), 48_000, 16_000)[400:-400]).max() < 1e-3


@pytest.mark.parametrize(("up", "down"), [(160, 441), (2, 1), (1, 3), (2, 3)])
def test_every_phase_keeps_a_constant(up, down):
    taps = filter_taps(up, down)
    assert taps.shape[0] == up
    assert np.allclose(taps.sum(axis=1), 1, atol=1e-5)


def test_mel_filters_equal_their_definition():
    assert np.allclose(mel_filters(80), reference.mel_bands(80, 201, 16_000), atol=1e-12)


def test_a_tone_is_loudest_in_the_band_of_its_frequency():
    spectrum = log_mel(tone(1.0, 16_000, 1000.0))
    assert spectrum.shape == (80, 100)
    assert spectrum.dtype == np.float32
    loudest = int(np.argmax(spectrum[:, 50]))
    assert abs(int(np.argmax(mel_filters(80)[:, 25])) - loudest) <= 1  # bin 25 is 1000 Hz
    assert spectrum.max() - spectrum.min() <= 2.0001


def test_stereo_is_averaged():
    left, right = tone(0.2), np.zeros(1600, np.float32)
    mono, rate = read_mono(sound(np.stack([left, right], axis=1), subtype="FLOAT"))
    assert rate == 8000
    assert np.allclose(mono, left / 2, atol=1e-6)


@pytest.mark.parametrize(
    "rule", [WhisperFrames(), WhisperFrames(long="windows"), TokensPerSecond(rate=13, max_s=30)]
)
@pytest.mark.parametrize("seconds", [0.2, 31.0])
def test_u49_sound_has_as_many_frames_as_planned(rule, seconds):
    samples = round(seconds * 8000)
    grid = grid_of(rule, samples, 8000)
    features, differs = decode_audio(sound(tone(seconds)), rule, grid, 8000)
    assert differs < 1e-9
    if isinstance(rule, TokensPerSecond):
        assert features["audio_features"].shape == (grid[1], 80)
        assert features["audio_lengths"].tolist() == [grid[1]]
    else:
        assert features["input_features"].shape == (grid[0], 80, 3000)
        assert features["feature_attention_mask"].sum() == grid[1]


@pytest.mark.parametrize("held", [184_320, 187_000, 100_000])
def test_u49_sound_of_another_length_than_declared_is_fitted_and_the_difference_told(held):
    rule, declared = TokensPerSecond(rate=13), 185_706
    grid = grid_of(rule, declared, 24_000)
    noise = np.random.default_rng(1).standard_normal(held).astype(np.float32) * 0.1
    features, differs = decode_audio(sound(noise, 24_000), rule, grid, 24_000)
    assert differs == pytest.approx(abs(held - declared) / declared)
    assert features["audio_features"].shape == (grid[1], 80)


def test_fitting_cuts_and_fills():
    assert fitted(np.ones(3, np.float32), 2).tolist() == [1, 1]
    assert fitted(np.ones(2, np.float32), 3).tolist() == [1, 1, 0]


# ------------------------------------------------------------------------------------------------ video


def test_frames_are_taken_evenly():
    found = [frame.mean() for frame in frames_at(clip(20), np.array([0, 5, 10, 15]), 64, 48)]
    assert np.allclose(found, [0, 50, 100, 150], atol=4)


def test_a_video_becomes_patches_of_its_frames():
    rule = VideoGrid(min_pixels=28 * 28, max_pixels=64 * 64, fps=2.0)
    grid = grid_of(rule, 64, 48, 20, 10.0)
    features, missing = decode_video(clip(20), rule, grid, PLAIN, num_frames=20, fps=10.0)
    assert missing == 0
    assert features["video_grid_thw"].tolist() == [grid.tolist()]
    assert features["pixel_values_videos"].shape == (np.prod(grid), 3 * 2 * 14 * 14)
    assert features["second_per_grid_ts"].tolist() == [1.0]
    # 4 frames: 0, 5, 10, 15; the first temporal patch shows the first two of them
    first = features["pixel_values_videos"][0].reshape(3, 2, 14, 14)
    assert np.allclose(first.mean(axis=(0, 2, 3)), [0, 50], atol=4)


def test_missing_frames_are_the_last_one_again_and_told():
    rule = VideoGrid(min_pixels=28 * 28, max_pixels=56 * 56)
    grid = grid_of(rule, 64, 48, 40, 10.0)
    features, missing = decode_video(clip(20), rule, grid, PLAIN, num_frames=40, fps=10.0)
    assert missing == 0.5
    assert features["pixel_values_videos"].shape[0] == np.prod(grid)


def test_a_video_of_one_frame_is_repeated():
    rule = VideoGrid(min_pixels=28 * 28, max_pixels=56 * 56)
    grid = grid_of(rule, 64, 48, 1, 10.0)
    features, missing = decode_video(clip(1), rule, grid, PLAIN, num_frames=1, fps=10.0)
    assert (grid[0], missing) == (1, 0)
    assert features["pixel_values_videos"].shape[0] == np.prod(grid)


def test_a_turned_video_is_shown_upright():
    frame = next(frames_at(turned_clip(4, 64, 48), np.array([0]), 48, 64))
    assert frame.shape == (64, 48, 3)
    # the track header turns it clockwise: what was bright on top is bright on the right
    assert frame[:, 30:].mean() > 150 > 50 > frame[:, :18].mean()


def test_a_video_that_is_none_is_refused():
    with pytest.raises(MediaError):
        decode_video(b"nothing", VideoGrid(), (1, 2, 2), PLAIN, num_frames=2, fps=1.0)
