"""Which strategy the ranks at hand take: the fastest one, predicted from what was measured, or from a topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from samegrad.errors import ConfigurationError, TopologyError
from samegrad.planner.candidates import candidates, label, ways_of_hosts
from samegrad.schedules import Cut, build_for
from samegrad.simulator.placed import simulate
from samegrad.simulator.shared_host import Addition, SharedHost, SharedWork, Work
from samegrad.simulator.survey import first_devices
from samegrad.strategy import Strategy, default_strategy
from samegrad.topology.graph import Topology
from samegrad.units import format_seconds

__all__ = ["Choice", "HostWays", "chosen", "link_times", "owners_work", "usual_choice"]

_CLEARLY = 1.05
"""So many times as fast another strategy must be to replace the usual one: less may be an error of the measurement."""

_EQUALLY = 1.001


@dataclass(frozen=True, slots=True)
class Choice:
    """strategy: what is taken. reason: why, in words. seconds: of an exchange by each strategy, predicted, the fastest
    first; empty where nothing was predicted."""

    strategy: Strategy
    reason: str
    seconds: tuple[tuple[Strategy, float], ...] = ()

    @property
    def exchange_s(self) -> float | None:
        """Seconds of an exchange by the strategy that is taken; None where that is not known."""
        return next((seconds for strategy, seconds in self.seconds if strategy == self.strategy), None)


class HostWays:
    """The strategies for ranks that share the memory of one host, which hold the ranges `held` of `leaves` shards, and
    what each makes the ranks do with gradients of `nbytes` bytes. Of strategies that come to the same, the first stays.

    exact: only those that follow the tree. given: this strategy alone.
    """

    def __init__(
        self, held: Sequence[range], leaves: int, nbytes: float, exact: bool, given: Strategy | None = None
    ) -> None:
        usual = default_strategy(len(held))
        wanted = [usual, *ways_of_hosts([len(held)], exact)] if given is None else [given]
        self.works: dict[Strategy, SharedWork] = {}
        for strategy in wanted:
            with suppress(ConfigurationError):  # it does not fit this cut
                work = SharedWork.of(strategy.schedule(held, leaves), nbytes)
                if work not in self.works.values():
                    self.works[strategy] = work

    def seconds(self, host: SharedHost) -> dict[Strategy, float]:
        """Of an exchange by each."""
        return {strategy: host.seconds(work) for strategy, work in self.works.items()}


def owners_work(held: Sequence[range], leaves: int, parts: Sequence[int]) -> SharedWork:
    """What ranks do of which number r needs the sum of its own `parts[r]` bytes only, which it keeps to itself."""
    schedule = build_for("sharded", Cut.of(held, leaves), "reduce-scatter")
    work = SharedWork.of(replace(schedule, weights=tuple(parts)), sum(parts), in_private=False)
    return replace(work, levels=tuple(tuple(map(_kept, works)) for works in work.levels))


def _kept(work: Work) -> Work:
    """With the sum in memory of the rank: in that of its contribution, where nothing else is added."""
    if not work:
        return work
    *others, (kind, nbytes) = work
    read, _, _ = kind.partition(" > ")
    return (*others, Addition(f"{read} > {'private' if others else 'own'}", nbytes))


def link_times(
    topology: Topology, held: Sequence[range], leaves: int, nbytes: float, exact: bool
) -> dict[Strategy, float]:
    """Seconds of an exchange by each strategy that there is for the first devices of `topology`, one for each rank; the
    usual strategy first.

    Raises ConfigurationError if it has fewer devices than there are ranks, TopologyError if no strategy has routes.
    """
    ranks = len(held)
    if len(topology.devices) < ranks:
        raise ConfigurationError(
            f"topology: {topology.name} has {len(topology.devices)} devices, but there are {ranks} ranks; give one "
            f"with a device for each (--topology)"
        )
    part = first_devices(topology, ranks)
    found: dict[Strategy, float] = {}
    problems: list[Exception] = []
    for strategy in dict.fromkeys([default_strategy(ranks), *candidates(topology, ranks, exact)]):
        try:
            found[strategy] = simulate(strategy.schedule(held, leaves), part, nbytes).seconds
        except (TopologyError, ConfigurationError) as error:  # no route, or it does not fit this cut
            problems.append(error)
    if not found:
        raise problems[0]
    return found


def chosen(seconds: Mapping[Strategy, float], where: str) -> Choice:
    """The fastest strategy, or the first one if that is about as fast.

    where: what the prediction is for, in words.
    """
    ranked = tuple(sorted(seconds.items(), key=lambda each: each[1]))
    (usual, its), (best, least) = next(iter(seconds.items())), ranked[0]
    taken = best if its > least * _CLEARLY else usual
    how = "the fastest" if seconds[taken] <= least * _EQUALLY else "about as fast as the fastest"
    reason = f"predicted to be {how} of {len(ranked)} ways {where}"
    others = [(strategy, its) for strategy, its in ranked if strategy != taken]
    if others:
        reason += f": {format_seconds(seconds[taken])} for an exchange, {label(others[0][0])} "
        reason += format_seconds(others[0][1])
    return Choice(taken, reason, ranked)


def usual_choice(ranks: int, reason: str) -> Choice:
    """What is taken where nothing can be predicted."""
    return Choice(default_strategy(ranks), reason)
