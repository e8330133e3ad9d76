"""Lengths, timelines and degrees as charts, each with a legend and its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loaders.reporting import words
from loaders.reporting.plot import Tick, box, legend, nice_ticks, plot, table, upright
from loaders.reporting.profile import Profile
from loaders.reporting.question import Setting
from loaders.reporting.report import Report


def shade(cp_degree: int, degrees: Sequence[int]) -> str:
    """The class of a degree's colour: the same degree has the same one all over the page."""
    return f"f{min(list(degrees).index(cp_degree), 6)}" if cp_degree in degrees else "out"


def lengths_chart(profile: Profile, setting: Setting) -> str:
    """Shares of samples and of tokens over length, coloured by the degree that holds them."""
    low, high = math.log2(profile.edges[0]), math.log2(max(profile.edges[-1], profile.edges[0] + 1))
    span = high - low
    caps = [(degree, degree * setting.max_tokens) for degree in setting.cp_degrees]
    inside = [(degree, cap) for degree, cap in caps if low < math.log2(cap) < high]
    ticks = _octaves(low, high)
    marks = _spaced([Tick((math.log2(cap) - low) / span, str(degree)) for degree, cap in inside])
    parts = []
    for counts, what in ((profile.bin_samples, "samples"), (profile.bin_tokens, "tokens")):
        shares = counts / max(int(counts.sum()), 1)
        most = float(shares.max(initial=0.0)) * 1.05 or 1.0
        shapes = [
            _bar(profile, number, float(share) / most, low, span, caps, setting.cp_degrees, what)
            for number, share in enumerate(shares)
            if share > 0
        ]
        shapes += [upright((math.log2(cap) - low) / span, "cap") for _, cap in inside]
        parts.append(
            plot(
                "".join(shapes),
                label=f"Histogram of sample lengths: share of {what} in each range, {_shape(profile)}",
                height=150,
                x=ticks,
                y=[Tick(value / most, words.tick_share(value)) for value in nice_ticks(most, 3)[1:]],
                marks=marks,
                y_title=f"share of {what}",
                x_title="length of a sample, tokens",
            )
        )
    entries = [
        (shade(degree, setting.cp_degrees), f"needs {words.many(degree, 'rank')}")
        for degree, count in profile.needed_degree.items()
        if count
    ]
    if profile.refused:
        entries.append(("out", "cannot fit"))
    if inside:
        entries.append(("dashed", f"what {_holders([degree for degree, _ in inside])}"))
    return f"<figure>{''.join(parts)}{legend(entries)}{_lengths_table(profile)}</figure>"


def _holders(degrees: Sequence[int]) -> str:
    """``1 rank holds``, ``1, 2, 4 ranks hold``."""
    if list(degrees) == [1]:
        return "1 rank holds"
    return f"{', '.join(map(str, degrees))} ranks hold"


def _shape(profile: Profile) -> str:
    half = profile.quantiles["p50"]
    return f"half of the samples have at most {half:,} tokens, the longest {profile.longest:,}"


def _bar(
    profile: Profile,
    number: int,
    height: float,
    low: float,
    span: float,
    caps: list[tuple[int, int]],
    degrees: Sequence[int],
    what: str,
) -> str:
    first, past = int(profile.edges[number]), int(profile.edges[number + 1])
    left, right = (math.log2(first) - low) / span, (math.log2(past) - low) / span
    needed = next((degree for degree, cap in caps if first <= cap), 0)
    counts = profile.bin_samples if what == "samples" else profile.bin_tokens
    span_words = f"{first:,} to {past - 1:,} tokens" if past - 1 > first else words.many(first, "token")
    title = f"{span_words}: {words.many(int(counts[number]), what[:-1])}"
    gap = min((right - left) * 0.06, 0.002)
    return box(left + gap, right - left - 2 * gap, 1 - height, height, shade(needed, degrees), title)


def _octaves(low: float, high: float) -> list[Tick]:
    """Powers of four, every other one minor when there are many."""
    powers = [p for p in range(math.ceil(low), math.floor(high) + 1) if p % 2 == 0]
    powers = powers or list(range(math.ceil(low), math.floor(high) + 1))
    crowded = len(powers) > 5
    return [
        Tick((power - low) / (high - low), words.tokens(1 << power), minor=crowded and number % 2 == 1)
        for number, power in enumerate(powers)
    ]


def _spaced(marks: list[Tick]) -> list[Tick]:
    """Marks that are at least a twentieth of the width apart; labels of others would overlap."""
    kept: list[Tick] = []
    for mark in marks:
        if not kept or mark.place - kept[-1].place > 0.05:
            kept.append(mark)
    return kept


def _lengths_table(profile: Profile) -> str:
    rows = [
        [
            f"{first:,} to {past - 1:,}",
            f"{samples:,}",
            words.share(samples / max(profile.samples, 1)),
            words.share(tokens / max(profile.tokens, 1)),
        ]
        for first, past, samples, tokens in zip(
            profile.edges[:-1].tolist(),
            profile.edges[1:].tolist(),
            profile.bin_samples.tolist(),
            profile.bin_tokens.tolist(),
            strict=True,
        )
        if samples
    ]
    return table("Lengths as a table", ["tokens", "samples", "of samples", "of tokens"], rows)


def degrees_chart(report: Report) -> str:
    """What share of samples, tokens, micro-batches and GPU time runs at each degree."""
    allowed = report.question.given.cp_degrees
    columns: dict[str, list[float]] = {
        "samples": [use.samples for use in report.degrees],
        "tokens": [use.tokens for use in report.degrees],
        "micro-batches": [use.micro_batches for use in report.degrees],
        "GPU time": [use.rank_s for use in report.degrees],
    }
    bars = []
    for name, values in columns.items():
        total = sum(values) or 1
        told = ", ".join(
            f"{words.share(value / total)} at degree {use.cp_degree}"
            for value, use in zip(values, report.degrees, strict=True)
        )
        pieces = "".join(
            f'<i class="{shade(use.cp_degree, allowed)}" style="width:{value / total:.4%}" '
            f'title="{words.share(value / total)} at degree {use.cp_degree}"></i>'
            for value, use in zip(values, report.degrees, strict=True)
        )
        bars.append(
            f"<li><span>{name}</span>"
            f'<span class="stack" role="img" aria-label="{name}: {told}">{pieces}</span>'
            "</li>"
        )
    rows = [
        [str(use.cp_degree)]
        + [words.share(values[n] / (sum(values) or 1)) for values in columns.values()]
        + [f"{use.samples:,}", f"{use.micro_batches:,}"]
        for n, use in enumerate(report.degrees)
    ]
    head = ["CP degree", *(f"of {name}" for name in columns), "samples", "micro-batches"]
    entries = [
        (shade(use.cp_degree, allowed), f"degree {use.cp_degree}: {words.many(use.samples, 'sample')}")
        for use in report.degrees
    ]
    return (
        f'<figure><ul class="stacks">{"".join(bars)}</ul>{legend(entries)}'
        f"{table('Degrees as a table', head, rows)}</figure>"
    )
