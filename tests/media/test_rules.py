import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.media import reference
from loaders.media.errors import MediaError
from loaders.media.grids import best_canvas, fit_to_factor
from loaders.media.rules import (
    FixedImage,
    PatchGrid,
    Tiles,
    TokensPerSecond,
    VideoGrid,
    WhisperFrames,
    frame_numbers,
)

sides = st.integers(8, 6000)
sizes = st.tuples(sides, sides).filter(lambda size: max(size) <= 200 * min(size))


def ints(*values):
    return np.array(values, np.int64)


@given(
    size=st.lists(sizes, min_size=1, max_size=20),
    factor=st.sampled_from([14, 28, 32]),
    most=st.sampled_from([50_000, 1_003_520, 12_845_056]),
)
def test_fitting_equals_its_slow_twin(size, factor, most):
    width, height = np.array(size, np.int64).T
    found = fit_to_factor(width, height, factor=factor, min_pixels=3136, max_pixels=most)
    expected = [
        reference.fit_to_factor(w, h, factor=factor, min_pixels=3136, max_pixels=most) for w, h in size
    ]
    assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected


@given(size=sizes)
def test_a_patch_grid_keeps_within_its_pixels_and_gives_a_token_for_each_merged_block(size):
    rule = PatchGrid()
    counts = rule.count(*(ints(side) for side in size))
    _, rows, columns = counts.grid[0]
    assert rows % rule.merge == columns % rule.merge == 0
    assert counts.units[0] == rows * columns == counts.tokens[0] * rule.merge**2
    area = rows * columns * rule.patch**2
    if max(size) < 30 * min(size):  # very long ones cannot have less than one row
        assert area <= rule.max_pixels
        assert area >= rule.min_pixels


def test_a_picture_and_its_turned_twin_have_equally_many_tokens():
    width, height = np.random.default_rng(0).integers(20, 2000, (2, 500))
    rule = PatchGrid()
    wide, tall = rule.count(width, height), rule.count(height, width)
    assert np.array_equal(wide.tokens, tall.tokens)
    assert np.array_equal(wide.grid[:, [0, 2, 1]], tall.grid)


@pytest.mark.parametrize(
    ("size", "tokens"),
    # Qwen2-VL's processor as transformers 5.24 has it
    [((640, 480), 391), ((30, 31), 6), ((2000, 1500), 1230), ((57, 900), 64), ((8, 8), 4)],
)
def test_known_sizes_give_the_published_processors_tokens(size, tokens):
    assert PatchGrid().count(*(ints(side) for side in size)).tokens.tolist() == [tokens]


@pytest.mark.parametrize(
    ("size", "tokens", "grid"),
    # LLaVA-NeXT's processor as transformers 5.24 has it
    [
        ((640, 480), 2340, [5, 2, 2]),
        ((300, 900), 2376, [4, 3, 1]),
        ((1000, 300), 2182, [4, 1, 3]),
        ((336, 336), 1176, [3, 1, 2]),
    ],
)
def test_tiles_give_the_published_processors_tokens(size, tokens, grid):
    counts = Tiles().count(*(ints(side) for side in size))
    assert counts.tokens.tolist() == [tokens]
    assert counts.grid.tolist() == [grid]
    assert counts.units.tolist() == [grid[0] * 24 * 24]


@given(size=sizes, canvases=st.permutations(Tiles().canvases))
def test_no_other_canvas_keeps_more_pixels(size, canvases):
    def kept(canvas):
        scale = min(canvas[0] / size[0], canvas[1] / size[1])
        return min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])

    best = canvases[best_canvas(ints(size[0]), ints(size[1]), canvases)[0]]
    assert kept(best) == max(map(kept, canvases))


def test_fixed_pictures_are_all_alike():
    counts = FixedImage().count(ints(10, 4000), ints(300, 20))
    assert counts.tokens.tolist() == [576, 576]
    assert counts.units.tolist() == [576, 576]


@pytest.mark.parametrize("rule", [PatchGrid(), Tiles(), FixedImage()])
@pytest.mark.parametrize("size", [(1, 201), (5000, 3), (0, 5)])
def test_a_picture_like_a_line_is_refused_with_its_size(rule, size):
    with pytest.raises(MediaError, match=f"{size[0]} x {size[1]} pixels"):
        rule.count(*(ints(side) for side in size))


