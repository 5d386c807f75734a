"""How long strategies take on a topology, simulated as seldom as is needed."""

from __future__ import annotations

import bisect
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

    Without latencies and times per message, time is proportional to bytes, so one simulation tells all. Else, between
    two sizes for which that has been found to be as good as a simulation, time is taken to be linear; `error` is the
    largest relative difference that was found there.
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
        guess, is_good = known.guess(nbytes)
        return guess if guess is not None and is_good else self._simulate(way, nbytes)

    def _simulate(self, way: Way, nbytes: float) -> float:
        """Also says whether the time is linear around there."""
        known = self._known.setdefault(way, _Known())
        if nbytes in known.sizes:
            return known.seconds[known.sizes.index(nbytes)]
        guess, _ = known.guess(nbytes)
        found = self.simulation(way, nbytes).seconds
        difference = None if guess is None else abs(guess - found) / found if found else 0.0
        known.add(nbytes, found, is_good=difference is not None and difference <= _TOLERANCE)
        if difference is not None and difference <= _TOLERANCE:
            self.error = max(self.error, difference)
        return found

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
    """Times of some sizes, sorted; and whether those between a size and the next one may be taken as linear."""

    def __init__(self) -> None:
        self.sizes: list[float] = []
        self.seconds: list[float] = []
        self._is_good: list[bool] = []

    def guess(self, nbytes: float) -> tuple[float | None, bool]:
        at = bisect.bisect_left(self.sizes, nbytes)
        if at < len(self.sizes) and self.sizes[at] == nbytes:
            return self.seconds[at], True
        if not 0 < at < len(self.sizes):
            return None, False
        part = (nbytes - self.sizes[at - 1]) / (self.sizes[at] - self.sizes[at - 1])
        return self.seconds[at - 1] * (1 - part) + self.seconds[at] * part, self._is_good[at - 1]

    def add(self, nbytes: float, seconds: float, is_good: bool = False) -> None:
        at = bisect.bisect_left(self.sizes, nbytes)
        self.sizes.insert(at, nbytes)
        self.seconds.insert(at, seconds)
        self._is_good.insert(at, is_good)
        if at > 0:
            self._is_good[at - 1] = is_good
