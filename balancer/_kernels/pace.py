"""Time on a rank that is slower or faster than nominal."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel(inline="always")
def at_pace(nominal, pace, unit):
    """``nominal`` nanoseconds at ``pace`` parts of ``unit``, rounded up.

    In two parts, since 141 s on a rank of a thousandth of the speed times 2**16 would pass 64 bits.
    """
    whole = np.int64(nominal) // unit
    return whole * pace + ((nominal - whole * unit) * pace + unit - 1) // unit
