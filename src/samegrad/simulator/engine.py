"""Runs tasks that wait for each other and share links: from event to event, all that happens at one time together.

A task moves bytes along a route; the route takes its latency after the last of them has left. What comes after the task
waits for both; only the next task in the same queue may start when the last byte has left. Tasks that are under way
share what they pass max-min fairly (`sharing`), in proportion to their bytes.

Nothing here knows about ranks, schedules or topologies.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from samegrad.schedules.spans import spread
from samegrad.simulator.sharing import Floats, Integers, fair_rates

__all__ = ["Routes", "Tasks", "Times", "run"]

_SAME_TIME = (
    1e-9  # of the duration of a task: ends that are nearer are one event, since rounding makes such differences
)
_ROUNDING = 1e-12  # of the time that has passed


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Route r passes the resources `passed[starts[r]:starts[r + 1]]`, and delays by `latency[r]` seconds.

    capacity: bytes/s of each resource. A route may pass nothing: then only its latency counts.
    """

    starts: Integers
    passed: Integers
    latency: Floats
    capacity: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Task t moves `nbytes[t]` along `route[t]` (-1: none, it takes no time).

    After it come `after[starts[t]:starts[t + 1]]`, and, without the latency, `next_in_queue[t]` (-1: none).
    """

    route: Integers
    nbytes: Floats
    starts: Integers
    after: Integers
    next_in_queue: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When each task starts and when its last byte has left, in seconds. cause: what it waited for last, or -1."""

    start: Floats
    end: Floats
    cause: Integers


def run(tasks: Tasks, routes: Routes) -> Times:
    """Runs all tasks, which must not wait for each other in a circle."""
    return _Run(tasks, routes).run()


