"""What ranks do when: `spans` are recorded, `summary` says what a step is made of, `events` are for viewers."""

from __future__ import annotations

from samegrad.timeline.events import trace_events
from samegrad.timeline.spans import LANES, MOST_SPANS, Lane, Span, Timeline, is_recording, open_span, recording, span
from samegrad.timeline.summary import TimelineSummary, summary_of

__all__ = [
    "LANES",
    "MOST_SPANS",
    "Lane",
    "Span",
    "Timeline",
    "TimelineSummary",
    "is_recording",
    "open_span",
    "recording",
    "span",
    "summary_of",
    "trace_events",
]
