"""Who adds the gradients up, as a Trainer is told: the ranks, by a strategy, or the servers of a store."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

from samegrad.errors import ConfigurationError
from samegrad.parallel.world import World
from samegrad.strategy import Strategy

if TYPE_CHECKING:
    from samegrad.kvstore import KVStore

__all__ = ["AddedUp", "strategy_of"]

AddedUp: TypeAlias = "Strategy | str | KVStore | None"
"""A strategy, its name, a store whose servers add up, or None for what is fastest."""


def strategy_of(said: AddedUp, world: World, shards: int, update: str) -> tuple[Strategy | None, World]:
    """The strategy, None if nothing is said; and the world of this rank, in which sums are those of the servers if it
    is a store. Raises ConfigurationError for what is no strategy, and for a store that is of no use here."""
    if said is None or isinstance(said, Strategy | str):
        return None if said is None else Strategy.of(said), world
    if update != "replicated":
        raise ConfigurationError(
            f"update={update!r} shares parameters within a host, but a store gives every rank the whole gradient. Use "
            f"update='replicated', which gives the same result"
        )
    from samegrad.kvstore.exchange import StoreGroup, check_store  # here: most runs do without

    check_store(said, world.rank, world.size, shards)
    return Strategy("servers"), dataclasses.replace(world, group=StoreGroup(world.group, said))
