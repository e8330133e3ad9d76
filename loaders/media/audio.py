"""Sound to log-mel spectrograms, exactly as long as planned."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media import _kernels
from loaders.media.blobs import Blob, opened
from loaders.media.errors import MediaError
from loaders.media.headers import READ_BLOCK, open_sound
from loaders.media.rules import HOP, SPECTRUM_RATE, AudioRule, WhisperFrames

Floats = NDArray[np.float32]

FFT = 400
"""Samples of one spectrogram frame: 25 ms."""
ZEROS = 16
"""Zero crossings of the resampling filter on each side."""
ROLLOFF = 0.945
"""Where the filter begins to fall, as a share of the lower Nyquist frequency."""
KAISER = 9.0
"""Window shape: about 90 dB down outside the band."""


def decode_audio(
    blob: Blob, rule: AudioRule, grid: Sequence[int], sample_rate: int
) -> tuple[dict[str, NDArray[Any]], float]:
    """One sound's features (see `audio_features`), and by which share it is shorter or longer than planned.

    Args:
        blob: where its bytes lie.
        rule: what it is made into.
        grid: [3] windows, frames and samples of `Counts.grid`.
        sample_rate: samples a second when the plan was made.

    Channels are averaged; other rates are resampled by a windowed sinc. What is missing is filled with
    silence, what is too much is cut off.

    Raises:
        MediaError: it cannot be decoded, or gives no sample.
    """
    planned_s = int(grid[2]) / sample_rate
    limit = rule.limit_s
    sound, rate = read_mono(blob, limit_s=planned_s * 1.25 + 1 if limit is None else limit)
    differs = abs(sound.size / rate - planned_s) / planned_s
    sound = resample(sound, rate, SPECTRUM_RATE)
    kept = -(-int(grid[2]) * SPECTRUM_RATE // sample_rate)
    return audio_features(fitted(sound, kept), rule, grid), differs


def audio_features(sound: Floats, rule: AudioRule, grid: Sequence[int]) -> dict[str, NDArray[Any]]:
    """What the encoder takes, of sound at `SPECTRUM_RATE`; the features always fit ``grid``.

    Returns:
        ``WhisperFrames``: ``input_features`` float32[windows, mels, frames of a window] and
        ``feature_attention_mask`` int64 of [windows, frames of a window]. ``TokensPerSecond``:
        ``audio_features`` float32[frames, mels] and ``audio_lengths`` int64[1].
    """
    windows, frames = int(grid[0]), int(grid[1])
    if isinstance(rule, WhisperFrames):
        per_window = rule.window_frames
        parts = fitted(sound, windows * per_window * HOP).reshape(windows, -1)
        heard = frames - np.arange(windows)[:, None] * per_window
        return {
            "input_features": np.stack([log_mel(part, rule.mels) for part in parts]),
            "feature_attention_mask": (np.arange(per_window) < heard).astype(np.int64),
        }
    spectrum = log_mel(fitted(sound, frames * HOP), rule.mels)
    return {"audio_features": np.ascontiguousarray(spectrum.T), "audio_lengths": np.array([frames], np.int64)}


def read_mono(blob: Blob, *, limit_s: float = math.inf) -> tuple[Floats, int]:
    """[samples] the mean of all channels, and samples a second; reading stops at ``limit_s`` seconds.

    It is read block by block: a file's own word on its length is never allocated for.
    """
    with opened(blob) as file, open_sound(file) as sound:
        limit = limit_s * sound.samplerate
        blocks, held = [np.zeros(0, np.float32)], 0
        try:
            while held < limit:
                block = sound.read(READ_BLOCK, dtype="float32", always_2d=True)
                if block.shape[0] == 0:
                    break
                blocks.append(block.mean(axis=1))
                held += block.shape[0]
        except RuntimeError as error:  # soundfile's own error is one
            raise MediaError(f"it cannot be decoded ({error})") from None
        if held == 0:
            raise MediaError("it gives no samples")
        return np.concatenate(blocks)[: int(limit) if limit_s < math.inf else held], int(sound.samplerate)


def fitted(sound: Floats, size: int) -> Floats:
    """[size] the sound, cut or filled with silence at its end."""
    if sound.size >= size:
        return sound[:size]
    return np.concatenate([sound, np.zeros(size - sound.size, np.float32)])


def resample(sound: Floats, rate: int, target: int) -> Floats:
    """[ceil(samples x target / rate)] the sound at ``target`` samples a second.

    Polyphase: a Kaiser-windowed sinc, `ZEROS` crossings on each side of the lower rate, one row of taps
    for each fraction of a sample that occurs. Cost: O(samples x taps).
    """
    if rate == target:
        return sound
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    taps = filter_taps(up, down)
    half = taps.shape[1] // 2
    size = -(-sound.size * up // down)
    padded = np.concatenate([np.zeros(half, np.float32), sound, np.zeros(taps.shape[1], np.float32)])
    out = np.empty(size, np.float32)
    _kernels.filter_phases(padded, taps, down, out)
    return out


@functools.lru_cache(maxsize=16)
def filter_taps(up: int, down: int) -> Floats:
    """[up, width] taps for each phase; every row sums to 1, so that a constant stays one."""
    cut = min(1.0, up / down) * ROLLOFF  # of the input's Nyquist frequency
    half = math.ceil(ZEROS / cut)
    # distance of input sample k from output phase p, in input samples
    away = np.arange(-half, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = np.i0(KAISER * np.sqrt(np.clip(1 - (away / (half + 1)) ** 2, 0, 1))) / np.i0(KAISER)
    taps = cut * np.sinc(cut * away) * window
    return np.ascontiguousarray(taps / taps.sum(axis=1, keepdims=True), np.float32)


def log_mel(sound: Floats, mels: int = 80) -> Floats:
    """[mels, samples // HOP] log spectrogram as Whisper's encoder takes it.

    Frames of 25 ms, every 10 ms, Hann window, the ends mirrored; power on the Slaney mel scale; base-10
    logarithm not more than 8 below the loudest, moved to about -1..1. Source: Radford et al., arXiv
    2212.04356, and transformers' feature extractor.
    """
    padded = np.pad(sound, FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][:-1]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)
    waves = np.fft.rfft(frames * window, axis=1)
    power = (waves.real**2 + waves.imag**2).astype(np.float32)  # [frames, bins]
    bands = mel_filters(mels).astype(np.float32) @ power.T
    spectrum = np.log10(np.maximum(bands, np.float32(1e-10)))
    spectrum = np.maximum(spectrum, spectrum.max() - 8)
    return np.ascontiguousarray((spectrum + 4) / 4, np.float32)


@functools.lru_cache(maxsize=4)
def mel_filters(mels: int) -> NDArray[np.float64]:
    """[mels, FFT // 2 + 1] triangles on Slaney's mel scale (linear to 1 kHz, then logarithmic), of equal
    area.
    """
    top = 15 + 27 * math.log(SPECTRUM_RATE / 2000) / math.log(6.4)
    at = np.linspace(0, top, mels + 2)
    edges = np.where(at < 15, at * 200 / 3, 1000 * np.exp(math.log(6.4) / 27 * (at - 15)))
    bins = np.linspace(0, SPECTRUM_RATE / 2, FFT // 2 + 1)
    rise = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rise, fall))
    return np.asarray(triangles * (2 / (edges[2:] - edges[:-2]))[:, None])
