"""Which examples a minibatch holds, and how they come out of a data set."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from samegrad.errors import ConfigurationError, DataError
from samegrad.keys import generator_key
from samegrad.parallel.execution import on_one_thread
from samegrad.parallel.generators import seed_generators
from samegrad.parallel.nested import leaves
from samegrad.recipe import Recipe
from samegrad.trainer.collating import collate, described, listed

__all__ = ["BatchedDataset", "as_inputs", "as_pair", "collated", "dataset_length", "epoch_order", "fetch", "is_stream"]

_CPU = torch.device("cpu")


@runtime_checkable
class BatchedDataset(Protocol):
    """A data set that gives many examples at once, already collated: the fast way."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """The pair (X, y) of the examples at `indices` (int64), in this order."""
        ...


def is_stream(dataset: Any) -> bool:
    """Whether `dataset` is iterable only: it gives its examples one after the other, and maybe knows no length."""
    if isinstance(dataset, DataLoader):
        raise ConfigurationError(
            "a data set of examples is needed; of a DataLoader give its data set (.dataset), since the recipe decides "
            "batches and order"
        )
    if isinstance(dataset, IterableDataset):  # which inherits a __getitem__ that does not work
        return True
    return (
        isinstance(dataset, Iterable)
        and not hasattr(dataset, "__getitem__")
        and not isinstance(dataset, BatchedDataset)
    )


def dataset_length(dataset: Any, what: str = "the data set") -> int:
    """The number of examples of a map-style data set.

    Raises ConfigurationError, on `what`, if it has none or no length, and DataError if `__len__` raises.
    """
    if not hasattr(dataset, "__getitem__") and not isinstance(dataset, BatchedDataset):
        raise ConfigurationError(
            f"a data set needs a length and examples by number (__len__ and __getitem__), or must be iterable; "
            f"{type(dataset).__name__} has no __getitem__"
        )
    if not hasattr(type(dataset), "__len__"):
        raise ConfigurationError(
            f"a data set needs a length and examples by number (__len__ and __getitem__); {type(dataset).__name__} "
            f"has none. One without a length must be iterable, and have no __getitem__"
        )
    try:
        given = dataset.__len__()
    except Exception as error:
        raise DataError(
            f"the length of {what} could not be read: __len__ of {type(dataset).__name__} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    try:
        length = operator.index(given)
    except TypeError:
        length = -1
    if length < 0:
        raise ConfigurationError(
            f"__len__ of {what} ({type(dataset).__name__}) must return its number of examples, a whole number of at "
            f"least 1; got {given!r}"
        )
    if length < 1:
        raise ConfigurationError(f"{what} ({type(dataset).__name__}) has no examples")
    return length


def epoch_order(recipe: Recipe, length: int, epoch: int) -> Tensor:
    """The order (int64) in which the examples 0..length-1 are seen in `epoch`: a function of the recipe alone."""
    if not recipe.shuffle:
        return torch.arange(length)
    generator = torch.Generator().manual_seed(generator_key(recipe.seed, "order", epoch))
    return torch.randperm(length, generator=generator)


def fetch(dataset: Any, indices: Tensor, recipe: Recipe, epoch: int) -> tuple[Any, Any]:
    """The examples at `indices` of a map-style data set, collated to (X, y); see `collated`."""
    return as_pair(collated(dataset, indices, recipe, epoch, f"epoch {epoch}"), dataset)


def collated(dataset: Any, indices: Tensor, recipe: Recipe, epoch: int, where: str) -> Any:
    """The examples at `indices` of a map-style data set, as one batch. Raises DataError, which begins with `where`.

    Examples that are fetched one by one find the global generators seeded from (seed, epoch, example), so random
    augmentation depends on neither the rank nor the order of fetching. Many at once find them seeded from the first.
    torch computes with one thread meanwhile, as loader workers do, whatever the recipe says for training.
    """
    if type(dataset) is TensorDataset:
        return tuple(tensor[indices] for tensor in dataset.tensors)
    with on_one_thread():
        if isinstance(dataset, BatchedDataset):
            seed_generators(generator_key(recipe.seed, "examples", epoch, int(indices[0])), _CPU)
            try:
                batch = dataset.batch(indices)
            except Exception as error:
                raise _unreadable(dataset, f"the examples {listed(indices.tolist())}", where, error) from error
            _check_rows(batch, dataset, indices.tolist(), where)
            return batch
        examples = []
        for index in indices.tolist():
            seed_generators(generator_key(recipe.seed, "example", epoch, index), _CPU)
            try:
                examples.append(dataset[index])
            except Exception as error:
                raise _unreadable(dataset, f"example {index}", where, error) from error
        return collate(examples, indices.tolist(), where)


def as_pair(batch: Any, dataset: Any) -> tuple[Any, Any]:
    """The batch as (X, y); DataError if it is no pair."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(
            f"an example of a data set must be a pair (X, y), where each may have any structure; "
            f"{type(dataset).__name__} gives {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
        )
    return batch[0], batch[1]


def as_inputs(batch: Any, _: Any) -> Any:
    """X of a batch that is a pair (X, y), or has only X in it: (X,), or X itself if it is neither tuple nor list."""
    return batch[0] if isinstance(batch, tuple | list) and 1 <= len(batch) <= 2 else batch


def _check_rows(batch: Any, dataset: Any, indices: list[int], where: str) -> None:
    """Raises DataError unless each tensor, or array, of `batch` holds one row for each of `indices`."""
    found = {len(leaf) for _, leaf in leaves(batch) if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim}
    if wrong := found - {len(indices)}:
        raise DataError(
            f"{where}: {type(dataset).__name__}.batch gave {min(wrong)} rows for {len(indices)} examples "
            f"({listed(indices)}): {described(batch)}. Each tensor must hold one row for each of the examples, in this "
            f"order; what belongs to no example must have no dimensions"
        )


def _unreadable(dataset: Any, which: str, where: str, error: Exception) -> DataError:
    length = f"; it says that it has {len(dataset)} examples" if isinstance(error, IndexError) else ""
    return DataError(
        f"{where}: {which} could not be read: {type(dataset).__name__} raised {type(error).__name__}: {error}{length}"
    )
