"""Numbers as people write them."""

from __future__ import annotations

import re

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
MOST = 2**63 - 1


def parse_amount(text: str, option: str) -> int:
    """``2048``, ``32k``, ``32Ki``, ``1.5GiB``. Raises ValueError that names the option."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?i?)b?\s*", text.lower())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{option} must be an amount such as 2048, 32k, 32Ki or 1.5GiB, got {text!r}.")
    unit = UNITS[found[2]]
    amount = int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if amount > MOST:
        raise ValueError(f"{option} must be below 2^63, got {text}.")
    return amount


def parse_list(text: str, option: str) -> tuple[int, ...]:
    """Amounts, comma-separated."""
    return tuple(parse_amount(part, option) for part in text.split(",") if part.strip())
