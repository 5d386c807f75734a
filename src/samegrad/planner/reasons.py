"""Why the fastest way is no faster, and what would be: the links that limit it, and sentences about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from samegrad.planner.candidates import hosts_of, label
from samegrad.planner.exchange_times import ExchangeTimes, Way
from samegrad.planner.forecast import Forecast, Limit
from samegrad.recipe import Recipe
from samegrad.shards import shares, subtrees
from samegrad.topology.graph import Topology
from samegrad.units import format_rate, format_seconds

__all__ = ["advice", "explanation", "limit_of"]

_KINDS = 4  # of links to try, the busiest ones
_CLEARLY = 0.999
_GAIN = 1.005
_WORTH_SAYING = 1.02


def limit_of(times: ExchangeTimes, way: Way, nbytes: float, step_s: Callable[[ExchangeTimes], float]) -> Limit | None:
    """The kind of link that, if it were twice as fast, would make a step fastest; None if no link is used.

    nbytes: of the exchange that is looked at. step_s: the seconds of a step by other times of exchanges.
    """
    links = times.topology.links
    found = times.simulation(way, nbytes)
    busy = found.busy.reshape(-1, 2).max(axis=1)
    groups: dict[tuple[str, float], list[int]] = {}
    for number in np.argsort(-busy, kind="stable"):
        if busy[number] > 0:
            link = links[number]
            groups.setdefault((link.kind, 0.0 if link.kind else link.bandwidth), []).append(int(number))
    best: Limit | None = None
    for (kind, rate), members in list(groups.items())[:_KINDS]:
        faster = tuple(
            replace(link, bandwidth=2 * link.bandwidth) if link.kind == kind and rate in (0.0, link.bandwidth) else link
            for link in links
        )
        seconds = step_s(times.on(replace(times.topology, links=faster)))
        if best is None or seconds < best.faster_step_s * _CLEARLY:
            names = [f"{links[each].a} - {links[each].b}" for each in members if busy[each] >= 0.99 * busy[members[0]]]
            part = float(busy[members[0]]) / found.seconds
            best = Limit(tuple(names), kind, links[members[0]].bandwidth, part, seconds)
    return best


def explanation(fastest: Forecast, limit: Limit | None) -> str:
    """The fastest way in two sentences: what a step consists of, which links limit it, and what faster ones give."""
    computing = f"{format_seconds(fastest.computing_s)} of computing"
    if fastest.devices == 1:
        return f"One device takes {computing} for a step, and exchanges nothing."
    exchange = f"{format_seconds(fastest.exchange_s)} of exchange"
    if fastest.hidden_s > 0:
        exchange += f", of which {format_seconds(fastest.hidden_s)} are hidden behind backward"
    text = (
        f"{label(fastest.strategy)} is the fastest way over {fastest.devices} devices: a step takes "
        f"{format_seconds(fastest.step_s)}, {computing} and {exchange}."
    )
    if limit is None:
        return text
    others = len(limit.links) - 1
    names = limit.links[0] + (f" and {others} more like it" if others else "")
    what = f"{limit.kind}, {format_rate(limit.bandwidth)}" if limit.kind else format_rate(limit.bandwidth)
    text += f" {names} ({what}) {'limit' if others else 'limits'} it, busy for {limit.busy:.0%} of an exchange;"
    gain = fastest.step_s / limit.faster_step_s
    if gain < _GAIN:
        return f"{text} with twice the bandwidth, a step would take as long."
    faster = format_seconds(limit.faster_step_s)
    return f"{text} with twice the bandwidth, a step would take {faster}, {gain:.2f} times as fast."


def advice(
    topology: Topology, recipe: Recipe, devices: int, all_wanted: bool, curve: Sequence[Forecast]
) -> tuple[str, ...]:
    """What speaks against the number of devices or of shards."""
    found = []
    there = len(topology.devices)
    if all_wanted and devices < there:
        found.append(
            f"{recipe.shards} shards can be shared by {devices} devices at most; {topology.name} has {there}. "
            f"--shards {there} (Recipe(shards={there})) would use them all; that is another recipe, with another result"
        )
    held = shares(recipe.shards, devices)
    pieces = sum(len(subtrees(part, recipe.shards)) for part in held)
    if pieces > devices:
        better = next(devices << power for power in range(64) if devices << power >= recipe.shards)
        found.append(
            f"{recipe.shards} shards over {devices} devices: the fullest has {max(map(len, held))}, and {pieces} sums "
            f"of subtrees are exchanged, which is counted above. With --shards {better} (Recipe(shards={better})) all "
            f"have as many, and {devices} sums are exchanged; that is another recipe, with another result"
        )
    found += _other_number(topology, devices, curve)
    return tuple(found)


def _other_number(topology: Topology, devices: int, curve: Sequence[Forecast]) -> list[str]:
    """A sentence if fewer devices, or more, are faster."""
    best = min(curve, key=lambda each: (float(f"{each.step_s:.6g}"), each.devices))
    here = next(each for each in curve if each.devices == devices)
    if best.devices == devices or here.step_s < best.step_s * _WORTH_SAYING:
        return []
    times = f"{format_seconds(best.step_s)} a step instead of {format_seconds(here.step_s)}"
    hosts = hosts_of(topology, devices)
    if best.devices == 1:
        return [f"stay on one device: {times}, since the exchange takes longer than what it saves"]
    if len(hosts) > 1 and best.devices <= hosts[0]:
        return [f"stay on one host: {best.devices} devices take {times} on {devices} devices of {len(hosts)} hosts"]
    return [f"{best.devices} devices are faster: {times}"]
