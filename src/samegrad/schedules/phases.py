"""The two halves of most algorithms, which are collectives of their own: reduce-scatter, and all-gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import ChainedRounds, Collective, Op, Round, Schedule

__all__ = ["Phases", "add_own_slots"]


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """reduce: brings the sum of each chunk to its owner. spread: from there to every rank that holds leaves.

    in_place: as in `Schedule`. is_whole: `reduce` leaves the result with all ranks already, there are no halves.
    """

    chunks: int
    owners: tuple[int, ...]
    reduce: Sequence[Round]
    spread: Sequence[Round]
    weights: tuple[int, ...] | None = None
    in_place: bool = True
    is_whole: bool = False

    def schedule(self, name: str, cut: Cut, collective: Collective) -> Schedule:
        """The whole, or one of the halves. Raises ConfigurationError for what these halves do not make."""
        if self.is_whole and collective is not Collective.ALL_REDUCE:
            raise ConfigurationError(f"{name} has no halves: it makes an all-reduce only, no {collective}")
        if collective in (Collective.REDUCE, Collective.BROADCAST) and len(set(self.owners)) > 1:
            raise ConfigurationError(
                f"{name} leaves each chunk with another rank, so it makes no {collective}; one-device and "
                f"binomial-tree do"
            )
        rounds = {
            Collective.ALL_REDUCE: ChainedRounds([self.reduce, self.spread]),
            Collective.REDUCE_SCATTER: self.reduce,
            Collective.REDUCE: self.reduce,
            Collective.ALL_GATHER: self.spread,
            Collective.BROADCAST: self.spread,
        }[collective]
        owners = None if collective is Collective.ALL_REDUCE else self.owners
        return Schedule(name, collective, cut, self.chunks, rounds, owners, self.weights, self.in_place)


def add_own_slots(name: str, cut: Cut, chunks: int) -> list[Round]:
    """Each rank adds its own subtrees into slot 0, one after the other: the start of what does not follow the tree.

    Raises ConfigurationError if a rank holds nothing.
    """
    idle = next((rank for rank, nodes in enumerate(cut.nodes) if not nodes), None)
    if idle is not None:
        raise ConfigurationError(f"{name}: every rank must hold leaves; rank {idle} holds none")
    rounds = []
    for slot in range(1, max(len(nodes) for nodes in cut.nodes)):
        ranks = [rank for rank, nodes in enumerate(cut.nodes) if len(nodes) > slot for _ in range(chunks)]
        rounds.append(Round.of(ranks, slot, ranks, 0, list(range(chunks)) * (len(ranks) // chunks), Op.ADD))
    return rounds
