"""What the user chose for one packing run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from packing import STRATEGIES
from packing.checks import check_choice

FORMATS = ("parquet", "arrow", "megatron", "plan")
OVERSIZE = ("error", "drop", "truncate", "truncate_left", "split")
COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
PLACEMENT = frozenset({"output", "workers", "memory_bytes"})
"""Fields that have no influence on a single byte of the output."""

DEFAULT_COLUMNS = (
    "input_ids",
    "position_ids",
    "labels",
    "seq_lengths",
    "source_ids",
    "row_ids",
    "row_starts",
)
EXTRA_COLUMNS = ("padded_lengths", "cu_seqlens", "cu_seqlens_padded", "sample_numbers", "loss_mask")


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How rows of text become tokens; without ``tokenizer`` rows already hold ids."""

    tokenizer: str | None = None
    text: str = "text"
    prompt: str = "prompt"
    completion: str = "completion"
    messages: str = "messages"
    chat_template: str | None = None
    eos: str | None = None


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """One run. Equal settings and equal inputs give equal bytes, whatever `PLACEMENT` says."""

    inputs: tuple[str, ...]
    output: str
    max_tokens: tuple[int, ...]
    strategy: str = "best_fit"
    oversize: str = "error"
    max_samples: int | None = None
    align: int = 1
    seed: int = 0
    format: str = "parquet"
    compression: str = "zstd"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    position_start: int = 0
    pad_id: int = 0
    column: str = "input_ids"
    labels: str | bool | None = None
    carry: tuple[str, ...] = ()
    vocab_size: int | None = None
    text: TextSettings = TextSettings()
    keep_unlabelled: bool = False
    strict: bool = False
    max_rejects: float = 0.05
    window_tokens: int = 16 << 20
    workers: int = 1
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is read."""
        check_choice("format", self.format, FORMATS)
        check_choice("oversize", self.oversize, OVERSIZE)
        check_choice("compression", self.compression, COMPRESSIONS)
        check_choice("strategy", self.strategy, tuple(STRATEGIES))
        for column in self.columns:
            check_choice("columns", column, DEFAULT_COLUMNS + EXTRA_COLUMNS)
        if not self.inputs:
            raise ValueError("no inputs: give at least one path, pattern or URL")
        if not self.max_tokens or min(self.max_tokens) < 1 or max(self.max_tokens) > 2**31 - 1:
            given = ", ".join(map(str, self.max_tokens))
            raise ValueError(f"max_tokens must be 1..2147483647, it is {given or 'not given'}")
        if len(set(self.max_tokens)) < len(self.max_tokens):
            raise ValueError(f"max_tokens names a value twice: {self.max_tokens}")
        if self.align < 1 or self.workers < 1 or self.window_tokens < 1:
            raise ValueError("align, workers and window_tokens must be at least 1")
        if not 0 <= self.max_rejects <= 1:
            raise ValueError(f"max_rejects is a share of the rows, 0..1; it is {self.max_rejects}")
        _no_effect(self)

    def identity(self) -> str:
        """Digest of all that has an influence on the output."""
        kept = {key: value for key, value in self.as_dict().items() if key not in PLACEMENT}
        return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists
        return plain

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Names of the settings that differ, of those that matter."""
        mine = self.as_dict()
        names = [field.name for field in fields(self) if field.name not in PLACEMENT]
        return [
            f"{name} (then {other.get(name)}, now {mine[name]})"
            for name in names
            if mine[name] != other.get(name)
        ]

    def window(self, max_tokens: int) -> int:
        """Tokens packed together: at least 512 packs' worth, so that a half-empty last pack costs 0.2 %."""
        return max(self.window_tokens, 512 * max_tokens)


def _no_effect(settings: PackSettings) -> None:
    """An option that does nothing is refused rather than passed over."""
    if settings.format == "megatron":
        if settings.columns != DEFAULT_COLUMNS or settings.carry:
            raise ValueError(
                "format megatron holds token ids and borders only: columns and carry have no effect"
            )
        if settings.align > 1:
            raise ValueError("format megatron has no padding inside a pack: align must be 1")
    if settings.format == "plan" and (settings.columns != DEFAULT_COLUMNS or settings.carry):
        raise ValueError("a plan holds row numbers only: columns and carry have no effect")
    if settings.format == "plan" and settings.text.tokenizer:
        raise ValueError("a plan points at token ids in the source, so it cannot be made with a tokenizer")
    if settings.strategy == "balanced" and settings.oversize == "split":
        raise ValueError("strategy balanced packs whole samples: choose another than oversize split")
    if settings.text.chat_template and not settings.text.tokenizer:
        raise ValueError("a chat template has no effect without a tokenizer")
    if settings.text.eos and not settings.text.tokenizer:
        raise ValueError(
            "eos names a token, which only a tokenizer can look up: give --tokenizer, or leave it out"
        )
    if settings.text != TextSettings() and not settings.text.tokenizer:
        raise ValueError("columns of text have no effect without a tokenizer")
    if settings.align > min(settings.max_tokens):
        raise ValueError(
            f"align must not exceed max_tokens, or no sample would fit: it is {settings.align} with "
            f"{min(settings.max_tokens)} tokens"
        )
    if settings.format != "parquet" and settings.compression != "zstd":
        raise ValueError(f"compression has no effect on format {settings.format}")


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """Columns by name, comma-separated; names with a plus are added to the default ones."""
    if text is None:
        return DEFAULT_COLUMNS
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"columns names no column: {text!r}")
    if all(name.startswith("+") for name in names):
        return tuple(dict.fromkeys((*DEFAULT_COLUMNS, *(name[1:] for name in names))))
    return tuple(names)