class _Run:
    def __init__(self, tasks: Tasks, routes: Routes) -> None:
        count = len(tasks.route)
        self._tasks, self._routes = tasks, routes
        self._latency = np.append(routes.latency, 0.0)  # the last one is that of route -1
        passes = np.append(np.diff(routes.starts), 0)
        self._instant = (passes[tasks.route] == 0) | (tasks.nbytes <= 0)
        self._start, self._end = np.full(count, np.nan), np.full(count, np.nan)
        self._ready = np.zeros(count)
        self._cause = np.full(count, -1, dtype=np.int64)
        queued = tasks.next_in_queue[tasks.next_in_queue >= 0]
        self._waits_for = np.bincount(np.concatenate([tasks.after, queued]), minlength=count)
        self._place = np.empty(count, dtype=np.int64)
        self._later: list[tuple[float, int, Integers]] = []  # tasks that wait for a latency only
        self._number = itertools.count()
        # The flows under way: task, bytes left at a time, rate since then, and when it ends.
        self._flows = np.empty(0, dtype=np.int64)
        self._left, self._since, self._rate, self._ends = (np.empty(0) for _ in range(4))
        self._load = np.zeros(len(routes.capacity), dtype=np.int64)  # flows through each resource
        self._marked = np.zeros(len(routes.capacity), dtype=bool)
        self._changed: list[Integers] = []  # resources whose flows must share anew

    def run(self) -> Times:
        ready, now = np.flatnonzero(self._waits_for == 0), 0.0
        while True:
            self._begin(ready, now)
            self._share(now)
            if not self._later and not len(self._flows):
                break
            now = min(self._later[0][0] if self._later else np.inf, float(self._ends.min(initial=np.inf)))
            ended = self._take_ended(now)
            ready = np.concatenate([self._take_due(now), self._end_all(ended, now)])
        assert not np.isnan(self._end).any(), "tasks wait for each other in a circle"
        return Times(self._start, self._end, self._cause)

    def _begin(self, ready: Integers, now: float) -> None:
        """Starts tasks, and what can start since some of them take no time."""
        flows = []
        while len(ready):
            self._start[ready] = now
            instant = self._instant[ready]
            flows.append(ready[~instant])
            ready = self._end_all(ready[instant], now) if instant.any() else ready[:0]
        if flows:
            self._add(np.concatenate(flows), now)

    def _end_all(self, ended: Integers, now: float) -> Integers:
        """Notes that tasks have ended; returns those that can start at once, and puts off those that wait for a
        latency."""
        self._end[ended] = now
        starts, stops = self._tasks.starts[ended], self._tasks.starts[ended + 1]
        following = self._tasks.next_in_queue[ended]
        queued = following >= 0
        freed = np.concatenate([self._tasks.after[spread(starts, stops)], following[queued]])
        causes = np.concatenate([np.repeat(ended, stops - starts), ended[queued]])
        if not len(freed):
            return freed
        times = now + self._latency[self._tasks.route[causes]]
        times[len(times) - np.count_nonzero(queued) :] = now
        if times.min() < times.max():
            order = np.argsort(times, kind="stable")
            freed, causes, times = freed[order], causes[order], times[order]
        last = times >= self._ready[freed]
        self._ready[freed[last]], self._cause[freed[last]] = times[last], causes[last]  # of equal indices the last wins
        np.subtract.at(self._waits_for, freed, 1)
        return self._put_off(self._once(freed[self._waits_for[freed] == 0]), now)

    def _once(self, tasks: Integers) -> Integers:
        places = np.arange(len(tasks))
        self._place[tasks] = places
        once: Integers = tasks[self._place[tasks] == places]
        return once

    def _put_off(self, free: Integers, now: float) -> Integers:
        """Returns those that can start now."""
        ready = self._ready[free]
        later = ready > now * (1 + _ROUNDING)
        if not later.any():
            return free
        for time in np.unique(ready[later]):
            heapq.heappush(self._later, (float(time), next(self._number), free[ready == time]))
        return free[~later]

    def _take_due(self, now: float) -> Integers:
        due = [self._flows[:0]]
        while self._later and self._later[0][0] <= now * (1 + _ROUNDING):
            due.append(heapq.heappop(self._later)[2])
        return np.concatenate(due)

    def _take_ended(self, now: float) -> Integers:
        ended = self._ends - now <= _SAME_TIME * (now - self._start[self._flows])
        gone = self._flows[ended]
        if len(gone):
            stay = ~ended
            self._flows, self._left, self._since = self._flows[stay], self._left[stay], self._since[stay]
            self._rate, self._ends = self._rate[stay], self._ends[stay]
            _, freed = self._passed(gone)
            np.subtract.at(self._load, freed, 1)
            self._changed.append(freed[self._load[freed] > 0])
        return gone

    def _add(self, flows: Integers, now: float) -> None:
        if len(flows):
            starts, taken = self._passed(flows)
            np.add.at(self._load, taken, 1)
            self._changed.append(taken[self._load[taken] > 1])
            left = self._tasks.nbytes[flows]
            rate = np.minimum.reduceat(self._routes.capacity[taken], starts[:-1])  # unless something is shared
            self._flows = np.concatenate([self._flows, flows])
            self._left = np.concatenate([self._left, left])
            self._since = np.concatenate([self._since, np.full(len(flows), now)])
            self._rate = np.concatenate([self._rate, rate])
            self._ends = np.concatenate([self._ends, now + left / rate])

    def _share(self, now: float) -> None:
        """New rates for the flows that share something which has changed, and for those that share with these."""
        changed = np.concatenate([*self._changed, self._flows[:0]])
        self._changed = []
        if not len(changed) or not len(self._flows):
            return
        starts, passed = self._passed(self._flows)
        lengths = np.diff(starts)
        self._marked[changed] = True
        reached, affected = -1, np.zeros(0, dtype=bool)
        while int(np.count_nonzero(affected)) > reached:
            reached = int(np.count_nonzero(affected))
            affected = np.logical_or.reduceat(self._marked[passed], starts[:-1])
            self._marked[passed[affected.repeat(lengths)]] = True
        self._marked[passed] = self._marked[changed] = False
        weight = self._tasks.nbytes[self._flows[affected]]
        rates = fair_rates(lengths[affected], passed[affected.repeat(lengths)], self._routes.capacity, weight)
        self._left[affected] -= self._rate[affected] * (now - self._since[affected])
        self._since[affected], self._rate[affected] = now, rates
        self._ends[affected] = now + np.maximum(self._left[affected], 0.0) / rates

    def _passed(self, flows: Integers) -> tuple[Integers, Integers]:
        """What the flows pass, one after the other: where it starts for each, and where all of it ends."""
        route = self._tasks.route[flows]
        starts, stops = self._routes.starts[route], self._routes.starts[route + 1]
        edges = np.zeros(len(flows) + 1, dtype=np.int64)
        (stops - starts).cumsum(out=edges[1:])
        return edges, self._routes.passed[spread(starts, stops)]
