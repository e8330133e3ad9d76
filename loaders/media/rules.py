"""How many language tokens and encoder units a medium becomes: named rules, pure functions of its header.

Every rule has ``count``, vectorised over I media of its kind, and ``keys``, the arrays that decoding
gives. Language tokens are what replaces the placeholder in ``input_ids``; units are what the encoder
computes: patches, or spectrogram frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from loaders.media.checks import check_amounts, check_counts
from loaders.media.errors import MediaError
from loaders.media.grids import best_canvas, check_aspect, fit_to_factor, unpadded

Ints = NDArray[np.int64]

SPECTRUM_RATE = 16_000
"""Samples a second that spectrograms are made of (Whisper's)."""
HOP = 160
"""Samples from one spectrogram frame to the next: 100 frames a second."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Counts:
    """What I media become."""

    tokens: Ints
    """[I] Language tokens."""
    units: Ints
    """[I] Patches or frames that the encoder computes."""
    grid: Ints
    """[I, 3] What decoding must give, so that it cannot give anything else. Pictures and video: time,
    height and width in patches, or tiles and their rows and columns. Audio: windows, frames, samples kept."""
    clipped: NDArray[np.bool_]
    """[I] Whether a limit of the rule cuts the medium's end off."""


def _counts(tokens: Ints, units: Ints, *grid: Ints | int, clipped: NDArray[np.bool_] | None = None) -> Counts:
    shape = tokens.shape
    return Counts(
        tokens=tokens.astype(np.int64),
        units=units.astype(np.int64),
        grid=np.stack([np.broadcast_to(np.asarray(part, np.int64), shape) for part in grid], axis=1),
        clipped=np.zeros(shape, np.bool_) if clipped is None else clipped,
    )


# ------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedImage:
    """Every picture is resized to a square and becomes the same number of tokens (LLaVA 1.5: 576 at 336
    pixels).
    """

    keys: ClassVar[tuple[str, ...]] = ("pixel_values",)

    tokens: int = 576
    size: int = 336
    patch: int = 14

    def __post_init__(self) -> None:
        check_counts(self, ("tokens", "size", "patch"))

    def count(self, width: Ints, height: Ints) -> Counts:
        """The same for all."""
        check_aspect(width, height)
        side = self.size // self.patch
        ones = np.ones(width.shape, np.int64)
        return _counts(ones * self.tokens, ones * side * side, 1, side, side)


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchGrid:
    """Native resolution: sides become multiples of patch x merge within an area, merge x merge patches one
    token.

    Defaults are Qwen2-VL's (14-pixel patches merged 2 x 2, so 28 pixels a token). Qwen3-VL has ``patch=16``.
    """

    keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_thw")

    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        check_counts(self, ("patch", "merge", "max_pixels"))
        check_counts(self, ("min_pixels",), least=0)

    def count(self, width: Ints, height: Ints) -> Counts:
        """Patches of the resized picture, and a token for every merge x merge of them."""
        fitted_w, fitted_h = fit_to_factor(
            width,
            height,
            factor=self.patch * self.merge,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
        rows, columns = fitted_h // self.patch, fitted_w // self.patch
        return _counts(rows * columns // self.merge**2, rows * columns, 1, rows, columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """A small picture of the whole and square tiles of the fitting canvas (LLaVA-NeXT's "any resolution").

    Tokens: the whole's patches, the canvas's patches without padding, and one line break for each of their
    rows.
    """

    keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")

    size: int = 336
    patch: int = 14
    canvases: tuple[tuple[int, int], ...] = ((672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336))

    def __post_init__(self) -> None:
        check_counts(self, ("size", "patch"))

    """Width and height of each allowed canvas, multiples of ``size``."""

    def count(self, width: Ints, height: Ints) -> Counts:
        """Tokens after unpadding; units are the patches of all tiles, padding included."""
        check_aspect(width, height)
        side = self.size // self.patch
        sizes = np.array(self.canvases, np.int64)[best_canvas(width, height, self.canvases)]
        columns, rows = sizes[:, 0] // self.size, sizes[:, 1] // self.size
        left_columns, left_rows = unpadded(width, height, columns * side, rows * side)
        tokens = side * side + left_columns * left_rows + left_rows
        tiles = 1 + rows * columns
        return _counts(tokens, tiles * side * side, tiles, rows, columns)


ImageRule = FixedImage | PatchGrid | Tiles


# ---------------------------------------------------------------------------------------------- audio


def resampled_length(num_samples: Ints, sample_rate: Ints) -> Ints:
    """[I] samples after resampling to `SPECTRUM_RATE`, rounded up."""
    return -(-num_samples * SPECTRUM_RATE // sample_rate)


def _kept(num_samples: Ints, sample_rate: Ints, max_s: float | None) -> tuple[Ints, NDArray[np.bool_]]:
    if max_s is None:
        return num_samples, np.zeros(num_samples.shape, np.bool_)
    limit = np.floor(Fraction(str(max_s)).numerator * sample_rate // Fraction(str(max_s)).denominator)
    return np.minimum(num_samples, limit.astype(np.int64)), num_samples > limit


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperFrames:
    """Windows of 30 seconds, 100 spectrogram frames a second, an encoder that halves and a pool that
    halves again.

    The encoder always computes whole windows. ``long="clip"`` keeps the first window and counts the medium as
    clipped; ``"windows"`` takes as many as it needs. ``count_padding=True`` gives every window its full
    number of tokens; otherwise only frames with sound count, as Qwen2-Audio does.
    """

    keys: ClassVar[tuple[str, ...]] = ("input_features", "feature_attention_mask")

    window_s: int = 30
    pool: int = 2
    mels: int = 80
    long: str = "clip"
    count_padding: bool = False

    def __post_init__(self) -> None:
        check_counts(self, ("window_s", "pool", "mels"))
        if self.long not in ("clip", "windows"):
            raise ValueError(f'long must be "clip" or "windows", it is {self.long!r}.')

    @property
    def limit_s(self) -> float | None:
        """Seconds that are kept."""
        return self.window_s if self.long == "clip" else None

    @property
    def window_frames(self) -> int:
        """Spectrogram frames of a window."""
        return self.window_s * SPECTRUM_RATE // HOP

    def tokens_of(self, frames: Ints) -> Ints:
        """[I] tokens of one window's frames: a convolution of stride 2, then a pool."""
        halved = (frames + 1) // 2
        return halved // self.pool if self.pool > 1 else halved

    def count(self, num_samples: Ints, sample_rate: Ints) -> Counts:
        """Tokens of frames with sound; units are the frames of whole windows."""
        kept, clipped = _kept(num_samples, sample_rate, self.limit_s)
        frames = -(-resampled_length(kept, sample_rate) // HOP)
        windows = np.maximum(-(-frames // self.window_frames), 1)
        last = self.window_frames if self.count_padding else frames - (windows - 1) * self.window_frames
        full = self.tokens_of(np.asarray(self.window_frames))
        tokens = (windows - 1) * full + self.tokens_of(np.asarray(last))
        return _counts(tokens, windows * self.window_frames, windows, frames, kept, clipped=clipped)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensPerSecond:
    """So many tokens for each second of sound, begun ones in full; ``max_s`` cuts longer media and counts
    them.
    """

    keys: ClassVar[tuple[str, ...]] = ("audio_features", "audio_lengths")

    rate: float = 25.0
    max_s: float | None = None
    mels: int = 80

    def __post_init__(self) -> None:
        check_amounts(self, ("rate",) if self.max_s is None else ("rate", "max_s"))
        check_counts(self, ("mels",))

    @property
    def limit_s(self) -> float | None:
        """Seconds that are kept."""
        return self.max_s

    def count(self, num_samples: Ints, sample_rate: Ints) -> Counts:
        """Tokens by the clock; units are spectrogram frames, 100 a second."""
        kept, clipped = _kept(num_samples, sample_rate, self.max_s)
        rate = Fraction(str(self.rate))
        tokens = -(-kept * rate.numerator // (sample_rate * rate.denominator))
        frames = -(-resampled_length(kept, sample_rate) // HOP)
        return _counts(tokens, frames, 1, frames, kept, clipped=clipped)


AudioRule = WhisperFrames | TokensPerSecond


# ---------------------------------------------------------------------------------------------- video


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoGrid:
    """Frames at ``fps``, each resized as a picture, ``temporal`` of them one patch deep (Qwen2-VL's
    defaults).

    ``total_pixels`` bounds a whole video: long ones get smaller frames, down to 1.05 x ``min_pixels``.
    """

    keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")

    patch: int = 14
    merge: int = 2
    temporal: int = 2
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 768 * 28 * 28
    total_pixels: int = int(128_000 * 28 * 28 * 0.9)

    def __post_init__(self) -> None:
        check_counts(self, ("patch", "merge", "temporal", "max_frames", "max_pixels", "total_pixels"))
        check_counts(self, ("min_frames", "min_pixels"), least=0)
        check_amounts(self, ("fps",))

    def sampled_frames(self, num_frames: Ints, fps: NDArray[np.float64]) -> Ints:
        """[I] frames taken: at ``fps``, within the limits and what there is, a multiple of ``temporal``.

        A video with fewer frames than ``temporal`` is filled up by repeating its last one.
        Source: ``sample_frames`` of Qwen2-VL's video processor.
        """
        deep = self.temporal
        most = np.minimum(self.max_frames, num_frames) // deep * deep
        wanted = np.maximum(num_frames / fps * self.fps, self.min_frames)
        taken = np.floor(np.minimum(wanted, most)) // deep * deep
        return np.asarray(np.maximum(taken, deep), np.int64)

    def count(self, width: Ints, height: Ints, num_frames: Ints, fps: NDArray[np.float64]) -> Counts:
        """Patches of all sampled frames; clipped where ``max_frames`` thins them out below ``fps``."""
        taken = self.sampled_frames(num_frames, fps)
        share = np.minimum(self.max_pixels, self.total_pixels * self.temporal // taken)
        fitted_w, fitted_h = fit_to_factor(
            width,
            height,
            factor=self.patch * self.merge,
            min_pixels=self.min_pixels,
            max_pixels=np.maximum(share, int(1.05 * self.min_pixels)),
        )
        times, rows, columns = taken // self.temporal, fitted_h // self.patch, fitted_w // self.patch
        patches = times * rows * columns
        thinned = num_frames / fps * self.fps > self.max_frames
        return _counts(patches // self.merge**2, patches, times, rows, columns, clipped=thinned)


def frame_numbers(num_frames: int, taken: int) -> Ints:
    """[taken] which of ``num_frames`` frames are sampled: evenly from the first on, the last one repeated
    if few.
    """
    return np.minimum(np.arange(taken) * max(num_frames, taken) // taken, num_frames - 1)


def check_tokens(counts: Counts) -> None:
    """Raises MediaError when a medium would become no token at all."""
    if counts.tokens.size and int(counts.tokens.min()) < 1:
        raise MediaError("it is too short to become a single token")


def seconds_per_grid(num_frames: int, fps: float, taken: int, temporal: int) -> float:
    """Seconds between two temporal patches of a sampled video."""
    return num_frames / fps / taken * temporal if taken and not math.isnan(fps) else 0.0
