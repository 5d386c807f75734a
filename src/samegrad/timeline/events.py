"""Timelines as Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samegrad.timeline.spans import LANES, Timeline

__all__ = ["trace_events"]


def trace_events(timelines: Sequence[Timeline], names: Sequence[str]) -> dict[str, Any]:
    """In the JSON Object Format of the Trace Event Format: a process for each rank, called by its name, with a row for
    each kind of span; microseconds since the first span."""
    begin = min((each.start_ns for timeline in timelines for each in timeline.spans), default=0)
    events: list[dict[str, Any]] = []
    for rank, timeline in enumerate(timelines):
        label = {"ph": "M", "pid": rank}
        events.append({**label, "name": "process_name", "args": {"name": names[rank]}})
        for row, lane in enumerate(LANES):
            events.append({**label, "tid": row, "name": "thread_name", "args": {"name": lane}})
            events.append({**label, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}})
        events += (
            {
                "name": each.name,
                "cat": each.lane,
                "ph": "X",
                "pid": rank,
                "tid": LANES.index(each.lane),
                "ts": (each.start_ns - begin) / 1e3,
                "dur": (each.stop_ns - each.start_ns) / 1e3,
                "args": dict(each.arguments),
            }
            for each in timeline.spans
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
