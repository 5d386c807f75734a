"""What the timelines of all ranks say of a step: what it consists of, what was hidden, who was slow. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samegrad.timeline.spans import Lane, Timeline
from samegrad.units import format_seconds

__all__ = ["TimelineSummary", "summary_of"]

_SLOW = 1.1
"""A rank that computes for so many times as long as the median of the others is called slow."""


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """Medians over the steps that were recorded; seconds of a step.

    compute_s, waiting_s, exchange_s: of each rank. Waiting is what a rank does when it has computed all and gradients
        are still on their way, or when it needs values of others to compute on; it is no part of computing. Exchanges
        may go on beside computing.
    hidden: which part of the exchange went on while the same rank computed, 0 to 1, over all ranks; None without any.
    slowest: the rank that computes longest. slow_by: its time of computing divided by the median of the others'.
    left_out: spans for which there was no room.
    """

    steps: int
    step_s: float
    compute_s: tuple[float, ...]
    waiting_s: tuple[float, ...]
    exchange_s: tuple[float, ...]
    hidden: float | None
    slowest: int | None
    slow_by: float
    left_out: int

    @property
    def is_uneven(self) -> bool:
        """Whether one rank is so slow that the others wait for it."""
        return self.slow_by >= _SLOW

    def sentence(self) -> str:
        """In words, for people."""
        if not self.steps:
            return "no step was recorded"
        words = [f"{self.steps} step{'s' * (self.steps != 1)} of {format_seconds(self.step_s)}"]
        if self.hidden is not None:
            words.append(f"{self.hidden:.0%} of the exchange was hidden behind computing")
        if self.slowest is not None:
            words.append(
                f"rank {self.slowest} was slow: it computed {self.slow_by:.2f} times as long as the others"
                if self.is_uneven
                else "no rank was slow"
            )
        return "; ".join(words)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TimelineSummary:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
        }
        return cls(**values)


def summary_of(timelines: Sequence[Timeline]) -> TimelineSummary:
    """The summary of a job from the timelines of its ranks, by rank."""
    ranks = [_Rank.of(timeline) for timeline in timelines]
    compute = tuple(_median(rank.compute) for rank in ranks)
    exchange = sum(sum(rank.exchange) for rank in ranks)
    slowest, slow_by = None, 1.0
    if len(ranks) > 1 and min(compute) > 0:
        slowest = max(range(len(ranks)), key=compute.__getitem__)
        slow_by = compute[slowest] / statistics.median(compute[:slowest] + compute[slowest + 1 :])
    return TimelineSummary(
        steps=min(len(rank.steps) for rank in ranks),
        step_s=_median([seconds for rank in ranks for seconds in rank.steps]),
        compute_s=compute,
        waiting_s=tuple(_median(rank.waiting) for rank in ranks),
        exchange_s=tuple(_median(rank.exchange) for rank in ranks),
        hidden=sum(sum(rank.hidden) for rank in ranks) / exchange if exchange else None,
        slowest=slowest,
        slow_by=slow_by,
        left_out=sum(timeline.left_out for timeline in timelines),
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """Seconds, step by step."""

    steps: list[float]
    compute: list[float]
    waiting: list[float]
    exchange: list[float]
    hidden: list[float]

    @classmethod
    def of(cls, timeline: Timeline) -> _Rank:
        """A rank, from its spans."""
        steps = [(each.start_ns, each.stop_ns) for each in timeline.spans if each.lane == "step"]
        found = cls([], [], [], [], [])
        lanes = {lane: _joined(_of_lane(timeline, lane)) for lane in ("compute", "waiting", "exchange")}
        for start, stop in _joined(steps):
            inside = {lane: _within(parts, start, stop) for lane, parts in lanes.items()}
            found.steps.append((stop - start) / 1e9)
            computing = _without(inside["compute"], inside["waiting"])
            found.compute.append(_length(computing))
            found.waiting.append(_length(inside["waiting"]))
            found.exchange.append(_length(inside["exchange"]))
            both = (_within(inside["exchange"], *part) for part in computing)
            found.hidden.append(sum(map(_length, both)))
        return found


_Parts = list[tuple[int, int]]


def _of_lane(timeline: Timeline, lane: Lane) -> Iterable[tuple[int, int]]:
    return ((each.start_ns, each.stop_ns) for each in timeline.spans if each.lane == lane)


def _joined(parts: Iterable[tuple[int, int]]) -> _Parts:
    """What is covered by `parts`, in order, without overlap."""
    joined: _Parts = []
    for start, stop in sorted(parts):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _within(parts: _Parts, start: int, stop: int) -> _Parts:
    first = bisect.bisect_right(parts, start, key=lambda part: part[1])
    last = bisect.bisect_left(parts, stop, key=lambda part: part[0])
    return [(max(a, start), min(b, stop)) for a, b in parts[first:last]]


def _without(parts: _Parts, others: _Parts) -> _Parts:
    """What of `parts` none of `others` covers."""
    left: _Parts = []
    for start, stop in parts:
        for a, b in _within(others, start, stop):
            if a > start:
                left.append((start, a))
            start = b
        if stop > start:
            left.append((start, stop))
    return left


def _length(parts: _Parts) -> float:
    return sum(b - a for a, b in parts) / 1e9


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
