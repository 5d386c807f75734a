"""Which examples a minibatch holds, and how they come out of a data set."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from samegrad.errors import ConfigurationError, DataError
from samegrad.keys import generator_key
from samegrad.parallel.generators import seed_generators
from samegrad.recipe import Recipe

__all__ = ["BatchedDataset", "dataset_length", "epoch_order", "fetch"]

_CPU = torch.device("cpu")


@runtime_checkable
class BatchedDataset(Protocol):
    """A data set that gives many examples at once, already collated: the fast way."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """The pair (X, y) of the examples at `indices` (int64), in this order."""
        ...


def dataset_length(dataset: Any) -> int:
    """The number of examples of a map-style data set; ConfigurationError if it has none or no length."""
    if not hasattr(dataset, "__getitem__") and not isinstance(dataset, BatchedDataset):
        advice = "; of a DataLoader give its data set (.dataset), since the recipe decides batches and order"
        raise ConfigurationError(
            f"a data set needs a length and examples by number (__len__ and __getitem__); {type(dataset).__name__} has "
            f"no __getitem__" + (advice if hasattr(dataset, "dataset") else "")
        )
    try:
        length = len(dataset)
    except TypeError as error:
        raise ConfigurationError(
            f"a data set needs a length and examples by number (__len__ and __getitem__); {type(dataset).__name__} "
            f"has none"
        ) from error
    if length < 1:
        raise ConfigurationError(f"the data set ({type(dataset).__name__}) has no examples")
    return length


def epoch_order(recipe: Recipe, length: int, epoch: int) -> Tensor:
    """The order (int64) in which the examples 0..length-1 are seen in `epoch`: a function of the recipe alone."""
    if not recipe.shuffle:
        return torch.arange(length)
    generator = torch.Generator().manual_seed(generator_key(recipe.seed, "order", epoch))
    return torch.randperm(length, generator=generator)


def fetch(dataset: Any, indices: Tensor, recipe: Recipe, epoch: int) -> tuple[Any, Any]:
    """The examples at `indices`, collated to (X, y).

    Examples that are fetched one by one find the global generators seeded from (seed, epoch, example), so random
    augmentation depends on neither the rank nor the order of fetching. Many at once find them seeded from the first.
    """
    if isinstance(dataset, BatchedDataset):
        seed_generators(generator_key(recipe.seed, "examples", epoch, int(indices[0])), _CPU)
        batch = dataset.batch(indices)
    elif type(dataset) is TensorDataset:
        batch = tuple(tensor[indices] for tensor in dataset.tensors)
    else:
        examples = []
        for index in indices.tolist():
            seed_generators(generator_key(recipe.seed, "example", epoch, index), _CPU)
            examples.append(dataset[index])
        batch = default_collate(examples)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(
            f"an example of a data set must be a pair (X, y), where each may have any structure; "
            f"{type(dataset).__name__} gives {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
        )
    return batch[0], batch[1]
