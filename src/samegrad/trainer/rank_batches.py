"""Minibatches for loops of one's own: this rank's part of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samegrad.errors import ConfigurationError
from samegrad.parallel.generators import kept_generators
from samegrad.parallel.nested import cut
from samegrad.parallel.world import current_world
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.trainer.examples import epoch_order
from samegrad.trainer.feed import Feed, Group
from samegrad.trainer.loading import Loading

__all__ = ["batches"]

_CPU = torch.device("cpu")


def batches(
    dataset: Any,
    batch_size: int = 256,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    loading: Loading | None = None,
) -> Iterator[tuple[Any, Any]]:
    """This rank's part (X, y) of each global minibatch of `epoch`, one after the other, in host memory.

    The minibatches are those of `Trainer.fit` for a recipe with this batch size, seed and shuffle: exactly
    `batch_size` examples over all ranks, the last one what is left. A minibatch is cut into one contiguous part for
    each rank, as even as possible, larger ones first; nothing is padded and no example is seen twice. So parts may
    differ by one example. All ranks make the same number of steps: where the last minibatch has fewer examples than
    there are ranks, X and y of the others have no rows.

    dataset: of pairs (X, y), map-style or iterable; see `Trainer.fit`. What an example draws from the global
    generators depends on (seed, epoch, example) alone; the caller's generators are left alone. All ranks make the same
    calls. Raises ConfigurationError for arguments that cannot work.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("epoch", epoch, 0), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigurationError(f"batches: {name} must be a whole number of at least {least}; got {value!r}")
    recipe = Recipe(batch_size=batch_size, shards=1, seed=seed, shuffle=shuffle)
    return _batches(dataset, recipe, epoch, loading)


def _batches(dataset: Any, recipe: Recipe, epoch: int, loading: Loading | None) -> Iterator[tuple[Any, Any]]:
    world = current_world()
    rank, ranks = world.rank, world.size

    def parts(_: int, examples: int) -> dict[int, range]:
        return {0: even(examples, ranks)[rank] or range(min(examples, 1))}  # of one, no row is taken below

    with Feed(dataset, recipe, world, world.device, recipe.batch_size, parts, "batches", loading) as feed:
        length = feed.length
        order = None if length is None else epoch_order(recipe, length, epoch)
        groups = feed.in_stream(epoch) if order is None else feed.in_order(order, epoch)
        while True:
            with kept_generators(_CPU):
                group = next(groups, None)
                if group is None:
                    return
                batch = _own(group, len(even(group.examples, ranks)[rank]))
            yield batch


def _own(group: Group, examples: int) -> tuple[Any, Any]:
    batch: tuple[Any, Any] = group.get(0)
    return batch if examples else cut(batch, range(0), 1)
