"""How the gradients of the ranks are added up where nobody has said it: what is predicted to be the fastest way here.

Ranks that share memory measure it, others their links, all together and once for each set of gradients. All ranks
compute the same from the same figures, so they agree. The choice changes no bits: strategies follow the tree, unless
the recipe says that they need not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import nn

from samegrad.errors import GroupError
from samegrad.executors.host_rates import measure_host
from samegrad.executors.link_rates import measure_links
from samegrad.executors.process_group import ProcessGroup
from samegrad.machine import usable_cores
from samegrad.memory import host_identity
from samegrad.parallel.world import World
from samegrad.planner.choosing import Choice, HostWays, chosen, link_times, owners_work, usual_choice
from samegrad.recipe import Recipe
from samegrad.simulator.shared_host import SharedHost, SharedWork
from samegrad.strategy import Strategy
from samegrad.topology.graph import Topology

__all__ = ["Summing", "choose", "exchange_seconds"]

_MANY = 32
"""Simulating all ways over more ranks would hold up the start."""


@dataclass(frozen=True, slots=True)
class Summing:
    """What is added up: gradients of `nbytes` bytes of `leaves` shards, of which rank r of `world` holds the range
    `cut[r]`; in an order that depends on the number of ranks only if not `exact`.

    parts: bytes of the sum that each rank needs, where each needs a part of it only; None if all need all of it.
    """

    world: World
    cut: Sequence[range]
    leaves: int
    nbytes: int
    exact: bool
    parts: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        world: World,
        cut: Sequence[range],
        recipe: Recipe,
        model: nn.Module,
        owned_by: Sequence[Sequence[int]] | None,
    ) -> Summing:
        """That of `model`; owned_by: the positions of the parameters whose gradients each rank needs, None for all."""
        nbytes = [parameter.nbytes for parameter in model.parameters()]
        parts = None if owned_by is None else [sum(nbytes[place] for place in own) for own in owned_by]
        return cls(world, cut, recipe.shards, sum(nbytes), recipe.exact, parts)

    @property
    def on_host(self) -> bool:
        """Whether the ranks read each other's memory."""
        return self.world.host is not None and self.world.group is self.world.host


_choices: dict[tuple[object, ...], Choice] = {}


def choose(summing: Summing, topology: Topology | None = None, wanted: Strategy | None = None) -> Choice:
    """The strategy that is `wanted`; else the one that is predicted to be the fastest: on the devices of `topology`, if
    given, else on what is measured now. All ranks call it alike.

    Raises ConfigurationError for a topology with too few devices, TopologyError for one without routes.
    """
    world = summing.world
    if wanted is not None:
        return Choice(wanted, "asked for")
    if world.size == 1:
        return usual_choice(1, "one rank exchanges nothing")
    if summing.parts is not None:
        return Choice(Strategy("sharded"), "each worker sums up the gradients of the parameters that it updates")
    key = (id(world), tuple(summing.cut), summing.nbytes, summing.exact, topology)
    if key not in _choices:
        _choices[key] = _chosen(summing, topology)
    return _choices[key]


def _chosen(summing: Summing, topology: Topology | None) -> Choice:
    size, group, about = summing.world.size, summing.world.group, (summing.cut, summing.leaves, summing.nbytes)
    if topology is not None:
        return chosen(link_times(topology, *about, summing.exact), f"on {topology.name}")
    if size > _MANY:
        return usual_choice(size, f"the usual one of more than {_MANY} ranks")
    if summing.on_host:
        ways = HostWays(*about, summing.exact)
        host = _measured(summing, ways.works.values())
        if host is None and _take_turns(summing):
            return usual_choice(size, f"the usual one where {size} ranks take turns on fewer cores")
        if host is None:
            return usual_choice(size, "the usual one, since there is too little memory to measure anything in it")
        return chosen(ways.seconds(host), "in the memory of this host, as measured")
    if isinstance(group, ProcessGroup):
        hosts = [name.decode() for name in group.gather(host_identity().encode(), "choosing a strategy")]
        return chosen(link_times(measure_links(group, hosts), *about, summing.exact), "over the links measured")
    return usual_choice(size, "the usual one where devices of several kinds go through the memory of the host")


def exchange_seconds(summing: Summing, strategy: Strategy) -> float | None:
    """Seconds of an exchange by `strategy`, predicted from what is measured now. All ranks call it alike. None where
    that is not known: for ranks that do not share memory, or are more than there are cores, and for `native`."""
    if summing.world.size == 1:
        return 0.0
    if not summing.on_host or strategy.is_native:
        return None
    if summing.parts is not None:
        work = owners_work(summing.cut, summing.leaves, summing.parts)
    else:
        ways = HostWays(summing.cut, summing.leaves, summing.nbytes, summing.exact, strategy)
        work = ways.works[strategy]
    host = _measured(summing, [work])
    return None if host is None else host.seconds(work)


def _take_turns(summing: Summing) -> bool:
    """Whether there are more ranks than cores: then it is the scheduler of the system that would be measured."""
    return summing.world.size > usable_cores()


def _measured(summing: Summing, works: Collection[SharedWork]) -> SharedHost | None:
    """None where there is no memory to measure in, or where ranks take turns; all ranks find the same."""
    assert summing.world.host is not None
    if _take_turns(summing):
        return None
    try:
        return measure_host(summing.world.host, works, summing.nbytes)
    except GroupError as error:
        if type(error) is not GroupError:  # a peer has failed
            raise
        return None
