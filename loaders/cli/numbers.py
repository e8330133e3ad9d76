"""Numbers as people write them."""

from __future__ import annotations

import re

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_amount(text: str) -> int:
    """``2048``, ``32k``, ``32Ki``, ``1.5GiB``. Raises ValueError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?i?)b?\s*", text.lower())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{text!r} is not an amount; write 2048, 32k, 32Ki or 1.5GiB")
    return int(float(found[1]) * UNITS[found[2]]) if "." in found[1] else int(found[1]) * UNITS[found[2]]


def parse_list(text: str) -> tuple[int, ...]:
    """Amounts, comma-separated."""
    return tuple(parse_amount(part) for part in text.split(",") if part.strip())
