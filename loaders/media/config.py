"""What a user says of a data set's media."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType

from loaders.batches.joins import Join
from loaders.media.checks import check_amounts, check_counts
from loaders.media.expand import Placeholder
from loaders.media.headers import MAX_IMAGE_PIXELS
from loaders.media.images import Look
from loaders.media.positions import POSITIONS
from loaders.media.processor import ProcessorRule
from loaders.media.rules import AudioRule, ImageRule, VideoGrid
from packing.checks import check_choice, nearest

KINDS = ("image", "audio", "video")
PHASE_OF = MappingProxyType({"image": "vision", "video": "vision", "audio": "audio"})
"""The encoder that computes a kind: what the planner calls its phase."""
OVERSIZE = ("keep", "error", "drop", "drop_media", "shrink")
MISMATCH = ("repair", "drop", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaKind:
    """Media of one kind: where they lie and what they become."""

    column: str
    """Of the source: one medium, a list of them, or null."""
    token: int
    """Its placeholder in ``input_ids``, one for each medium."""
    rule: ImageRule | AudioRule | VideoGrid | ProcessorRule
    wrap: tuple[int, int] | None = None
    """Tokens just before and behind the placeholder, which go when the medium is dropped."""

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise ValueError(f"MediaKind.column must name the column of the media, got {self.column!r}.")
        check_counts(self, ("token",), least=0)
        if not hasattr(self.rule, "keys") or isinstance(self.rule, Mapping):
            raise TypeError(
                "MediaKind.rule must say what media become, such as PatchGrid(), Tiles(), WhisperFrames() or "
                f"VideoGrid(), got {self.rule!r}."
            )
        if self.wrap is not None and not (
            isinstance(self.wrap, tuple | list)
            and len(self.wrap) == 2
            and all(isinstance(token, Integral) and token >= 0 for token in self.wrap)
        ):
            raise ValueError(
                f"MediaKind.wrap must be the ids of the tokens before and behind, or None, got {self.wrap!r}."
            )

    @property
    def placeholder(self) -> Placeholder:
        """The token, with its wrap."""
        return Placeholder(self.token, self.wrap)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRules:
    """How samples with media are counted, decoded and, where they cannot be used, replaced."""

    image: MediaKind | None = None
    audio: MediaKind | None = None
    video: MediaKind | None = None

    positions: str = "1d"
    """``"1d"``: the loader's own; ``"mrope"``, ``"text+mrope"``: see `loaders.media.positions`."""
    tokens_per_second: float | None = None
    """Temporal positions of a second of video (Qwen2.5-VL: 2); ``None``: one for each temporal patch."""
    advance: str = "all"
    """How text goes on behind media, see `axis_positions`."""

    indices: bool = False
    """Whether batches carry ``image_index`` and its like: for each token the number of its feature among
    those of the micro-batch, -1 for text. A rank that shares its sequences has only some of the tokens,
    and so needs it."""

    max_tokens: int | None = None
    """Tokens a sample may have."""
    max_units: Mapping[str, int] = field(default_factory=dict)
    """Patches and frames a sample may have, ``{"vision": 5000}``."""
    oversize: str = "keep"
    """A sample above one of these limits: ``"error"``; ``"drop"`` it; ``"drop_media"``: leave media out
    from its end on, with their features, until it fits; ``"shrink"``: give its pictures fewer pixels
    (`PatchGrid`), and drop it if that is not enough. ``"keep"``: no limits. A medium is never cut."""

    on_bad: str = "error"
    """A medium that cannot be read: ``"error"``, or ``"skip"`` its sample."""
    max_bad: int | float = 0.1
    """Samples that may be skipped, as a number or a share, in each process."""
    quarantine: str | None = None
    """A file that skipped samples are written to, as JSON lines."""
    on_mismatch: str = "repair"
    """A medium that decodes to something else than its header said, beyond ``tolerance``: ``"repair"``
    fits it to the plan; ``"drop"`` keeps the sample's place but trains nothing; ``"error"``. All are
    counted."""
    tolerance: float = 0.02
    """Share of sound or frames that may be missing or too many; that is corrected in any case, and
    counted."""

    look: Look = field(default_factory=Look)
    """How pixel values are scaled."""
    max_image_pixels: int = MAX_IMAGE_PIXELS
    """Pictures that declare more are refused before anything is allocated."""

    def __post_init__(self) -> None:
        if not self.kinds():
            raise ValueError("MediaRules needs at least one of image, audio and video.")
        for name, value, allowed in (
            ("positions", self.positions, POSITIONS),
            ("oversize", self.oversize, OVERSIZE),
            ("on_bad", self.on_bad, ("error", "skip")),
            ("on_mismatch", self.on_mismatch, MISMATCH),
            ("advance", self.advance, ("all", "space")),
        ):
            if value in allowed:
                continue
            why = ""
            if name == "oversize" and value in ("split", "truncate"):
                why = " A sample with media cannot be cut: placeholders and features would no longer match."
            raise ValueError(
                f"{name} must be one of {', '.join(allowed)}, it is {value!r}."
                f"{why or nearest(value, allowed)}"
            )
        self._check_numbers()
        limited = self.max_tokens is not None or bool(self.max_units)
        if limited == (self.oversize == "keep"):
            raise ValueError(
                "max_tokens or max_units and oversize belong together: say what a sample may have and what "
                "becomes of a larger one."
            )
        tokens = [kind.token for kind in self.kinds().values()]
        if len(set(tokens)) < len(tokens):
            raise ValueError(f"each kind of media needs a placeholder token of its own, they are {tokens}.")

    def _check_numbers(self) -> None:
        if not isinstance(self.max_units, Mapping):
            raise TypeError(f"max_units must be a dict such as {{'vision': 5000}}, got {self.max_units!r}.")
        if self.max_tokens is not None:
            check_counts(self, ("max_tokens",))
        for name, most in self.max_units.items():
            check_choice("each name in max_units", name, self.phases())
            if isinstance(most, bool) or not isinstance(most, Integral) or most < 0:
                raise ValueError(f"max_units must be whole numbers of at least 0, {name!r} has {most!r}.")
        check_counts(self, ("max_image_pixels",))
        check_amounts(self, ("tolerance",), zero=True)
        if self.tokens_per_second is not None:
            check_amounts(self, ("tokens_per_second",))
        share = isinstance(self.max_bad, float) and 0.0 <= self.max_bad <= 1.0
        count = isinstance(self.max_bad, int) and not isinstance(self.max_bad, bool) and self.max_bad >= 0
        if not share and not count:
            raise ValueError(
                f"max_bad must be a whole number of samples or a share from 0.0 to 1.0, got {self.max_bad!r}."
            )
        if not isinstance(self.look, Look):
            raise TypeError(f"look must be a Look(mean=..., std=...), got {self.look!r}.")

    def kinds(self) -> dict[str, MediaKind]:
        """The kinds there are, by name."""
        found = {"image": self.image, "audio": self.audio, "video": self.video}
        return {name: kind for name, kind in found.items() if kind is not None}

    def placeholders(self) -> dict[str, Placeholder]:
        """By kind."""
        return {name: kind.placeholder for name, kind in self.kinds().items()}

    def phases(self) -> tuple[str, ...]:
        """Encoders that work on these media."""
        return tuple(sorted({PHASE_OF[name] for name in self.kinds()}))

    def joins(self) -> dict[str, Join]:
        """How the features of samples become the batch's."""
        keys = [key for kind in self.kinds().values() for key in kind.rule.keys]
        joins = dict.fromkeys(keys, Join(axis=0))
        if self.tokens_per_second is None:
            joins.pop("second_per_grid_ts", None)
        if self.positions != "1d":
            joins["position_ids"] = Join(axis=-1, per_token=True)
        for name in self.kinds() if self.indices else ():
            joins[f"{name}_index"] = Join(axis=-1, per_token=True, fill=-1, running=True)
        return joins
