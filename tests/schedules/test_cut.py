"""What ranks contribute: every leaf once, in the slots of its holder."""

from __future__ import annotations

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Contribution, Cut
from samegrad.shards import Node, leaves_of


def test_contributions_stand_from_left_to_right() -> None:
    cut = Cut.of([range(3), range(3, 6), range(6, 8)], 8, helpers=1)
    assert cut.contributions() == [
        Contribution(Node(1, 0), 0, 0),
        Contribution(Node(0, 2), 0, 1),
        Contribution(Node(0, 3), 1, 0),
        Contribution(Node(1, 2), 1, 1),
        Contribution(Node(1, 3), 2, 0),
    ]
    assert cut.ranks == 4
    assert cut.holders == [0, 1, 2]


@pytest.mark.parametrize("ranks", range(1, 10))
def test_every_leaf_is_held_once(ranks: int) -> None:
    for cut in cuts_of(ranks, helpers=2):
        held = [leaf for node, _, _ in cut.contributions() for leaf in leaves_of(node, cut.leaves)]
        assert held == list(range(cut.leaves))
        assert Cut.from_json(cut.to_json()) == cut


@pytest.mark.parametrize(
    ("leaves", "nodes", "message"),
    [
        (0, ((),), "at least one leaf and one rank, .* got 0 leaves, 1 ranks"),
        (1, (), "got 1 leaves, 0 ranks"),
        (2, ((Node(0, 0),),), "leaf 1 of 2 is held by no rank"),
        (2, ((Node(1, 0),), (Node(0, 1),)), "leaf 1 is held by rank 0 and by rank 1"),
        (2, ((Node(1, 0), Node(0, 2)),), "which is not in a tree over 2 leaves"),
        (2, ((Node(0, -1),),), "which is not in a tree over 2 leaves"),
        (2, ((Node(10**9, 0),),), "which is not in a tree over 2 leaves"),
        (10**12, ((Node(40, 0),),), "at most 1048576 leaves; got 1000000000000"),
        (2, ((Node(-1, 0),),), "which is not in a tree over 2 leaves"),
    ],
)
def test_what_is_no_cut(leaves: int, nodes: tuple[tuple[Node, ...], ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Cut(leaves, nodes)
