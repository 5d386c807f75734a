"""`plan`: every way to train on a topology, with the time of a step, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from samegrad.errors import ConfigurationError, TopologyError
from samegrad.planner.bucketing import Bucket, bucketing
from samegrad.planner.candidates import candidates, hosts_of
from samegrad.planner.exchange_times import ExchangeTimes, Way
from samegrad.planner.forecast import Forecast, Limit, Plan
from samegrad.planner.reasons import advice, explanation, limit_of
from samegrad.planner.step_time import Computing, computing_of, exchanged
from samegrad.planner.workload import Workload
from samegrad.recipe import Recipe
from samegrad.topology.graph import Topology

__all__ = ["MOST_DEVICES", "plan"]

MOST_DEVICES = 1024
"""More would take minutes."""

_SMALL = 5e6  # bytes of gradients that are cut into halves and eighths
_BUCKET_BYTES = (25e6, 5e6, 1e6)
_PIECES = (1, 4, 16)
_PLAIN = (1, None)  # pieces, and bytes of a bucket
_TRIED = 4  # strategies whose gradients are cut, for other numbers of devices: the fastest ones without
_POINTS = 8  # of the curve, between one device and all


def plan(
    workload: Workload,
    topology: Topology,
    recipe: Recipe | None = None,
    devices: int | None = None,
    *,
    overlap: bool = False,
) -> Plan:
    """Which way of adding up gradients is the fastest on the first `devices` devices, and how fast that is.

    recipe: its batch size, shards, and whether it is exact count; `Recipe()` if None.
    devices: all if None, but at most one for each shard; at most 1,024.
    overlap: False has all gradients exchanged at once, after backward, as by ranks that share memory. True has buckets
        exchanged while backward goes on, as by ranks that send; sizes of buckets and pipelines are tried, too.

    Raises ConfigurationError if there are not so many devices or shards, TopologyError if no way has the
    routes it needs.
    """
    if not isinstance(workload, Workload) or not isinstance(topology, Topology):
        raise ConfigurationError(
            "plan: expected a Workload and a Topology, as Workload.known(...) and Topology.preset(...); got "
            f"{type(workload).__name__} and {type(topology).__name__}"
        )
    recipe = recipe or Recipe()
    there = len(topology.devices)
    count = min(there, recipe.shards) if devices is None else devices
    if not isinstance(count, int) or not 1 <= count <= there:
        raise ConfigurationError(f"plan: devices must be from 1 to {there}, those of {topology.name}; got {devices!r}")
    if count > MOST_DEVICES:
        raise ConfigurationError(
            f"plan: all ways over {count} devices would take too long to simulate; plan for {MOST_DEVICES} at most "
            f"(--devices {MOST_DEVICES}), or look at single ways with samegrad simulate"
        )
    most = min(there, recipe.shards, MOST_DEVICES)
    made = _Planning(workload, recipe, ExchangeTimes(topology, recipe.shards), overlap)
    forecasts = made.ranked(count)
    curve = made.curve(forecasts[0], _numbers(most, count, hosts_of(topology, most)))
    limit = made.limit(forecasts[0]) if count > 1 else None
    return Plan(
        workload,
        topology.name,
        recipe,
        count,
        overlap,
        made.computing(1).seconds,
        forecasts,
        curve,
        limit,
        explanation(forecasts[0], limit),
        advice(topology, recipe, count, devices is None, curve),
        made.times.error,
    )


class _Planning:
    """What does not change over the ways and numbers of devices."""

    def __init__(self, workload: Workload, recipe: Recipe, times: ExchangeTimes, overlap: bool) -> None:
        self.times = times
        self._workload, self._recipe, self._overlap = workload, recipe, overlap
        self._computing: dict[int, Computing] = {}
        self._buckets: dict[float | None, tuple[Bucket, ...]] = {}
        nbytes = workload.nbytes
        sizes = _BUCKET_BYTES if nbytes > _SMALL else (nbytes / 2, nbytes / 8)
        for size in (None, *sizes) if overlap else (None,):  # sizes that make different buckets
            made = bucketing(workload.gradients, size)
            if made not in self._buckets.values():
                self._buckets[size] = made

    def computing(self, devices: int) -> Computing:
        """What so many devices compute in a step."""
        if devices not in self._computing:
            self._computing[devices] = computing_of(self._workload, self._recipe, devices)
        return self._computing[devices]

    def ranked(self, devices: int, like: Forecast | None = None) -> tuple[Forecast, ...]:
        """The forecasts of all strategies, the fastest first; with overlap also with buckets and pipelines, those of
        `like` if given."""
        ways = [Way(strategy, devices) for strategy in candidates(self.times.topology, devices, self._recipe.exact)]
        found, problems = [], []
        for way in ways:
            try:
                found.append(self._forecast(way, None))
            except TopologyError as error:  # a way between devices that have no route to each other
                problems.append(error)
        if not found:
            raise problems[0]
        found.sort(key=_speed)
        if self._overlap and devices > 1:
            for plain in tuple(found) if like is None else found[:_TRIED]:
                if self._least_step_s(plain) <= min(each.step_s for each in found):
                    if like is None:
                        found += self._cut(plain, list(self._buckets), _PIECES)
                    else:
                        found += self._cut(plain, [like.bucket_bytes], [like.pieces])
        return tuple(sorted(found, key=_speed))

    def _cut(self, plain: Forecast, sizes: Sequence[float | None], numbers: Sequence[int]) -> list[Forecast]:
        """`plain` with buckets of each of `sizes`, in each of `numbers` of pieces, as long as more of them are faster;
        but for `plain` itself."""
        found: list[Forecast] = []
        best = math.inf
        for pieces in numbers:
            way = Way(plain.strategy, plain.devices, pieces)
            self.times.fit(way, [bucket.nbytes for size in sizes for bucket in self._buckets[size]])
            made = [plain if (pieces, size) == _PLAIN else self._forecast(way, size) for size in sizes]
            found += [each for each in made if each is not plain]
            fastest = min(each.step_s for each in made)
            if fastest >= best:
                break
            best = fastest
        return found

    def curve(self, fastest: Forecast, numbers: Sequence[int]) -> tuple[Forecast, ...]:
        """The fastest way for each of `numbers` devices among which there is one; `fastest` for its own."""
        found = []
        for number in numbers:
            if number == fastest.devices:
                found.append(fastest)
            else:
                with suppress(TopologyError):
                    found.append(self.ranked(number, like=fastest)[0])
        return tuple(found)

    def _least_step_s(self, plain: Forecast) -> float:
        """What no buckets and no pipeline make faster."""
        seconds = self.times.least_seconds(Way(plain.strategy, plain.devices), self._workload.nbytes)
        computing = self.computing(plain.devices)
        return computing.seconds + max(0.0, seconds - computing.last_backward_s)

    def limit(self, found: Forecast) -> Limit | None:
        """What the exchange of the largest bucket of `found` waits for, and what faster links would give."""
        way = Way(found.strategy, found.devices, found.pieces)
        sizes = [bucket.nbytes for bucket in self._buckets[found.bucket_bytes]]

        def step_s(times: ExchangeTimes) -> float:
            times.fit(way, sizes)
            seconds = self._forecast(way, found.bucket_bytes, times).step_s
            self.times.error = max(self.times.error, times.error)
            return seconds

        return limit_of(self.times, way, max(sizes), step_s)

    def _forecast(self, way: Way, bucket_bytes: float | None, times: ExchangeTimes | None = None) -> Forecast:
        times = times or self.times
        computing = self.computing(way.devices)
        buckets = self._buckets[bucket_bytes] if way.devices > 1 else ()
        found = exchanged(computing, buckets, lambda nbytes: times.seconds(way, nbytes), self._overlap)
        step_s = computing.seconds + found.exposed_s
        return Forecast(
            way.strategy,
            way.devices,
            bucket_bytes,
            way.pieces,
            computing.seconds,
            found.seconds,
            found.seconds - found.exposed_s,
            found.exposed_s,
            step_s,
            self._recipe.batch_size / step_s,
            self.computing(1).seconds / (way.devices * step_s),
            times.traffic(way),
        )


def _speed(forecast: Forecast) -> tuple[float, int]:
    """Sorts by time, and simple ways before others that are as fast but for rounding."""
    return float(f"{forecast.step_s:.9g}"), forecast.pieces


def _numbers(most: int, count: int, hosts: list[int]) -> list[int]:
    """For which numbers of devices the curve has a point: all, or powers of two, whole hosts, and `count`."""
    if most <= _POINTS:
        return list(range(1, most + 1))
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, hosts[0], count, most})
