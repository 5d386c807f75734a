"""How long strategies take on a topology, simulated as seldom as is needed."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

from samegrad.schedules.compose import pipelined
from samegrad.schedules.ir import Schedule
from samegrad.shards import shares
from samegrad.simulator.placed import PlacedSchedule
from samegrad.simulator.simulation import Simulation
from samegrad.strategy import Strategy
from samegrad.topology.graph import Topology

__all__ = ["ExchangeTimes", "Way"]

_TOLERANCE = 5e-3
_FEW = 6  # sizes, of which all are simulated


class Way(NamedTuple):
    """A strategy over the first `devices` devices, with the buffer in so many pieces that follow each other."""

    strategy: Strategy
    devices: int
    pieces: int = 1


class ExchangeTimes:
    """Seconds of exchanges on `topology`, of gradients of a minibatch in `shards` shards; the schedules are those that
    a trainer runs.

    Without latencies and times per message, time is proportional to bytes, so one simulation tells all. Else, time is
    taken to be linear between two simulated sizes where the lines through the next two on either side say the same;
    `error` is the largest relative difference between such lines where something was interpolated.
    """

    def __init__(self, topology: Topology, shards: int) -> None:
        self.topology = topology
        self.error = 0.0
        self._shards = shards
        self._proportional = not topology.latencies.any() and not topology.per_messages.any()
        self._held: dict[int, list[range]] = {}
        self._schedules: dict[Way, Schedule] = {}
        self._placed: dict[Way, PlacedSchedule] = {}
        self._known: dict[Way, _Known] = {}
        self._traffic: dict[Way, float] = {}
        self._busy: dict[Way, float] = {}

    def fit(self, way: Way, sizes: Iterable[float]) -> None:
        """Simulates the smallest, the largest and three of `sizes` in between: as many as it takes to see whether all
        are on a line."""
        ordered = sorted(set(sizes))
        if self._proportional or len(ordered) < _FEW:
            return
        last = len(ordered) - 1
        for place in (0, last, last // 2, last // 4, last - last // 4):
            self._simulate(way, ordered[place])

    def seconds(self, way: Way, nbytes: float) -> float:
        """Of an exchange of `nbytes` bytes."""
        known = self._known.setdefault(way, _Known())
        if self._proportional:
            if not known.sizes:
                known.add(nbytes, self.simulation(way, nbytes).seconds)
            return known.seconds[0] * nbytes / known.sizes[0]
        guess, doubt = known.guess(nbytes)
        if doubt > _TOLERANCE:
            return self._simulate(way, nbytes)
        self.error = max(self.error, doubt)
        return guess

    def _simulate(self, way: Way, nbytes: float) -> float:
        known = self._known.setdefault(way, _Known())
        if nbytes not in known.sizes:
            known.add(nbytes, self.simulation(way, nbytes).seconds)
        return known.seconds[known.sizes.index(nbytes)]

    def least_seconds(self, way: Way, nbytes: float) -> float:
        """What its busiest link needs for the bytes that pass it, whatever the buckets and pieces."""
        key = way._replace(pieces=1)
        if key not in self._busy:
            self._busy[key] = float(self.simulation(key, nbytes).busy.max(initial=0.0)) / nbytes
        return self._busy[key] * nbytes

    def on(self, topology: Topology) -> ExchangeTimes:
        """Those on another topology with the same devices."""
        others = ExchangeTimes(topology, self._shards)
        others._schedules, others._traffic = self._schedules, self._traffic
        return others

    def simulation(self, way: Way, nbytes: float) -> Simulation:
        """The exchange itself."""
        if way not in self._placed:
            self._placed[way] = PlacedSchedule(self.schedule(way), self.topology)
        return self._placed[way].simulate(nbytes)

    def traffic(self, way: Way) -> float:
        """Bytes that the busiest rank sends, as a multiple of the buffer; it grows with the subtrees of the ranks."""
        if way not in self._traffic:
            plain = way._replace(pieces=1)
            self._traffic[way] = float(max(self.schedule(plain).costs().sent))
        return self._traffic[way]

    def schedule(self, way: Way) -> Schedule:
        """What is run. Raises ConfigurationError if the shards are too few for the devices, or the way fits not."""
        if way not in self._schedules:
            if way.pieces > 1:
                made = pipelined(self.schedule(way._replace(pieces=1)), way.pieces)
            else:
                if way.devices not in self._held:
                    self._held[way.devices] = shares(self._shards, way.devices)
                made = way.strategy.schedule(self._held[way.devices], self._shards)
            self._schedules[way] = made
        return self._schedules[way]


class _Known:
    """Times of some sizes, sorted.

    A time that waits for the latest of several things bends upwards where another one becomes the latest: above the
    lines through the neighbours, below the one between them. So where these lines are near each other, so is the time.
    """

    def __init__(self) -> None:
        self.sizes: list[float] = []
        self.seconds: list[float] = []

    def guess(self, nbytes: float) -> tuple[float, float]:
        """On the line between the sizes around `nbytes`; and how far, relative to that, lines through the next two
        sizes on either side are from it: infinitely if there are none."""
        at = bisect.bisect_left(self.sizes, nbytes)
        if at < len(self.sizes) and self.sizes[at] == nbytes:
            return self.seconds[at], 0.0
        if not 0 < at < len(self.sizes):
            return 0.0, math.inf
        guess = self._on_line(at - 1, nbytes)
        others = [self._on_line(each, nbytes) for each in (at - 2, at) if 0 <= each < len(self.sizes) - 1]
        doubts = [abs(guess - other) / guess if guess else 0.0 for other in others]
        return guess, max(doubts, default=math.inf)

    def _on_line(self, first: int, nbytes: float) -> float:
        """What the line through size number `first` and the next one says."""
        part = (nbytes - self.sizes[first]) / (self.sizes[first + 1] - self.sizes[first])
        return self.seconds[first] * (1 - part) + self.seconds[first + 1] * part

    def add(self, nbytes: float, seconds: float) -> None:
        at = bisect.bisect_left(self.sizes, nbytes)
        self.sizes.insert(at, nbytes)
        self.seconds.insert(at, seconds)
