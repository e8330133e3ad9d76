"""Video to patches of sampled frames, exactly as many as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.blobs import Blob, opened
from loaders.media.errors import MediaError
from loaders.media.headers import open_video
from loaders.media.images import Look, cut_patches
from loaders.media.rules import VideoGrid, frame_numbers, seconds_per_grid


def decode_video(
    blob: Blob, rule: VideoGrid, grid: Sequence[int], look: Look, *, num_frames: int, fps: float
) -> tuple[dict[str, NDArray[Any]], float]:
    """One video's features (see `video_features`), and which share of the frames planned was not there.

    Args:
        blob: where its bytes lie.
        rule: what it is made into.
        grid: [3] time, rows and columns in patches, of `Counts.grid`.
        look: how pixel values are scaled.
        num_frames: what the header said when the plan was made.
        fps: the same.

    Frames are taken evenly, scaled bicubically by FFmpeg and turned as they are shown. Where the video ends
    before a frame that was planned, its last frame is repeated.

    Raises:
        MediaError: it cannot be decoded, or gives no frame.
    """
    times, rows, columns = (int(part) for part in grid)
    taken = times * rule.temporal
    wanted = frame_numbers(num_frames, taken)
    frames = list(frames_at(blob, wanted, columns * rule.patch, rows * rule.patch))
    if not frames:
        raise MediaError("it gives no frames")
    missing = taken - len(frames)
    step_s = seconds_per_grid(num_frames, fps, taken, rule.temporal)
    return video_features(frames + [frames[-1]] * missing, rule, look, step_s), missing / taken


def video_features(
    frames: Sequence[NDArray[np.uint8]], rule: VideoGrid, look: Look, step_s: float
) -> dict[str, NDArray[Any]]:
    """What the encoder takes, of frames [height, width, 3] of the planned number and size.

    Returns:
        ``pixel_values_videos`` float32[patches, channels x time x patch x patch], ``video_grid_thw``
        int64[1, 3] and ``second_per_grid_ts`` float32[1].
    """
    stacked = np.stack(frames)  # [time, height, width, 3]
    times, (height, width) = len(frames) // rule.temporal, stacked.shape[1:3]
    parts = stacked.reshape(times, rule.temporal, height, width, 3)
    patches = [cut_patches(part, rule.patch, rule.merge, look, depth=rule.temporal) for part in parts]
    return {
        "pixel_values_videos": np.concatenate(patches),
        "video_grid_thw": np.array([[times, height // rule.patch, width // rule.patch]], np.int64),
        "second_per_grid_ts": np.array([step_s], np.float32),
    }


def frames_at(blob: Blob, numbers: NDArray[np.int64], width: int, height: int) -> Iterator[NDArray[np.uint8]]:
    """[height, width, 3] frames with those numbers, rising, equal ones repeated; fewer where the video
    ends.
    """
    import av

    with opened(blob) as file, open_video(file) as container:
        container.streams.video[0].thread_type = "AUTO"
        at = 0
        try:
            for number, frame in enumerate(container.decode(video=0)):
                if numbers[at] > number:
                    continue
                pixels = _shown(frame, width, height)
                while at < numbers.size and numbers[at] == number:
                    yield pixels
                    at += 1
                if at == numbers.size:
                    return
        except av.error.FFmpegError as error:
            if at == 0:
                raise MediaError(f"it cannot be decoded ({error})") from None


def _shown(frame: Any, width: int, height: int) -> NDArray[np.uint8]:
    turns = round(frame.rotation / 90) % 4
    size = (height, width) if turns % 2 else (width, height)
    pixels = frame.to_ndarray(format="rgb24", width=size[0], height=size[1], interpolation="BICUBIC")
    return np.rot90(pixels, turns) if turns else pixels
