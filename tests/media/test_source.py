import json
import logging
import pickle

import numpy as np
import pytest

from loaders.media.config import MediaKind, MediaRules
from loaders.media.rules import FixedImage, PatchGrid, TokensPerSecond, VideoGrid, WhisperFrames
from loaders.quarantine import Quarantine
from loaders.sources import open_source
from loaders.sources.multimodal import MultimodalSource
from tests.media.files import MediaRows, bomb, clip, encoded, picture, sound, text, tone, turned

IMAGE, AUDIO, VIDEO = 1, 4, 5
SMALL = PatchGrid(min_pixels=28 * 28, max_pixels=28 * 28 * 64)


def rules(**others):
    defaults = {
        "image": MediaKind(column="images", token=IMAGE, rule=SMALL, wrap=(2, 3)),
        "audio": MediaKind(column="audio", token=AUDIO, rule=TokensPerSecond(rate=10)),
        "video": MediaKind(
            column="video", token=VIDEO, rule=VideoGrid(min_pixels=28 * 28, max_pixels=56 * 56)
        ),
    }
    return MediaRules(**(defaults | others))


def images_only(rule=SMALL, **others):
    return MediaRules(image=MediaKind(column="images", token=IMAGE, rule=rule), **others)


def read(source, *rows):
    return source.read(np.array(rows, np.int64))


def mixed_rows():
    return [
        {"input_ids": text(6)},
        {"input_ids": [*text(3), 2, IMAGE, 3, *text(4)], "images": picture(70, 60)},
        {
            "input_ids": [IMAGE, 60, AUDIO, 61, VIDEO, IMAGE],
            "images": [picture(30, 200), {"bytes": picture(99, 99), "path": None}],
            "audio": sound(tone(0.7)),
            "video": clip(8),
        },
        {"input_ids": []},
        {"input_ids": [70, AUDIO], "audio": [{"bytes": sound(tone(0.25)), "path": None}], "labels": None},
    ]


def without_labels(rows):
    return [{key: value for key, value in row.items() if key != "labels"} for row in rows]


def test_lengths_and_loads_known_from_headers_are_those_of_what_is_read():
    source = MultimodalSource(MediaRows(without_labels(mixed_rows())), rules())
    got = read(source, *range(len(source)))
    assert np.diff(got.offsets).tolist() == source.lengths().tolist()
    assert source.lengths()[0] == 6
    assert source.lengths()[3] == 0
    counted = [
        int(np.count_nonzero(got.labels[a + 1 : b] != -100)) if b > a else 0
        for a, b in zip(got.offsets[:-1], got.offsets[1:], strict=True)
    ]
    assert counted == source.loss_tokens().tolist()
    phases = source.phases()
    for row in range(len(source)):
        patches = sum(
            0 if got.columns[key][row] is None else len(got.columns[key][row])
            for key in ("pixel_values", "pixel_values_videos")
        )
        frames = got.columns["audio_features"][row]
        assert phases["vision"][row] == patches
        assert phases["audio"][row] == (0 if frames is None else len(frames))


