import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.media import reference
from loaders.media.errors import MediaError
from loaders.media.expand import Placeholder, expand, num_loss_tokens, repeats_of
from loaders.media.positions import Span, axis_positions, position_rows

PLACEHOLDERS = {"image": Placeholder(1, (2, 3)), "audio": Placeholder(4)}


@st.composite
def samples(draw):
    """Text with media: tokens, labels or None, and how many tokens each medium has; 0 leaves it out."""
    pieces = draw(st.lists(st.sampled_from(["text", "image", "bare image", "audio"]), max_size=8))
    ids, tokens = [], {"image": [], "audio": []}
    for piece in pieces:
        if piece == "text":
            ids += draw(st.lists(st.integers(10, 99), max_size=5))
        elif piece == "audio":
            ids.append(4)
            tokens["audio"].append(draw(st.integers(0, 6)))
        else:
            ids += [2, 1, 3] if piece == "image" else [1]
            tokens["image"].append(draw(st.integers(0, 6)))
    labels = None
    if draw(st.booleans()):
        labels = [draw(st.sampled_from([-100, token])) for token in ids]
    return np.array(ids, np.int64), None if labels is None else np.array(labels, np.int64), tokens


@given(sample=samples())
def test_every_medium_has_its_tokens_and_text_stays_as_it_is(sample):
    ids, labels, tokens = sample
    found = expand(ids, labels, PLACEHOLDERS, tokens)
    assert found.input_ids.size == found.labels.size
    for kind, placeholder in PLACEHOLDERS.items():
        mine = found.input_ids == placeholder.token
        assert mine.sum() == sum(tokens[kind])
        assert np.all(found.labels[mine] == -100)
        for start, count in zip(found.starts[kind].tolist(), tokens[kind], strict=True):
            assert (start >= 0) == (count > 0)
            assert np.all(found.input_ids[start : start + count] == placeholder.token)
    text = (found.input_ids > 9).nonzero()[0]
    assert found.input_ids[text].tolist() == ids[ids > 9].tolist()
    given_labels = ids if labels is None else labels
    assert found.labels[text].tolist() == given_labels[ids > 9].tolist()


@given(sample=samples())
def test_loss_tokens_are_counted_without_expanding(sample):
    ids, labels, tokens = sample
    found = expand(ids, labels, PLACEHOLDERS, tokens)
    counted = num_loss_tokens(ids, labels, PLACEHOLDERS, repeats_of(ids, PLACEHOLDERS, tokens))
    assert counted == np.count_nonzero(found.labels[1:] != -100)


def test_a_medium_that_is_left_out_takes_its_wrap_along():
    ids = np.array([50, 2, 1, 3, 51, 1, 52])
    found = expand(ids, None, PLACEHOLDERS, {"image": [0, 2], "audio": []})
    assert found.input_ids.tolist() == [50, 51, 1, 1, 52]
    assert found.labels.tolist() == [50, 51, -100, -100, 52]
    assert found.starts["image"].tolist() == [-1, 2]


def test_placeholders_and_media_must_be_equally_many():
    with pytest.raises(MediaError, match=r"2 image placeholders .token 1. for 1 media"):
        expand(np.array([1, 5, 1]), None, PLACEHOLDERS, {"image": [3]})


@given(
    gaps=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    grids=st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=4, max_size=4),
)
def test_positions_on_three_axes_equal_their_slow_twin(gaps, grids):
    spans, length = {}, 0
    for gap, grid in zip(gaps[:-1], grids, strict=False):
        spans[length + gap] = grid
        length += gap + int(np.prod(grid))
    length += gaps[-1]
    found = axis_positions(length, [Span(start, grid) for start, grid in spans.items()])
    assert [tuple(column) for column in found.T.tolist()] == reference.axis_positions(length, spans)


def test_text_alone_counts_up_on_all_axes():
    assert position_rows("mrope", 3, []).tolist() == [[0, 1, 2]] * 3
    assert position_rows("text+mrope", 3, []).tolist() == [[0, 1, 2]] * 4


def test_a_known_picture_between_words():
    # two words, a picture of 1 x 2 x 3 tokens, a word: Qwen2-VL's published example has this shape
    found = axis_positions(9, [Span(2, (1, 2, 3))])
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]


def test_seconds_stretch_time_and_text_goes_on_as_asked():
    spans = [Span(0, (3, 1, 1), time_step=2.5)]
    assert axis_positions(4, spans).tolist() == [[0, 2, 5, 6], [0, 0, 0, 6], [0, 0, 0, 6]]
    assert axis_positions(4, spans, advance="space").tolist() == [[0, 2, 5, 1], [0, 0, 0, 1], [0, 0, 0, 1]]
