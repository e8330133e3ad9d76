"""Samples begin with one BOS and end with one EOS; lengths, plans, caps and loss weights count them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders import DataLoader, Mixture, MultimodalSource, open_source
from loaders.batches.borders import Bordered
from loaders.media import MediaKind, MediaRules, PatchGrid
from loaders.sources.base import Rows
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, merged, on_all_ranks

BOS, EOS = 60_001, 60_002
CAP = 32


class GivenRows(ArraySource):
    """Rows of given tokens, and labels where they are given."""

    def __init__(self, rows, labels=None):
        super().__init__([len(row) for row in rows], name="given")
        self.rows, self.given = rows, labels

    def tokens(self, row):
        return np.array(self.rows[row], np.int32)

    def read(self, rows):
        held = super().read(rows)
        if self.given is None:
            return held
        labels = np.concatenate([np.zeros(0, np.int64), *(np.array(self.given[r], np.int64) for r in rows)])
        return Rows(input_ids=held.input_ids, offsets=held.offsets, labels=labels, columns=held.columns)

    def loss_tokens(self):
        if self.given is None:
            return super().loss_tokens()
        return np.array([np.count_nonzero(np.array(row[1:]) != -100) for row in self.given], np.int64)


class GivenPlain(GivenRows):
    """Without labels, as the base class counts them."""

    loss_tokens = ArraySource.loss_tokens


def read_one(source, row=0):
    rows = source.read(np.array([row]))
    return rows.input_ids.tolist(), None if rows.labels is None else rows.labels.tolist()


def test_plain_text_learns_its_first_token_and_its_end():
    source = Bordered(ArraySource([3]), bos=BOS, eos=EOS)
    assert source.lengths().tolist() == [5]
    assert source.loss_tokens().tolist() == [4]
    assert read_one(source) == ([BOS, 0, 1, 2, EOS], None)


@pytest.mark.parametrize(
    ("labels", "expected", "counted"),
    [
        ([7, 8, 9], [-100, 7, 8, 9, EOS], 4),  # all labels: the row's first token is one, behind BOS
        ([-100, 8, 9], [-100, 7, 8, 9, EOS], 4),  # its own mask says nothing, since nothing predicted it
        ([-100, -100, 9], [-100, -100, -100, 9, EOS], 2),  # a prompt: its first token stays masked
        ([-100, -100, -100], [-100, -100, -100, -100, -100], 0),  # nothing to learn
    ],
)
def test_labels_follow_from_how_many_the_row_has(labels, expected, counted):
    source = Bordered(GivenRows([[7, 8, 9]], [labels]), bos=BOS, eos=EOS)
    assert read_one(source) == ([BOS, 7, 8, 9, EOS], expected)
    assert source.loss_tokens().tolist() == [counted]


def test_empty_rows_stay_empty():
    source = Bordered(ArraySource([0, 2, 0]), bos=BOS, eos=EOS)
    assert source.lengths().tolist() == [0, 4, 0]
    assert source.loss_tokens().tolist() == [0, 3, 0]
    held = source.read(np.array([0, 1, 2]))
    assert np.diff(held.offsets).tolist() == [0, 4, 0]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any),
    masked=st.sampled_from([None, 1, 2, 3]),
    bos=st.sampled_from([None, BOS]),
    eos=st.sampled_from([None, EOS]),
    ranks=st.integers(1, 3),
    oversize=st.sampled_from(["split", "truncate"]),
)
def test_every_sample_has_one_of_each_and_metadata_is_what_is_read(
    lengths, masked, bos, eos, ranks, oversize
):
    if bos is None and eos is None:
        bos = BOS
    source = MaskedSource(lengths) if masked == 3 else ArraySource(lengths)
    loaders = on_all_ranks(source, ranks, batch_size=3, max_tokens=CAP, oversize=oversize, bos=bos, eos=eos)
    together = merged([epoch_of(loader) for loader in loaders])
    rows = {}
    for step in together:
        for batch in step:
            assert batch["input_ids"].shape[1] <= CAP
            assert batch.num_loss_tokens == int((batch["shift_labels"] != -100).sum())
            assert batch.step_loss_tokens == sum(other.num_loss_tokens for other in step)
            offsets = np.cumsum(np.r_[0, batch.seq_lengths])
            for (_, row), start, a, b in zip(
                batch.sample_ids, batch.starts, offsets[:-1], offsets[1:], strict=False
            ):
                rows.setdefault(int(row), {})[int(start)] = batch["input_ids"][0, a:b].tolist()
    assert sorted(rows) == [row for row, n in enumerate(lengths) if n]
    for row, pieces in rows.items():
        whole = [token for start in sorted(pieces) for token in pieces[start]]
        wanted = [BOS] * (bos is not None) + source.tokens(row).tolist() + [EOS] * (eos is not None)
        assert whole == (wanted[:CAP] if oversize == "truncate" else wanted)


def test_pieces_of_a_split_sample_have_bos_in_the_first_and_eos_in_the_last():
    loader = DataLoader(ArraySource([70]), max_tokens=CAP, oversize="split", bos=BOS, eos=EOS)
    pieces = {}
    for batch in loader:
        borders = pairwise(batch["cu_seq_lens_q"].tolist())
        for start, (a, b) in zip(batch.starts.tolist(), borders, strict=True):
            pieces[start] = batch["input_ids"][0, a:b].tolist()
    assert [len(pieces[start]) for start in sorted(pieces)] == [32, 32, 8]
    assert [piece[0] == BOS for _, piece in sorted(pieces.items())] == [True, False, False]
    assert [piece[-1] == EOS for _, piece in sorted(pieces.items())] == [False, False, True]


@pytest.mark.parametrize(("row", "name", "how"), [([BOS, 5], "bos", "begins"), ([5, EOS], "eos", "ends")])
def test_a_sample_that_has_the_token_already_is_named(row, name, how):
    loader = DataLoader(GivenPlain([[1, 2], row]), max_tokens=CAP, bos=BOS, eos=EOS, batch_size=2)
    with pytest.raises(ValueError, match=f"given, row 1 already {how} with token 6000.*present=.keep"):
        list(loader)


def test_such_samples_can_be_skipped():
    source = GivenPlain([[1, 2], [3, EOS], [4]])
    loader = DataLoader(source, max_tokens=CAP, bos=BOS, eos=EOS, batch_size=3, on_error="skip", max_errors=1)
    [batch] = list(loader)
    assert loader.metrics()["skipped"] == 1
    assert batch.num_loss_tokens == 5  # 3 of [1, 2], 2 of [4]


def test_keep_looks_once_and_leaves_what_is_there():
    rows = [[BOS, 5, EOS], [BOS, 5], [5, EOS], [5]]
    source = Bordered(GivenPlain(rows), bos=BOS, eos=EOS, present="keep")
    assert source.lengths().tolist() == [3, 3, 3, 3]
    reads = source.source.reads
    assert reads == 4
    for row in range(4):
        assert read_one(source, row)[0] == [BOS, 5, EOS]
    [batch] = list(DataLoader(source, max_tokens=CAP, batch_size=4))
    assert batch["input_ids"][0].tolist() == [BOS, 5, EOS] * 4


def test_each_source_of_a_mixture_is_given_them():
    mixture = Mixture(
        {"a": ArraySource([3] * 4, name="a"), "b": ArraySource([2] * 4, name="b")},
        {"a": 0.5, "b": 0.5},
        by="samples",
        stop="all_once",
    )
    for batch in DataLoader(mixture, max_tokens=CAP, batch_size=4, bos=BOS, eos=EOS):
        assert int((batch["input_ids"] == BOS).sum()) == len(batch.sample_ids)
        assert int((batch["input_ids"] == EOS).sum()) == len(batch.sample_ids)
        assert batch.seq_lengths.sum() == batch["input_ids"].shape[1]


def test_a_state_of_other_tokens_is_refused():
    with_eos = DataLoader(ArraySource([3] * 8), max_tokens=CAP, batch_size=2, eos=EOS)
    without = DataLoader(ArraySource([3] * 8), max_tokens=CAP, batch_size=2)
    with pytest.raises(ValueError, match="eos=60002"):
        without.load_state_dict(with_eos.state_dict())


def test_media_are_sent_to_put_them_into_the_text():
    rules = MediaRules(image=MediaKind(column="images", token=9, rule=PatchGrid()))
    source = MultimodalSource(ArraySource([3]), rules)
    with pytest.raises(ValueError, match=r"MultimodalSource\(Bordered\(text"):
        Bordered(source, eos=EOS)


@pytest.mark.parametrize("token", [-1, 1.5, True])
def test_what_is_no_token_id_is_refused(token):
    with pytest.raises(ValueError, match="must be the id of a token"):
        Bordered(ArraySource([1]), bos=token)


def test_without_max_tokens_it_has_no_effect_and_says_so():
    with pytest.raises(ValueError, match="eos only has an effect with max_tokens"):
        DataLoader([1, 2], eos=EOS)


def test_lists_are_given_them_too():
    [batch] = list(DataLoader(open_source([[5, 6], [7]]), max_tokens=CAP, batch_size=2, eos=EOS))
    assert batch["input_ids"][0].tolist() == [5, 6, EOS, 7, EOS]
