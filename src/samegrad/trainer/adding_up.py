"""Who adds the gradients up, as a Trainer is told: the ranks, by a strategy, or the servers of a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from samegrad.errors import ConfigurationError
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.strategy import Strategy
from samegrad.trainer.step import Learner, Place, ShardedStep

if TYPE_CHECKING:
    from samegrad.kvstore import KVStore
    from samegrad.trainer.free_step import FreeStep

__all__ = ["AddedUp", "step_of", "strategy_of"]

AddedUp: TypeAlias = "Strategy | str | KVStore | None"
"""A strategy, its name, a store whose servers add up, or None for what is fastest."""


def strategy_of(said: AddedUp, world: World, recipe: Recipe, update: str) -> tuple[Strategy | None, World]:
    """The strategy, None if nothing is said; and the world of this rank, in which sums are those of the servers if it
    is a store, and the recipe is synchronous. Raises ConfigurationError for what is no strategy, for a store that is of
    no use here, and for a recipe that needs one."""
    if recipe.consistency != "sync" and (said is None or isinstance(said, Strategy | str)):
        raise ConfigurationError(
            f"recipe: consistency {recipe.consistency!r} needs servers that update. Give Trainer(strategy=store) a "
            f"KVStore of that mode, or samegrad train --servers or --server-addresses"
        )
    if said is None or isinstance(said, Strategy | str):
        return None if said is None else Strategy.of(said), world
    if update != "replicated":
        raise ConfigurationError(
            f"update={update!r} shares parameters within a host, but a store gives every rank the whole gradient. Use "
            f"update='replicated', which gives the same result"
        )
    from samegrad.kvstore.exchange import StoreGroup, check_store  # here: most runs do without

    check_store(said, world.rank, world.size, recipe)
    if recipe.consistency != "sync":
        return Strategy("servers"), world
    return Strategy("servers"), dataclasses.replace(world, group=StoreGroup(world.group, said))


def step_of(
    said: AddedUp,
    learner: Learner,
    place: Place,
    owned_by: Sequence[Sequence[int]] | None,
    stop_wanted: Callable[[], bool],
) -> ShardedStep | FreeStep:
    """The steps of `learner`, as the recipe's consistency wants them."""
    if place.recipe.consistency == "sync":
        return ShardedStep(learner, place, owned_by, stop_wanted)
    from samegrad.trainer.free_step import FreeStep  # here: most runs do without

    assert said is not None
    assert not isinstance(said, Strategy | str)
    return FreeStep(learner, place, said, stop_wanted)
