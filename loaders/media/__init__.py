"""Images, audio and video in samples: counted from headers, decoded after planning.

Nothing here imports Pillow, soundfile, av or transformers before a medium of that kind is touched.
"""

from loaders.media.config import MediaKind, MediaRules
from loaders.media.errors import MediaError
from loaders.media.images import Look
from loaders.media.processor import ProcessorRule
from loaders.media.rules import FixedImage, PatchGrid, Tiles, TokensPerSecond, VideoGrid, WhisperFrames

__all__ = [
    "FixedImage",
    "Look",
    "MediaError",
    "MediaKind",
    "MediaRules",
    "PatchGrid",
    "ProcessorRule",
    "Tiles",
    "TokensPerSecond",
    "VideoGrid",
    "WhisperFrames",
]
