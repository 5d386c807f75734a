"""From a strategy to an exchange that is ready to run, for the ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from samegrad.executors import Exchange, Group
from samegrad.executors.base import FlatSizes
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.world import native_group
from samegrad.schedules import Cut, verify
from samegrad.strategy import Strategy, default_strategy

__all__ = ["in_place_strategy", "prepare_exchange"]


def in_place_strategy(group: Group) -> Strategy:
    """What is used where nothing is said, for sums that may stay where they are made."""
    return default_strategy(group.size, in_place=isinstance(group, SharedMemoryGroup))


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
