"""Inputs that several packing tests draw from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packing import STRATEGIES, Packs, pack

NAMES = sorted(STRATEGIES)


@st.composite
def lengths_and_cap(draw, most_samples=60, most_tokens=200):
    """Lengths of 0..cap, sometimes with few distinct values, and the cap."""
    cap = draw(st.integers(1, most_tokens))
    values = st.integers(0, cap)
    if draw(st.booleans()):
        values = st.sampled_from(draw(st.lists(values, min_size=1, max_size=4)))
    return draw(st.lists(values, max_size=most_samples)), cap


def packed(name: str, lengths, max_tokens: int, **options) -> Packs:
    """``pack`` with a plain cost where the strategy asks for one."""
    if name == "balanced" and "cost" not in options:
        seconds = np.asarray(lengths, np.float64)
        options["cost"] = seconds + seconds**2 / max(max_tokens, 1)
    return pack(lengths, max_tokens, strategy=name, **options)
