"""What a rank computes with: its parts of one group of examples after the other.

A group is a minibatch in training, a unit in evaluation. Map-style data sets are read by index, so that a rank reads
only what it keeps; of an iterable one every rank goes through the whole stream (`StreamReader`). Either is read by the
rank itself when it asks, or ahead of that by loader workers.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType, TracebackType
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError, DataError
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.trainer.collating import listed
from samegrad.trainer.examples import as_pair, collated, dataset_length, is_stream
from samegrad.trainer.loader import Loader
from samegrad.trainer.loading import Loading
from samegrad.trainer.same_data import compare_data
from samegrad.trainer.stream import Parts, StreamPortion, StreamReader

__all__ = ["Feed", "Group"]

_PORTION = struct.Struct("<q?8s")


@dataclass(frozen=True, slots=True)
class Group:
    """The group `number` of an epoch, of `examples` examples over all ranks; is_last: there is none after it.

    get: takes the key of a part of this rank; returns its batch. which: takes it, too; names the examples.
    """

    number: int
    examples: int
    is_last: bool
    get: Callable[[int], Any]
    which: Callable[[int], str]


class Feed:
    """Groups of `size` examples of `dataset`, the last of an epoch what is left; use it within `with`.

    parts: which parts of a group this rank wants; all ranks together need not want all. finish: what is made of each
    collated part, from it and the data set. what: begins what errors say.
    All ranks make the same calls. Raises ConfigurationError for a data set that has no examples.
    """

    def __init__(
        self,
        dataset: Any,
        recipe: Recipe,
        world: World,
        device: torch.device,
        size: int,
        parts: Parts,
        what: str,
        loading: Loading | None = None,
        finish: Callable[[Any, Any], Any] = as_pair,
    ) -> None:
        self._dataset, self._world, self._size, self._parts, self._what = dataset, world, size, parts, what
        self._is_compared, self._begun = False, False
        self.is_stream = is_stream(dataset)
        if self.is_stream:
            self._stream = StreamReader(dataset, recipe, size, parts, finish, what)
        self._by_index = _IndexReader(dataset, recipe, finish, what)
        self._loader: Loader | None = None
        self._opened = ExitStack()
        loading = loading or Loading()
        if loading.workers:
            if self.is_stream:  # which nobody can read from its middle
                loading = Loading(1, loading.prefetch, loading.start, loading.timeout_s)
            read = self._stream if self.is_stream else self._by_index
            self._loader = Loader(read, loading, world.rank, device)

    def __enter__(self) -> Feed:
        if self._loader is not None:
            self._opened.enter_context(self._loader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def reads_ahead(self) -> bool:
        """Whether loader workers do, so that another choice of parts holds only from the next call of `in_order` on; of
        an iterable data set, from the next epoch on."""
        return self._loader is not None

    @property
    def length(self) -> int | None:
        """The number of examples; None for an iterable data set."""
        return None if self.is_stream else dataset_length(self._dataset)

    def in_order(self, order: Tensor, epoch: int = 0, first: int = 0) -> Iterator[Group]:
        """The groups of a map-style data set, from the number `first` on, if its examples are seen in `order`.

        Raises ConfigurationError if not all ranks have the same data.
        """
        if not self._is_compared:
            compare_data(self._first, len(order), self._world.group, self._what)
            self._is_compared = True
        last = -(-len(order) // self._size) - 1
        numbers = range(first, last + 1)

        def rows_of(number: int) -> tuple[Tensor, dict[int, Tensor]]:
            rows = order[number * self._size : (number + 1) * self._size]
            return rows, {
                key: rows[part.start : part.stop] for key, part in self._parts(number, len(rows)).items() if part
            }

        loaded: Iterator[dict[int, Any]] = iter(())
        if self._loader is not None:
            wanted = ((number, rows_of(number)[1]) for number in numbers)
            loaded = self._loader.run(
                (epoch, number, {key: rows.tolist() for key, rows in parts.items()})
                for number, parts in wanted
                if parts
            )
        for number in numbers:
            rows, parts = rows_of(number)
            get: Callable[[int], Any]
            if self._loader is None:
                get = functools.partial(self._by_index.get, epoch, number, parts)
            else:
                get = (next(loaded) if parts else {}).__getitem__
            yield Group(number, len(rows), number == last, get, functools.partial(self._which, parts))
        next(loaded, None)  # so that it is at its end

    def in_stream(self, epoch: int = 0, first: int = 0, skip: int = 0) -> Iterator[Group]:
        """The groups of an iterable data set, from the number `first` on, before which are `skip` examples."""
        at_end = False
        if self._loader is not None and self._begun and _serves_once(self._dataset):
            raise self._empty(epoch)  # as without loader workers; each has a copy that has not been gone through
        self._begun = True

        # Leaving examples out takes a task for each minibatch of them, too: each wait for an answer has a deadline.
        places = [*range(0, skip, self._size), skip]

        def tasks() -> Iterator[tuple[int, int, tuple[int, int] | None]]:
            for place in places:
                yield epoch, first, (place, skip)
            for number in itertools.count(first):
                if at_end:
                    return
                yield epoch, number, None

        portions = map(self._stream, tasks()) if self._loader is None else self._loader.run(tasks())
        for portion in itertools.islice(portions, len(places)):
            self._compare(portion, epoch, first)
        for number, portion in enumerate(portions, first):
            if at_end:
                continue  # what loader workers had been asked for before the end was seen
            self._compare(portion, epoch, number)
            at_end = portion.is_last
            if portion.examples:
                start = skip + (number - first) * self._size
                parts = {
                    key: torch.arange(start + part.start, start + part.stop)
                    for key, part in self._parts(number, portion.examples).items()
                }
                which = functools.partial(self._which, parts)
                yield Group(number, portion.examples, portion.is_last, portion.batches.__getitem__, which)
            elif not skip:
                raise self._empty(epoch)

    def _empty(self, epoch: int) -> ConfigurationError:
        return ConfigurationError(
            f"the data set ({type(self._dataset).__name__}) has no examples in epoch {epoch}; can it be gone through "
            f"only once? An iterable data set begins anew each time that iter() is called"
        )

    def _which(self, parts: dict[int, Tensor], key: int) -> str:
        return f"{listed(parts[key].tolist())} of {type(self._dataset).__name__}"

    def _first(self) -> Any:
        """The first example of a map-style data set; read by a loader worker if there are any, and not before them."""
        task: tuple[int, int, dict[int, list[int]]] = (0, 0, {0: [0]})
        (batches,) = [self._by_index(task)] if self._loader is None else self._loader.run([task])
        return batches[0]

    def _compare(self, portion: StreamPortion, epoch: int, number: int) -> None:
        """Raises DataError unless all ranks go through the same stream."""
        own = (portion.examples, portion.is_last, portion.digest.ljust(8))
        operation = f"{self._what}: epoch {epoch}, step {number} of an iterable data set"
        for rank, record in enumerate(self._world.group.gather(_PORTION.pack(*own), operation)):
            if (other := _PORTION.unpack(record)) != own:
                differing = "others, or in another order"
                if other[:2] != own[:2]:
                    differing = f"{other[0]} more examples{' and no others' if other[1] else ''}"
                raise DataError(
                    f"epoch {epoch}, step {number}: the stream of rank {self._world.rank} gives {own[0]} more examples"
                    f"{' and no others' if own[1] else ''}, that of rank {rank} gives {differing}. An iterable data "
                    f"set must give the same examples to every rank, which keeps its own part; it must not be split "
                    f"by rank"
                )


def _serves_once(dataset: Any) -> bool:
    """Whether it is a generator, or another iterator that Python has made; a class may begin anew in `__iter__`."""
    return isinstance(dataset, Iterator) and not isinstance(type(dataset).__iter__, FunctionType)


@dataclass(frozen=True, slots=True)
class _IndexReader:
    """Reads parts of a map-style data set, given as (epoch, number of the group, indices by key)."""

    dataset: Any
    recipe: Recipe
    finish: Callable[[Any, Any], Any]
    what: str

    def __call__(self, task: tuple[int, int, dict[int, list[int]]]) -> dict[int, Any]:
        epoch, number, parts = task
        tensors = {key: torch.tensor(indices) for key, indices in parts.items()}
        return {key: self.get(epoch, number, tensors, key) for key in tensors}

    def get(self, epoch: int, number: int, parts: dict[int, Tensor], key: int) -> Any:
        where = f"{self.what}: epoch {epoch}, step {number}"
        return self.finish(collated(self.dataset, parts[key], self.recipe, epoch, where), self.dataset)
