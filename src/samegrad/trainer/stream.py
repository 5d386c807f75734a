"""Iterable data sets: one stream of examples, which every rank goes through and keeps its own part of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from samegrad.errors import DataError
from samegrad.keys import generator_key
from samegrad.parallel.execution import on_one_thread
from samegrad.parallel.generators import seed_generators
from samegrad.recipe import Recipe
from samegrad.trainer.collating import collate
from samegrad.trainer.same_data import first_example

__all__ = ["Parts", "StreamPortion", "StreamReader"]

_CPU = torch.device("cpu")

Parts = Callable[[int, int], Mapping[int, range]]
"""Takes the number of a group of examples and how many it holds; returns what this rank wants of it, by key."""


@dataclass(frozen=True, slots=True)
class StreamPortion:
    """What this rank wants of the next `examples` examples of the stream, by key; is_last: nothing comes after them.

    digest: of the first of these examples, to tell whether all ranks go through the same stream.
    """

    examples: int
    is_last: bool
    digest: bytes
    batches: dict[int, Any]


class StreamReader:
    """Cuts the stream of `dataset` into groups of `size` examples, of which the last may be smaller.

    Called with (epoch, number of the group, None), group by group. First it is called with (place, skip) instead of
    None, for ascending places from 0 to skip: 0 begins the stream anew, and the examples before each place are left
    out; it returns a portion without examples.

    Before the stream begins, the global generators are seeded from (seed, epoch), and before each example from (seed,
    epoch, its place in the stream), so that all ranks see the same. A group is held in memory as the stream gave it;
    only what this rank wants is collated.
    """

    def __init__(
        self, dataset: Any, recipe: Recipe, size: int, parts: Parts, finish: Callable[[Any, Any], Any], what: str
    ) -> None:
        self._dataset, self._recipe, self._size = dataset, recipe, size
        self._parts, self._finish, self._what = parts, finish, what
        self._stream: Iterator[Any] = iter(())
        self._place = 0  # in the stream, of the example that is read next
        self._ahead: list[Any] = []  # at most one example, read to know whether there is one

    def __call__(self, task: tuple[int, int, tuple[int, int] | None]) -> StreamPortion:
        epoch, number, skipping = task
        where = f"{self._what}: epoch {epoch}, step {number}"
        with on_one_thread():
            if skipping is not None:
                if skipping[0] == 0:
                    self._begin(epoch, where)
                self._skip(*skipping, epoch, where)
                return StreamPortion(0, False, b"", {})
            start = self._place - len(self._ahead)
            examples, self._ahead = self._ahead, []
            self._read(examples, self._size, epoch, where)
            self._read(self._ahead, 1, epoch, where)
            batches = {
                key: self._finish(
                    collate(examples[part.start : part.stop], range(start + part.start, start + part.stop), where),
                    self._dataset,
                )
                for key, part in self._parts(number, len(examples)).items()
                if part
            }
        digest = first_example(collate(examples[:1], [start], where), 1).encode() if examples else b""
        return StreamPortion(len(examples), not self._ahead, digest, batches)

    def _begin(self, epoch: int, where: str) -> None:
        seed_generators(generator_key(self._recipe.seed, "stream", epoch), _CPU)
        self._place, self._ahead = 0, []
        try:
            self._stream = iter(self._dataset)
        except Exception as error:
            raise DataError(
                f"{where}: the stream could not be begun: {type(self._dataset).__name__} raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def _skip(self, place: int, skip: int, epoch: int, where: str) -> None:
        while self._place < place:
            skipped: list[Any] = []
            self._read(skipped, 1, epoch, where)
            if not skipped:
                raise DataError(
                    f"{where}: {skip} examples were trained on in this epoch before, but the stream of "
                    f"{type(self._dataset).__name__} ends after {self._place}. Go on with the same data"
                )

    def _read(self, examples: list[Any], until: int, epoch: int, where: str) -> None:
        """Reads examples until there are so many, or the stream ends."""
        while len(examples) < until:
            seed_generators(generator_key(self._recipe.seed, "example", epoch, self._place), _CPU)
            try:
                examples.append(next(self._stream))
            except StopIteration:
                self._stream = iter(())
                return
            except Exception as error:
                raise DataError(
                    f"{where}: example {self._place} of the stream could not be read: {type(self._dataset).__name__} "
                    f"raised {type(error).__name__}: {error}"
                ) from error
            self._place += 1
