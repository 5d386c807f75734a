"""The one table of the algorithms, and how a schedule is made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samegrad.errors import ConfigurationError
from samegrad.nearest import meant
from samegrad.schedules.binomial_tree import binomial_tree
from samegrad.schedules.cut import Cut
from samegrad.schedules.double_binary_tree import double_binary_tree
from samegrad.schedules.halving_doubling import halving_doubling
from samegrad.schedules.hierarchical import hierarchical
from samegrad.schedules.host import host
from samegrad.schedules.ir import Collective, Schedule
from samegrad.schedules.one_device import one_device
from samegrad.schedules.one_shot import one_shot
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.recursive_doubling import recursive_doubling
from samegrad.schedules.ring import ring
from samegrad.schedules.rings import rings, two_way_rings
from samegrad.schedules.servers import servers
from samegrad.schedules.sharded import sharded
from samegrad.schedules.two_way_ring import two_way_ring
from samegrad.schedules.verify import Proof, verify

__all__ = ["ALGORITHMS", "MOST_RANKS", "Algorithm", "algorithm", "build", "build_for", "proved"]


MOST_RANKS = 1 << 15
"""A schedule for more takes too long to be proved."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to aggregate, for any cut.

    follows_tree: whether it adds along the tree over the leaves, so that the bits do not depend on the number of ranks.
    helpers: ranks without leaves that it has when only the number of the others is given.
    phases: builds it. All builders have this one signature, so that whoever calls them need not know which one it is;
        those of algorithms that take no options ignore theirs, which are empty.
    takes: the fields of `Options` that it knows; others are refused before `phases` is called.
    """

    name: str
    summary: str
    follows_tree: bool
    phases: Callable[[Cut, Options], Phases]
    helpers: int = 0
    takes: tuple[str, ...] = ()


ALGORITHMS: dict[str, Algorithm] = {
    each.name: each
    for each in [
        Algorithm("one-device", "one device gathers, sums and sends back", True, one_device),
        Algorithm("host", "the host gathers, sums and sends back", True, host, helpers=1),
        Algorithm("one-shot", "everyone gets everything and sums it", True, one_shot),
        Algorithm("sharded", "each device sums one part of the buffer", True, sharded),
        Algorithm("halving-doubling", "pairs exchange halves, then pairs of pairs quarters", True, halving_doubling),
        Algorithm("binomial-tree", "pairs, then pairs of pairs, whole buffers", True, binomial_tree),
        Algorithm("hierarchical", "within groups, then between them", True, hierarchical, takes=("groups", "ways")),
        Algorithm("servers", "parameter servers sum one part each", True, servers, helpers=1, takes=("share",)),
        Algorithm("ring", "every device sends to the next one", False, ring),
        Algorithm("two-way-ring", "a ring used in both directions", False, two_way_ring),
        Algorithm("rings", "several rings at once", False, rings, takes=("orders", "speeds")),
        Algorithm("two-way-rings", "several rings, both ways", False, two_way_rings, takes=("orders", "speeds")),
        Algorithm("recursive-doubling", "pairs exchange everything, at distances 1, 2, 4", False, recursive_doubling),
        Algorithm("double-binary-tree", "two trees, half of the buffer in each", False, double_binary_tree),
    ]
}


def algorithm(name: str) -> Algorithm:
    """The algorithm called `name`. Raises ConfigurationError, with the nearest name, if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    raise ConfigurationError(
        f"there is no algorithm {name!r}{meant(name, ALGORITHMS)} There are {', '.join(ALGORITHMS)}"
    )


def build(
    name: str, ranks: int, helpers: int | None = None, collective: str = "all-reduce", options: Options | None = None
) -> Schedule:
    """The schedule of an algorithm for `ranks` ranks with one leaf each, verified.

    helpers: how many more ranks there are, without leaves: the host, or servers; by default what the algorithm needs.
    Raises ConfigurationError if the algorithm cannot be built for these.
    """
    chosen = algorithm(name)
    return build_for(name, Cut.equal(ranks, chosen.helpers if helpers is None else helpers), collective, options)


def build_for(name: str, cut: Cut, collective: str = "all-reduce", options: Options | None = None) -> Schedule:
    """The schedule of an algorithm for any cut, verified. Raises ConfigurationError if it cannot be built for it."""
    schedule, _ = proved(name, cut, collective, options)
    return schedule


def proved(
    name: str, cut: Cut, collective: str = "all-reduce", options: Options | None = None
) -> tuple[Schedule, Proof]:
    """As `build_for`, with what was found about it."""
    chosen, said = algorithm(name), Options() if options is None else options
    wrong = [field for field in said.given() if field not in chosen.takes]
    if wrong:
        raise ConfigurationError(f"{name} takes no {wrong[0]}; it takes {', '.join(chosen.takes) or 'no options'}")
    kinds = [str(each) for each in Collective]
    if collective not in kinds:
        raise ConfigurationError(f"there is no collective {collective!r}; there are {', '.join(kinds)}")
    if cut.ranks > MOST_RANKS:
        raise ConfigurationError(
            f"{name}: a schedule of {cut.ranks} ranks cannot be proved in a reasonable time; there may be up to "
            f"{MOST_RANKS}"
        )
    schedule = chosen.phases(cut, said).schedule(name, cut, Collective(collective))
    return schedule, verify(schedule, must_follow_tree=chosen.follows_tree)
