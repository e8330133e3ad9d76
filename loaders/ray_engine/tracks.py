"""Spans of actors as tracks of a timeline, in Chrome's trace format. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loaders.ray_engine.accounts import Span

PROCESSES = {"wait": "ranks", "build": "builders", "read": "readers"}
"""Process of the trace that spans of a kind belong to; what training waits for comes first."""
_NUMBERS = {name: at for at, name in enumerate(PROCESSES.values(), 1)}


def trace_events(spans: Mapping[str, Sequence[Span]]) -> list[dict[str, Any]]:
    """Chrome's trace events of the spans of each actor.

    Builds of one builder overlap, so each takes the first lane that is free.
    """
    tracks: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    start_s = min((span.start_s for some in spans.values() for span in some), default=0.0)

    def track(process: str, name: str) -> int:
        return tracks.setdefault((process, name), len(tracks) + 1)

    for actor, some in spans.items():
        ends: list[float] = []
        for span in sorted(some, key=lambda span: span.start_s):
            if span.kind == "wait":
                place = track("ranks", span.label)
            elif span.kind == "build":
                place = track("builders", f"{actor}, lane {_lane(ends, span)}")
            else:
                place = track("readers", actor)
            events.append(
                {
                    "ph": "X",
                    "name": span.kind if span.kind == "wait" else span.label,
                    "cat": span.kind,
                    "pid": _NUMBERS[PROCESSES[span.kind]],
                    "tid": place,
                    "ts": (span.start_s - start_s) * 1e6,
                    "dur": span.seconds * 1e6,
                    "args": {"step": span.step},
                }
            )
    return [*_track_names(tracks), *events]


def _track_names(tracks: Mapping[tuple[str, str], int]) -> Iterator[dict[str, Any]]:
    for process in dict.fromkeys(process for process, _ in tracks):
        yield {"ph": "M", "name": "process_name", "pid": _NUMBERS[process], "args": {"name": process}}
    for (process, name), place in tracks.items():
        named = {"ph": "M", "name": "thread_name", "pid": _NUMBERS[process], "tid": place}
        yield named | {"args": {"name": name}}


def _lane(ends: list[float], span: Span) -> int:
    end = span.start_s + span.seconds
    for lane, busy_until in enumerate(ends):
        if busy_until <= span.start_s:
            ends[lane] = end
            return lane
    ends.append(end)
    return len(ends) - 1
