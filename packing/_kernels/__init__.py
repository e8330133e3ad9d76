"""Bare loops without checks or messages. Importing this package loads numba, so fronts do it on first use."""

from packing._kernels.balanced import deal_cheapest, even_out, fill_tightest
from packing._kernels.best_fit import best_fit
from packing._kernels.deal import (
    deal_grouped,
    deal_ids,
    group_ids,
    run_totals,
    start_cursors,
    sum_by_pack,
)
from packing._kernels.first_fit import first_fit
from packing._kernels.histogram import count_rows, histogram, number_lengths
from packing._kernels.limits import best_fit_limits, next_fit_limits
from packing._kernels.next_fit import next_fit
from packing._kernels.patterns import fractional_packs
from packing._kernels.stream import attach, stream_best_fit

__all__ = [
    "attach",
    "best_fit",
    "best_fit_limits",
    "count_rows",
    "deal_cheapest",
    "deal_grouped",
    "even_out",
    "deal_ids",
    "fill_tightest",
    "first_fit",
    "fractional_packs",
    "group_ids",
    "histogram",
    "number_lengths",
    "next_fit",
    "next_fit_limits",
    "run_totals",
    "start_cursors",
    "stream_best_fit",
    "sum_by_pack",
]
