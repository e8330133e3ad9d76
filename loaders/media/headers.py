"""Sizes and durations of media, from their headers: nothing is decoded, except where a header cannot be
true.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, BinaryIO

from loaders.media.blobs import Blob, name_of, opened, size_bytes
from loaders.media.errors import MediaError, missing

MAX_IMAGE_PIXELS = 89_478_485
"""Largest picture that is opened: a quarter of a GiB of RGB, where Pillow starts to warn."""
MAX_COMPRESSION = 8192
"""Samples a byte of compressed audio may stand for; Opus at 6 kbit/s has 64, silence in FLAC some
thousands."""
READ_BLOCK = 1 << 16
"""Samples read at once where they have to be counted."""
SAMPLE_BYTES = {
    "PCM_S8": 1,
    "PCM_U8": 1,
    "PCM_16": 2,
    "PCM_24": 3,
    "PCM_32": 4,
    "FLOAT": 4,
    "DOUBLE": 8,
    "ULAW": 1,
    "ALAW": 1,
}
"""Bytes of a sample of one channel, by libsndfile's names of uncompressed kinds."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""
ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Size as it is shown, after the rotation that the file asks for."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Length and rate; ``num_samples`` counts instants, whatever the number of channels."""

    num_samples: int
    sample_rate: int
    channels: int


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """Size as it is shown, and frames."""

    width: int
    height: int
    num_frames: int
    fps: Fraction


def image_header(blob: Blob, *, max_pixels: int = MAX_IMAGE_PIXELS) -> ImageHeader:
    """Width and height of a picture, from its first bytes.

    Raises:
        MediaError: no picture, or one that declares more than ``max_pixels``; nothing was allocated for it.
    """
    if is_pillow(blob):
        return shown_size(blob)
    with opened(blob) as file:
        return shown_size(open_image(file, name_of(blob), max_pixels))


def is_pillow(blob: Blob) -> bool:
    """Whether it is an image that Pillow has opened already."""
    return hasattr(blob, "getexif") and hasattr(blob, "convert")


def open_image(file: BinaryIO, name: str, max_pixels: int) -> Any:
    """A Pillow image that has read its header only."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise missing("Pillow", "vision") from None
    try:
        image = Image.open(file)
    except UnidentifiedImageError:
        raise MediaError("it is no picture that Pillow knows") from None
    except Image.DecompressionBombError as error:
        raise MediaError(f"it declares too large a picture ({error})") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise MediaError(f"its header cannot be read ({error})") from None
    width, height = image.size
    if width < 1 or height < 1:
        raise MediaError(f"it declares {width} x {height} pixels")
    if width * height > max_pixels:
        raise MediaError(
            f"it declares {width} x {height} pixels, more than the {max_pixels} allowed; "
            "raise max_image_pixels if it is meant"
        )
    return image


def orientation(image: Any) -> int:
    """EXIF orientation 1..8, without decoding."""
    # Pillow decodes a whole PNG to look for a late EXIF chunk: only what came before the pixels is asked for
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    value = image.getexif().get(ORIENTATION, 1)
    return int(value) if value in range(1, 9) else 1


def shown_size(image: Any) -> ImageHeader:
    """Size after rotation."""
    width, height = image.size
    return ImageHeader(height, width) if orientation(image) in TURNED else ImageHeader(width, height)


def audio_header(blob: Blob) -> AudioHeader:
    """Samples, rate and channels of a sound file.

    A length that the file's bytes cannot hold (streamed files declare 2**31 - 1) is not believed: then
    the samples are counted by reading them, in constant memory.

    Raises:
        MediaError: no sound file, or one without samples.
    """
    with opened(blob) as file, open_sound(file) as sound:
        declared = int(sound.frames)
        width = SAMPLE_BYTES.get(sound.subtype)
        held = (
            size_bytes(file) * MAX_COMPRESSION
            if width is None
            else size_bytes(file) // (width * sound.channels)
        )
        if not 0 < declared <= held:
            declared = _count_samples(sound)
        if declared < 1:
            raise MediaError("it holds no samples")
        return AudioHeader(declared, int(sound.samplerate), int(sound.channels))


def open_sound(file: BinaryIO) -> Any:
    """An open ``soundfile.SoundFile``."""
    try:
        import soundfile
    except ImportError:
        raise missing("soundfile", "audio") from None
    try:
        return soundfile.SoundFile(file)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise MediaError(f"it is no sound file that libsndfile knows ({error})") from None


def _count_samples(sound: Any) -> int:
    sound.seek(0)
    count = 0
    while True:
        block = sound.read(READ_BLOCK, dtype="float32", always_2d=True)
        if block.shape[0] == 0:
            return count
        count += int(block.shape[0])


def video_header(blob: Blob) -> VideoHeader:
    """Size, frames and frame rate of the first video stream; its first frame is decoded for the rotation.

    Files that do not say how many frames they have are walked through packet by packet, undecoded.

    Raises:
        MediaError: no video, or one without frames.
    """
    with opened(blob) as file, open_video(file) as container:
        stream = container.streams.video[0]
        fps = stream.average_rate or stream.base_rate or stream.guessed_rate
        width, height = _shown_frame_size(container)
        num_frames = int(stream.frames) or _count_packets(blob)
        if num_frames < 1 or not fps:
            raise MediaError(f"it holds {num_frames} frames at {fps} frames a second")
        return VideoHeader(width, height, num_frames, Fraction(fps))


def open_video(file: BinaryIO) -> Any:
    """An open ``av`` container with at least one video stream."""
    try:
        import av
    except ImportError:
        raise missing("PyAV", "video") from None
    try:
        container = av.open(file, metadata_errors="ignore")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError(f"it is no video that FFmpeg knows ({error})") from None
    if not container.streams.video:
        container.close()
        raise MediaError("it has no video stream")
    return container


def _shown_frame_size(container: Any) -> tuple[int, int]:
    import av

    try:
        frame = next(container.decode(video=0))
    except (StopIteration, av.error.FFmpegError) as error:
        raise MediaError(f"its first frame cannot be decoded ({error or 'there is none'})") from None
    turned = int(frame.rotation) % 180 != 0
    return (frame.height, frame.width) if turned else (frame.width, frame.height)


def _count_packets(blob: Blob) -> int:
    with opened(blob) as file, open_video(file) as container:
        return sum(packet.size > 0 for packet in container.demux(video=0))
