import io
import struct
from fractions import Fraction

import numpy as np
import pytest

from loaders.media.blobs import name_of, opened
from loaders.media.errors import MediaError
from loaders.media.headers import audio_header, image_header, video_header
from tests.media.files import bomb, clip, encoded, picture, sound, tone, turned, turned_clip


def test_a_picture_is_found_as_path_bytes_file_dict_and_pillow_image(tmp_path):
    from PIL import Image

    data = picture(40, 30)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    file = io.BytesIO(data)
    file.seek(17)  # wherever its position is
    ways = (
        str(path),
        path,
        data,
        bytearray(data),
        memoryview(data),
        file,
        {"bytes": data, "path": None},
        {"bytes": data, "path": "inside/a.parquet"},
        {"bytes": None, "path": str(path)},
        Image.open(path),
    )
    for way in ways:
        header = image_header(way)
        assert (header.width, header.height) == (40, 30)
    assert not file.closed


def test_a_picture_is_found_behind_a_url():
    import fsspec

    with fsspec.open("memory://album/a.png", "wb") as file:
        file.write(picture(12, 7))
    header = image_header("memory://album/a.png")
    assert (header.width, header.height) == (12, 7)


def test_messages_name_the_path_or_the_size():
    assert name_of({"bytes": b"abc", "path": "a.png"}) == "a.png"
    assert name_of({"bytes": b"abc", "path": None}) == "<3 bytes>"
    assert name_of("a.png") == "a.png"


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "0 bytes"),
        ({"path": "/nowhere/a.png"}, "cannot be opened"),
        ({"width": 3}, "must have 'bytes' or 'path'"),
        (17, "must be a path, bytes"),
        (b"this is a text", "no picture"),
        (picture(40, 30)[:20], "no picture|header cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_reason(blob, reason):
    with pytest.raises(MediaError, match=reason):
        image_header(blob)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "empty.png"
    path.touch()
    with pytest.raises(MediaError, match="0 bytes"), opened(str(path)):
        pass


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_after_exif_rotation(orientation):
    header = image_header(turned(40, 30, orientation))
    assert (header.width, header.height) == ((30, 40) if orientation >= 5 else (40, 30))


def test_u41_a_declared_size_bomb_is_refused_before_anything_is_allocated():
    import tracemalloc

    data = bomb()
    image_header(picture())  # imports done
    tracemalloc.start()
    with pytest.raises(MediaError, match=r"too large|more than"):
        image_header(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000  # the pixels would be 7.5 GB; what other threads of the process take is little


def test_the_limit_of_pixels_is_the_callers():
    with pytest.raises(MediaError, match=r"1200 pixels|40 x 30 pixels, more than the 1199 allowed"):
        image_header(picture(40, 30), max_pixels=1199)
    assert image_header(picture(40, 30), max_pixels=1200).width == 40


def test_a_header_decodes_no_pixels(monkeypatch):
    from PIL import ImageFile

    def refuse(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    for kind in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"):
        assert image_header(picture(40, 30, kind=kind) if kind != "GIF" else encoded_gif()).width == 40


def encoded_gif():
    from PIL import Image

    return encoded(Image.new("P", (40, 30)), "GIF")


@pytest.mark.parametrize("declared", [2**31 - 1, 2**32 - 1, 2**31 - 2])
def test_u49_a_streamed_wav_is_as_long_as_its_bytes_and_not_as_its_header_says(declared):
    data = bytearray(sound(np.tile(tone(0.1), 544)))
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", declared)
    header = audio_header(bytes(data))
    assert (header.num_samples, header.sample_rate) == (435_200, 8000)


def test_u49_a_length_that_the_file_cannot_hold_is_counted_instead(monkeypatch):
    import soundfile

    data = sound(tone(2.0), kind="FLAC")
    monkeypatch.setattr(soundfile.SoundFile, "frames", property(lambda self: 2**40))
    # soundfile itself reads up to what its header says; ours stops at the data
    assert audio_header(data).num_samples == 16_000


def test_u49_stereo_does_not_double_the_length():
    both = np.stack([tone(1.5), tone(1.5)], axis=1)
    header = audio_header(sound(both))
    assert (header.num_samples, header.channels) == (12_000, 2)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_lengths_of_sound_come_from_the_header(kind):
    header = audio_header(sound(tone(1.0, 16_000), 16_000, kind=kind))
    assert header.sample_rate == 16_000
    assert abs(header.num_samples - 16_000) <= 16_000 * 0.02


@pytest.mark.parametrize("data", [sound(np.zeros(0, np.float32)), b"RIFFxxxx", picture()])
def test_u49_sound_without_samples_is_refused(data):
    with pytest.raises(MediaError):
        audio_header(data)


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts", "avi"])
def test_frames_of_a_video_are_known_without_decoding_it(kind):
    header = video_header(clip(20, kind=kind))
    assert (header.width, header.height, header.num_frames, header.fps) == (64, 48, 20, Fraction(10))


def test_a_turned_video_has_the_size_that_is_shown():
    header = video_header(turned_clip(4, 64, 48))
    assert (header.width, header.height) == (48, 64)


@pytest.mark.parametrize("data", [picture()[:50], b"no video", sound(tone(0.1))])
def test_what_is_no_video_is_refused(data):
    with pytest.raises(MediaError):
        video_header(data)
