"""The minibatches of an epoch, of which each rank reads its own shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samegrad.errors import ConfigurationError
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.trainer.examples import epoch_order
from samegrad.trainer.feed import Feed, Group
from samegrad.trainer.loading import Loading
from samegrad.trainer.position import Position
from samegrad.trainer.step import Place

__all__ = ["HeldShards", "minibatches", "training_feed"]


@dataclass
class HeldShards:
    """Which parts of a minibatch this rank wants: of its `shards` shards those in `held`, which may change."""

    shards: int
    held: range

    def __call__(self, _: int, examples: int) -> dict[int, range]:
        cut_up = even(examples, self.shards)
        return {shard: cut_up[shard] for shard in self.held}


def training_feed(dataset: Any, place: Place, held: HeldShards, loading: Loading | None) -> Feed:
    """The feed of `dataset` for training; its groups are minibatches, of which this rank gets the shards `held`."""
    recipe = place.recipe
    return Feed(dataset, recipe, place.world, place.device, recipe.batch_size, held, "fit", loading)


def minibatches(feed: Feed, recipe: Recipe, start: Position) -> Iterator[Group]:
    """Those of the epoch that `start` is in, from there on, in the order that `recipe` gives them."""
    if feed.length is None:
        if recipe.consistency != "sync":
            raise ConfigurationError(
                f"fit: an iterable data set is for consistency 'sync', where all ranks read it together; the recipe "
                f"has {recipe.consistency!r}. Give one with a length, and examples by number"
            )
        return feed.in_stream(start.epoch, start.step, start.example)
    return feed.in_order(epoch_order(recipe, feed.length, start.epoch), start.epoch, start.step)