def test_u47_placeholders_equal_features_for_every_sample():
    source = MultimodalSource(MediaRows(without_labels(mixed_rows())), rules())
    got = read(source, *range(len(source)))
    for row in range(len(source)):
        ids = got.input_ids[got.offsets[row] : got.offsets[row + 1]]
        for token, key in ((IMAGE, "image_grid_thw"), (VIDEO, "video_grid_thw")):
            grid = got.columns[key][row]
            assert np.sum(ids == token) == (0 if grid is None else grid.prod(axis=1).sum() // 4)


def test_rows_may_be_read_in_any_order_and_again():
    source = MultimodalSource(MediaRows(without_labels(mixed_rows())), rules())
    once, again = read(source, 2, 1, 2), read(source, 1)
    assert np.array_equal(once.columns["pixel_values"][1], again.columns["pixel_values"][0])
    assert np.array_equal(once.input_ids[once.offsets[1] : once.offsets[2]], again.input_ids)
    assert np.array_equal(once.columns["audio_features"][0], once.columns["audio_features"][2])


def test_labels_of_the_source_are_kept_and_masked_on_media():
    rows = [{"input_ids": [50, IMAGE, 51, 52], "labels": [-100, IMAGE, 51, -100], "images": picture(56, 28)}]
    source = MultimodalSource(MediaRows(rows), images_only())
    assert read(source, 0).labels.tolist() == [-100, -100, -100, 51, -100]
    assert source.loss_tokens().tolist() == [1]


def test_other_columns_stay_and_media_columns_go():
    rows = [{"input_ids": [IMAGE], "images": picture(), "key": "a"}]
    columns = read(MultimodalSource(MediaRows(rows), images_only()), 0).columns
    assert columns["key"] == ["a"]
    assert "images" not in columns


# -------------------------------------------------------------------------------------------- limits


def u47_rows():
    ids = [*text(20), IMAGE, *text(20, 200), IMAGE, *text(20, 300)]
    return [
        {"input_ids": ids, "images": [picture(seed=1), picture(seed=2)]},
        {"input_ids": [*text(10), IMAGE], "images": picture(seed=3)},
    ]


U47_RULE = FixedImage(tokens=256, size=28)


@pytest.mark.parametrize(
    ("capacity", "oversize", "lengths"),
    [
        (600, "drop", [572, 266]),
        (400, "drop", [0, 266]),
        (400, "drop_media", [316, 266]),
        (250, "drop", [0, 0]),
        (250, "drop_media", [60, 10]),
    ],
)
def test_u47_a_picture_is_kept_whole_or_left_out_with_its_features(capacity, oversize, lengths, caplog):
    source = MultimodalSource(
        MediaRows(u47_rows()), images_only(U47_RULE, max_tokens=capacity, oversize=oversize)
    )
    with caplog.at_level(logging.WARNING):
        assert source.lengths().tolist() == lengths
    kept = [row for row in (0, 1) if lengths[row]]
    got = read(source, *kept)
    for at, row in enumerate(kept):
        ids = got.input_ids[got.offsets[at] : got.offsets[at + 1]]
        pictures = got.columns["pixel_values"][at]
        assert np.sum(ids == IMAGE) == 256 * (0 if pictures is None else len(pictures))
        assert ids[ids != IMAGE].tolist() == [t for t in u47_rows()[row]["input_ids"] if t != IMAGE]
    lost = [len(u47_rows()[row]["input_ids"]) for row in (0, 1) if not lengths[row]]
    assert source.table.counts["dropped"] == len(lost)
    told = [
        record for record in caplog.records if "dropped" in record.message or "left out" in record.message
    ]
    assert len(told) == (lengths != [572, 266])


def test_u47_the_picture_that_stays_is_the_first_one():
    source = MultimodalSource(
        MediaRows(u47_rows()), images_only(U47_RULE, max_tokens=400, oversize="drop_media")
    )
    alone = MultimodalSource(
        MediaRows([{"input_ids": [IMAGE], "images": picture(seed=1)}]), images_only(U47_RULE)
    )
    assert np.array_equal(
        read(source, 0).columns["pixel_values"][0], read(alone, 0).columns["pixel_values"][0]
    )


def test_text_that_is_too_long_by_itself_is_dropped():
    rows = [{"input_ids": [*text(50), IMAGE], "images": picture()}]
    source = MultimodalSource(MediaRows(rows), images_only(max_tokens=40, oversize="drop_media"))
    assert source.lengths().tolist() == [0]
    assert source.table.counts["dropped"] == 1


def test_an_oversized_sample_is_an_error_with_its_row_where_asked():
    source = MultimodalSource(MediaRows(u47_rows()), images_only(U47_RULE, max_tokens=400, oversize="error"))
    with pytest.raises(ValueError, match=r"album, row 0: the sample has 572 tokens, max_tokens is 400"):
        source.lengths()


def u26_rows():
    # 36 x 58 patches of 14 pixels: 2088
    return [
        {"input_ids": [*text(100), *[IMAGE] * count], "images": [picture(58 * 14, 36 * 14)] * count}
        for count in (0, 1, 10)
    ]


U26_RULE = PatchGrid(max_pixels=14 * 14 * 5000)


@pytest.mark.parametrize(
    ("oversize", "vision"),
    [("drop", [0, 2088, 0]), ("drop_media", [0, 2088, 4176]), ("shrink", [0, 2088, None])],
)
def test_u26_a_sample_of_ten_pictures_follows_the_stated_policy(oversize, vision):
    source = MultimodalSource(
        MediaRows(u26_rows()), images_only(U26_RULE, max_units={"vision": 5000}, oversize=oversize)
    )
    found = source.phases()["vision"].tolist()
    assert found[:2] == vision[:2]
    if vision[2] is None:
        assert 3000 < found[2] <= 5000
        assert source.table.counts["shrunk"] == 10
        assert read(source, 2).columns["image_grid_thw"][0].prod(axis=1).sum() == found[2]
    else:
        assert found[2] == vision[2]


def test_pictures_too_many_to_shrink_are_dropped_with_their_sample():
    source = MultimodalSource(
        MediaRows(u26_rows()), images_only(U26_RULE, max_units={"vision": 3}, oversize="shrink")
    )
    assert source.lengths().tolist() == [100, 0, 0]
    assert source.table.counts["dropped"] == 2


def test_u26_limits_on_ten_pictures_name_the_sample():
    source = MultimodalSource(
        MediaRows(u26_rows()), images_only(U26_RULE, max_units={"vision": 5000}, oversize="error")
    )
    with pytest.raises(ValueError, match=r"row 2: the sample has 20880 units of vision, max_units is 5000"):
        source.lengths()


# ---------------------------------------------------------------------------------------- bad media


def u41_rows(tmp_path):
    from PIL import Image

    good = {f"good{k}.png": picture(30 + k, 40, seed=k) for k in range(14)}
    good["grey16.png"] = encoded(Image.fromarray(np.full((40, 30), 40_000, np.uint16)))
    good["turned.jpg"] = turned(60, 30, 6)
    bad = {
        "short.jpg": picture(200, 200, kind="JPEG")[:-45],
        "empty.png": b"",
        "text.png": b"a text with another name",
        "bomb.png": bomb(),
    }
    names = [
        *list(good)[:5],
        "empty.png",
        *list(good)[5:10],
        "text.png",
        "short.jpg",
        *list(good)[10:],
        "bomb.png",
    ]
    for name, data in (good | bad).items():
        (tmp_path / name).write_bytes(data)
    rows = [
        {"input_ids": [*text(3), IMAGE, 90], "images": str(tmp_path / name), "key": name} for name in names
    ]
    return rows, set(bad)


def test_u41_sixteen_good_pictures_once_and_four_rejects_with_path_index_and_reason(tmp_path):
    rows, bad = u41_rows(tmp_path)
    quarantine = tmp_path / "quarantine.jsonl"
    source = MultimodalSource(
        MediaRows(rows), images_only(on_bad="skip", max_bad=4, quarantine=str(quarantine))
    )
    usable = np.flatnonzero(source.lengths())
    assert len(usable) == 17  # only decoding can tell that a picture is cut short
    got = read(source, *usable)
    trained = [
        key
        for at, key in enumerate(got.columns["key"])
        if np.any(got.labels[got.offsets[at] : got.offsets[at + 1]] != -100)
    ]
    assert sorted(trained) == sorted({row["key"] for row in rows} - bad)
    assert list(got.rejects) == [got.columns["key"].index("short.jpg")]
    written = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert {line["path"].rsplit("/", 1)[1] for line in written} == bad
    assert all(rows[line["row"]]["images"] == line["path"] and line["reason"] for line in written)
    # what stands in for the reject keeps the planned shape and no neighbour's pixels
    at = got.columns["key"].index("short.jpg")
    assert len(np.unique(got.columns["pixel_values"][at][:, :196])) == 1


def test_u41_a_bad_picture_is_an_error_with_source_row_and_file(tmp_path):
    rows, _ = u41_rows(tmp_path)
    with pytest.raises(ValueError, match=r"album, row 5, image 0 \(.*empty.png\): it has 0 bytes"):
        MultimodalSource(MediaRows(rows), images_only()).lengths()
    only_short = [row for row in rows if row["key"] in ("short.jpg", "good0.png")]
    source = MultimodalSource(MediaRows(only_short), images_only())
    with pytest.raises(RuntimeError, match=r"album, row 1, image 0 \(.*short.jpg\): it cannot be decoded"):
        read(source, 0, 1)


def test_u41_too_many_bad_pictures_stop_the_run(tmp_path):
    rows, _ = u41_rows(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"3 of 20 rows of album have media that cannot be used, more than the 2"
    ):
        MultimodalSource(MediaRows(rows), images_only(on_bad="skip", max_bad=2)).lengths()
    assert Quarantine(max_bad=0.1, num_rows=20).limit == 2
    assert Quarantine(max_bad=0.1, num_rows=3).limit == 1


def test_a_row_that_is_rejected_in_every_epoch_counts_once():
    rows = [{"input_ids": [IMAGE], "images": picture(90, 90, kind="JPEG")[:-45]}, *u47_rows()[1:]] * 2
    source = MultimodalSource(MediaRows(rows), images_only(on_bad="skip", max_bad=2))
    for _ in range(3):
        read(source, 0, 1, 2)
    assert len(source.quarantine.rejected) == 2


def test_placeholders_and_media_that_differ_in_number_reject_the_sample():
    rows = [{"input_ids": [IMAGE, IMAGE], "images": picture()}, {"input_ids": [IMAGE], "images": picture()}]
    source = MultimodalSource(MediaRows(rows), images_only(on_bad="skip", max_bad=1))
    assert (source.lengths() > 0).tolist() == [False, True]
    with pytest.raises(
        ValueError, match=r"row 0, image: the text has 2 image placeholders .token 1. for 1 media"
    ):
        MultimodalSource(MediaRows(rows), images_only()).lengths()


def test_a_column_that_the_source_does_not_give_is_named():
    with pytest.raises(ValueError, match=r"gives no column 'images' \(further columns: none\); open it with"):
        MultimodalSource(MediaRows([{"input_ids": [IMAGE]}], columns=[]), images_only()).lengths()


# ----------------------------------------------------------------------------- counts that were wrong


def changed(first, second, rule=SMALL, **others):
    """A source whose picture becomes another after it was counted."""
    rows = [{"input_ids": [*text(3), IMAGE, 90], "images": first}]
    inner = MediaRows(rows)
    source = MultimodalSource(inner, images_only(rule, **others))
    source.lengths()
    inner.given[0] = rows[0] | {"images": second}
    return source


def test_a_picture_of_another_size_is_fitted_to_the_plan_and_counted():
    source = changed(picture(100, 50), picture(300, 300))
    got = read(source, 0)
    assert np.diff(got.offsets).tolist() == source.lengths().tolist()
    assert dict(got.counts) == {"repaired": 1}
    assert got.columns["image_grid_thw"][0].prod() == source.phases()["vision"][0]


def test_a_picture_of_another_size_is_an_error_with_file_and_row_where_asked():
    source = changed(picture(100, 50), picture(300, 300), on_mismatch="error")
    with pytest.raises(RuntimeError, match=r"album, row 0, image 0 .* differs by 100.0% from its header"):
        read(source, 0)


def test_a_picture_of_another_size_trains_nothing_where_asked():
    got = read(changed(picture(100, 50), picture(300, 300), on_mismatch="drop"), 0)
    assert list(got.rejects) == [0]
    assert np.all(got.labels == -100)


def sounds(rule, held, declared=185_706, **others):
    """A source whose sound was counted as ``declared`` samples at 24 kHz and holds others."""
    rows = [{"input_ids": [AUDIO, 60], "audio": sound(np.full(declared, 0.1, np.float32), 24_000)}]
    inner = MediaRows(rows)
    kind = MediaKind(column="audio", token=AUDIO, rule=rule)
    source = MultimodalSource(inner, MediaRules(audio=kind, **others))
    source.lengths()
    inner.given[0] = rows[0] | {"audio": sound(np.full(held, 0.1, np.float32), 24_000)}
    return source


@pytest.mark.parametrize("rule", [TokensPerSecond(rate=13), WhisperFrames()])
def test_u49_a_difference_within_the_tolerance_is_corrected_and_counted(rule):
    source = sounds(rule, 184_320, on_mismatch="error")
    got = read(source, 0)
    assert dict(got.counts) == {"corrected": 1}
    assert np.diff(got.offsets).tolist() == source.lengths().tolist()


@pytest.mark.parametrize("rule", [TokensPerSecond(rate=13), WhisperFrames()])
@pytest.mark.parametrize("held", [100_000, 300_000])
def test_u49_a_larger_difference_follows_the_policy(rule, held):
    repaired = sounds(rule, held)
    got = read(repaired, 0)
    assert dict(got.counts) == {"repaired": 1}
    assert np.diff(got.offsets).tolist() == repaired.lengths().tolist()
    with pytest.raises(RuntimeError, match=r"album, row 0, audio 0"):
        read(sounds(rule, held, on_mismatch="error"), 0)
    assert list(read(sounds(rule, held, on_mismatch="drop"), 0).rejects) == [0]


def test_u49_clipped_sound_is_counted_in_one_message(caplog):
    rows = [{"input_ids": [AUDIO], "audio": sound(tone(31.0))}] * 3
    kind = MediaKind(column="audio", token=AUDIO, rule=TokensPerSecond(rate=13, max_s=30))
    source = MultimodalSource(MediaRows(rows), MediaRules(audio=kind))
    with caplog.at_level(logging.WARNING):
        assert source.lengths().tolist() == [390] * 3
    assert [record.message for record in caplog.records if "clipped" in record.message] == [
        "album: 3 media are longer than their rule allows and are clipped"
    ]
    assert dict(read(source, 0).counts) == {}


@pytest.mark.parametrize("rule", [TokensPerSecond(rate=13), WhisperFrames()])
def test_u49_a_clip_without_sound_or_of_one_sample_is_rejected_or_one_token(rule):
    rows = [
        {"input_ids": [AUDIO], "audio": sound(tone(0.0))},
        {"input_ids": [AUDIO], "audio": sound(tone(1 / 8000))},
    ]
    kind = MediaKind(column="audio", token=AUDIO, rule=rule)
    source = MultimodalSource(MediaRows(rows), MediaRules(audio=kind, on_bad="skip", max_bad=2))
    assert source.lengths().tolist() == ([0, 1] if isinstance(rule, TokensPerSecond) else [0, 0])


def test_a_video_that_cannot_be_decoded_leaves_black_frames_and_no_loss():
    rows = [{"input_ids": [VIDEO, 60], "video": clip(8)}]
    inner = MediaRows(rows)
    source = MultimodalSource(inner, rules(image=None, audio=None, on_bad="skip"))
    source.lengths()
    inner.given[0] = rows[0] | {"video": b"gone"}
    got = read(source, 0)
    assert list(got.rejects) == [0]
    assert got.columns["pixel_values_videos"][0].shape[0] == source.phases()["vision"][0]


def test_sound_that_cannot_be_decoded_leaves_silence_and_no_loss():
    rows = [{"input_ids": [AUDIO, 60], "audio": sound(tone(1.0))}]
    inner = MediaRows(rows)
    source = MultimodalSource(inner, rules(image=None, video=None, on_bad="skip"))
    source.lengths()
    inner.given[0] = rows[0] | {"audio": b"gone"}
    got = read(source, 0)
    assert list(got.rejects) == [0]
    assert got.columns["audio_features"][0].shape[0] == source.phases()["audio"][0]


# ------------------------------------------------------------------------------------ around the source


def test_what_was_found_is_kept_until_data_or_rules_change(tmp_path, monkeypatch):
    cache = str(tmp_path / "cache" / "media.npz")
    rows = without_labels(mixed_rows())
    first = MultimodalSource(MediaRows(rows), rules(), cache=cache)
    lengths = first.lengths()

    def refuse(*_, **__):
        raise AssertionError("the media were looked at again")

    monkeypatch.setattr("loaders.sources.multimodal.scan_media", refuse)
    second = MultimodalSource(MediaRows(rows), rules(), cache=cache)
    assert np.array_equal(second.lengths(), lengths)
    assert np.array_equal(read(second, 2).input_ids, read(first, 2).input_ids)
    for other in (
        MultimodalSource(MediaRows(rows, name="other"), rules(), cache=cache),
        MultimodalSource(MediaRows(rows), rules(max_bad=0.2), cache=cache),
    ):
        with pytest.raises(AssertionError):
            other.lengths()
    monkeypatch.undo()
    (tmp_path / "cache" / "media.npz").write_bytes(b"damaged")
    assert np.array_equal(MultimodalSource(MediaRows(rows), rules(), cache=cache).lengths(), lengths)


def test_a_source_travels_to_workers_with_what_it_knows():
    source = MultimodalSource(MediaRows(without_labels(mixed_rows())), rules())
    source.lengths()
    copy = pickle.loads(pickle.dumps(source))
    assert copy._table is not None
    assert np.array_equal(read(copy, 1).input_ids, read(source, 1).input_ids)


def test_many_rows_are_looked_at_block_by_block():
    rows = [{"input_ids": [IMAGE, 50], "images": picture(20 + k % 30, 30)} for k in range(600)]
    source = MultimodalSource(MediaRows(rows), images_only())
    for row in (0, 255, 256, 599):
        got = read(source, row)
        assert got.input_ids.size == source.lengths()[row]


def test_an_empty_source_has_no_media():
    source = MultimodalSource(MediaRows([]), rules())
    assert source.lengths().tolist() == []
    assert source.phases()["vision"].tolist() == []


def test_media_in_a_parquet_file_as_datasets_stores_them(tmp_path):
    import datasets

    data = datasets.Dataset.from_dict(
        {
            "input_ids": [[50, IMAGE, 51], [60, 61], [IMAGE, IMAGE]],
            "images": [
                [{"bytes": picture(60, 40), "path": None}],
                [],
                [{"bytes": picture(30, 40), "path": None}, {"bytes": picture(90, 90), "path": None}],
            ],
        }
    )
    path = tmp_path / "album.parquet"
    data.to_parquet(str(path))
    for inner in (open_source(str(path), carry=["images"]), open_source(data, carry=["images"])):
        source = MultimodalSource(inner, images_only())
        got = read(source, 2, 0, 1)
        assert np.diff(got.offsets).tolist() == source.lengths()[[2, 0, 1]].tolist()
        assert [None if grid is None else len(grid) for grid in got.columns["image_grid_thw"]] == [2, 1, None]


def test_media_in_a_webdataset_tar(tmp_path):
    import io
    import tarfile

    path = tmp_path / "album.tar"
    with tarfile.open(path, "w") as tar:
        for row, (ids, data) in enumerate([([50, IMAGE], picture(60, 40)), ([IMAGE, 51], picture(90, 90))]):
            tokens = io.BytesIO()
            np.save(tokens, np.array(ids))
            for name, content in (("input_ids.npy", tokens.getvalue()), ("png", data)):
                member = tarfile.TarInfo(f"{row:03}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    kind = MediaKind(column="png", token=IMAGE, rule=SMALL)
    source = MultimodalSource(open_source(str(path), carry=["png"]), MediaRules(image=kind))
    got = read(source, 1, 0)
    assert np.diff(got.offsets).tolist() == source.lengths()[[1, 0]].tolist()
    assert [grid.tolist() for grid in got.columns["image_grid_thw"]] == [[[1, 6, 6]], [[1, 2, 4]]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"image": None, "audio": None, "video": None}, "at least one of image, audio and video"),
        ({"oversize": "split", "max_tokens": 9}, "A sample with media cannot be cut"),
        ({"oversize": "truncate", "max_tokens": 9}, "A sample with media cannot be cut"),
        ({"max_tokens": 9}, "belong together"),
        ({"oversize": "drop"}, "belong together"),
        ({"positions": "2d"}, "positions must be one of"),
        ({"on_mismatch": "shrug"}, "on_mismatch must be one of"),
        ({"audio": MediaKind(column="a", token=IMAGE, rule=WhisperFrames())}, "placeholder token of its own"),
    ],
)
def test_rules_that_make_no_sense_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        rules(**arguments)
