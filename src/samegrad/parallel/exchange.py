"""From a strategy to an exchange that is ready to run, for the ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors import Exchange, Group
from samegrad.executors.base import FlatSizes
from samegrad.parallel.world import native_group
from samegrad.schedules import Cut, verify
from samegrad.strategy import Strategy, default_strategy

__all__ = ["check_strategy", "prepare_exchange"]


def prepare_exchange(
    group: Group,
    strategy: Strategy | None,
    cut: Sequence[range],
    leaves: int,
    sizes: FlatSizes,
    operation: str,
    out: Sequence[Tensor] | None = None,
) -> Exchange:
    """A sum over `leaves` shards, of which rank r of `group` holds the range `cut[r]`, by `strategy`; see `Executor`.

    strategy: the one that is fastest on one host if None. Raises ConfigurationError where it cannot be used.
    """
    strategy = strategy or default_strategy(group.size)
    if strategy.is_native:
        return native_group(group).prepare_native(Cut.of(cut, leaves), sizes, operation, out)
    schedule = strategy.schedule(cut, leaves)
    verify(schedule, must_follow_tree=strategy.follows_tree)
    return group.prepare(schedule, sizes, operation, out)


def check_strategy(strategy: Strategy, exact: bool) -> None:
    """Raises ConfigurationError for a strategy whose bits depend on the number of ranks, if the recipe is `exact`."""
    if exact and not strategy.follows_tree:
        raise ConfigurationError(
            f"strategy: {strategy.algorithm} adds in an order that depends on the number of devices, and so does the "
            f"result; the recipe says that it must not. Allow it (--inexact, Recipe(exact=False)), or take a strategy "
            f"that adds along the tree: sharded, one-shot or halving-doubling, for example"
        )