def test_u49_thirty_one_seconds_at_thirteen_tokens_a_second():
    samples, rate = ints(31 * 8000), ints(8000)
    free = TokensPerSecond(rate=13).count(samples, rate)
    assert free.tokens.tolist() == [403]
    assert free.clipped.tolist() == [False]
    limited = TokensPerSecond(rate=13, max_s=30).count(samples, rate)
    assert limited.tokens.tolist() == [390]
    assert limited.clipped.tolist() == [True]
    assert limited.units.tolist() == [3000]


@given(samples=st.integers(1, 10**8), rate=st.sampled_from([8000, 22_050, 44_100]), per_s=st.integers(1, 50))
def test_begun_seconds_count_in_proportion(samples, rate, per_s):
    tokens = TokensPerSecond(rate=per_s).count(ints(samples), ints(rate)).tokens[0]
    assert (tokens - 1) * rate < samples * per_s <= tokens * rate


@given(samples=st.integers(400, 16_000 * 100))
def test_whisper_windows_hold_all_frames_or_the_first_thirty_seconds(samples):
    clip = WhisperFrames(long="clip").count(ints(samples), ints(16_000))
    all_of_it = WhisperFrames(long="windows").count(ints(samples), ints(16_000))
    frames = -(-samples // 160)
    assert clip.clipped[0] == (samples > 480_000)
    assert clip.grid[0].tolist()[:2] == [1, min(frames, 3000)]
    assert all_of_it.grid[0].tolist()[:2] == [max(-(-frames // 3000), 1), frames]
    assert all_of_it.units[0] == all_of_it.grid[0, 0] * 3000
    # the encoder halves, the pool halves: tokens are a quarter of the frames, rounded per window
    assert abs(int(all_of_it.tokens[0]) - frames / 4) <= all_of_it.grid[0, 0]


def test_whisper_counts_as_the_published_model_does():
    # Qwen2-Audio: (frames - 1) // 2 + 1, then (that - 2) // 2 + 1
    for samples in range(640, 20_000, 331):
        frames = -(-samples // 160)
        halved = (frames - 1) // 2 + 1
        expected = (halved - 2) // 2 + 1
        assert WhisperFrames().count(ints(samples), ints(16_000)).tokens.tolist() == [expected]
    padded = WhisperFrames(count_padding=True, pool=1)
    assert padded.count(ints(16_000), ints(16_000)).tokens.tolist() == [1500]


def test_whisper_knows_two_ways_with_long_sound():
    with pytest.raises(ValueError, match="clip"):
        WhisperFrames(long="cut")


@given(num_frames=st.integers(1, 100_000), fps=st.floats(1, 120))
def test_sampled_frames_are_a_multiple_of_the_depth_and_no_more_than_allowed(num_frames, fps):
    rule = VideoGrid()
    taken = int(rule.sampled_frames(ints(num_frames), np.array([fps]))[0])
    assert taken % rule.temporal == 0
    assert rule.temporal <= taken <= max(min(rule.max_frames, num_frames), rule.temporal)
    numbers = frame_numbers(num_frames, taken)
    assert numbers[0] == 0
    assert np.all(np.diff(numbers) >= 0)
    assert numbers[-1] < num_frames
    if num_frames >= taken:
        assert len(set(numbers.tolist())) == taken


def test_long_videos_get_smaller_frames_and_are_thinned_out():
    rule = VideoGrid(max_frames=64, total_pixels=64 * 28 * 28 * 100)
    short = rule.count(ints(1280), ints(720), ints(100), np.array([25.0]))
    long = rule.count(ints(1280), ints(720), ints(25 * 600), np.array([25.0]))
    assert short.clipped.tolist() == [False]
    assert long.clipped.tolist() == [True]
    assert long.grid[0, 0] == 32
    assert np.prod(long.grid[0, 1:]) < np.prod(short.grid[0, 1:])
    assert long.units[0] * rule.temporal * 14 * 14 <= rule.total_pixels * rule.temporal
