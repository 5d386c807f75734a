"""What each rank contributes to a collective: nodes of the tree over the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from samegrad.errors import ConfigurationError
from samegrad.shards import Node, height, leaves_of, subtrees

__all__ = ["MOST_LEAVES", "Contribution", "Cut"]

MOST_LEAVES = 1 << 20
"""More would take minutes to look at one by one, and no batch is cut so fine."""


class Contribution(NamedTuple):
    """A node of the tree, and the rank and slot that hold its sum at the start."""

    node: Node
    rank: int
    slot: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The nodes that each rank holds of the tree over `leaves` leaves; the j-th node of a rank is in its slot j.

    Together the nodes cover every leaf exactly once. A rank may hold none: a host that only adds, a server.
    """

    leaves: int
    nodes: tuple[tuple[Node, ...], ...]

    def __post_init__(self) -> None:
        if not 1 <= self.leaves <= MOST_LEAVES or not self.nodes:
            raise ConfigurationError(
                f"a cut needs at least one leaf and one rank, and at most {MOST_LEAVES} leaves; got {self.leaves} "
                f"leaves, {len(self.nodes)} ranks"
            )
        for rank, nodes in enumerate(self.nodes):
            for node in nodes:
                inside = 0 <= node.level <= height(self.leaves) and node.number >= 0
                if not inside or not leaves_of(node, self.leaves):
                    raise ConfigurationError(
                        f"rank {rank} holds {node}, which is not in a tree over {self.leaves} leaves"
                    )
        holders: dict[int, int] = {}
        for node, rank, _ in self.contributions():
            for leaf in leaves_of(node, self.leaves):
                if leaf in holders:
                    raise ConfigurationError(
                        f"leaf {leaf} is held by rank {holders[leaf]} and by rank {rank}; a leaf has one holder"
                    )
                holders[leaf] = rank
        if len(holders) < self.leaves:
            missing = next(leaf for leaf in range(self.leaves) if leaf not in holders)
            raise ConfigurationError(f"leaf {missing} of {self.leaves} is held by no rank")

    @classmethod
    def equal(cls, ranks: int, helpers: int = 0) -> Cut:
        """One leaf for each of `ranks` ranks, and `helpers` more ranks that hold none."""
        if not 1 <= ranks <= MOST_LEAVES or not 0 <= helpers <= MOST_LEAVES:
            raise ConfigurationError(
                f"a collective needs at least one rank; got {ranks}, and {helpers} helpers; of both there are at most "
                f"{MOST_LEAVES}"
            )
        return cls(ranks, (*((Node(0, rank),) for rank in range(ranks)), *[()] * helpers))

    @classmethod
    def of(cls, held: Sequence[range], leaves: int, helpers: int = 0) -> Cut:
        """The whole subtrees in the range of leaves that each rank holds; `helpers` more ranks hold none."""
        return cls(leaves, (*(tuple(subtrees(part, leaves)) for part in held), *[()] * helpers))

    @property
    def ranks(self) -> int:
        """How many ranks take part, those without leaves included."""
        return len(self.nodes)

    @property
    def holders(self) -> list[int]:
        """The ranks that hold something, and so want the result."""
        return [rank for rank, nodes in enumerate(self.nodes) if nodes]

    @property
    def is_equal(self) -> bool:
        """Whether each rank that holds something holds one leaf."""
        return all(len(nodes) == 1 for nodes in self.nodes if nodes) and self.leaves == len(self.holders)

    def contributions(self) -> list[Contribution]:
        """Everything that is held, by the leaves from left to right."""
        held = [
            Contribution(node, rank, slot) for rank, nodes in enumerate(self.nodes) for slot, node in enumerate(nodes)
        ]
        return sorted(held, key=lambda each: each.node.number << each.node.level)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"leaves": self.leaves, "nodes": [[list(node) for node in nodes] for nodes in self.nodes]}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Cut:
        """The inverse of `to_json`. Raises ValueError for what are no whole numbers."""
        numbers = [record["leaves"], *(value for nodes in record["nodes"] for node in nodes for value in node)]
        if any(type(value) is not int for value in numbers):
            raise ValueError("a cut has something else than whole numbers")
        return cls(int(record["leaves"]), tuple(tuple(Node(*node) for node in nodes) for nodes in record["nodes"]))
