"""A key on its server, and one slice of its value: value, clocks, open sums, updater; how that is kept. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import RequestRefused
from samegrad.kvstore.consistency import Clocks
from samegrad.kvstore.contributions import Contributions
from samegrad.kvstore.placement import Key
from samegrad.kvstore.updaters import Rule, Updater
from samegrad.kvstore.values import DTYPES

__all__ = ["Pulling", "ServedKey", "ServedSlice", "described_alike", "in_words"]


@dataclass(slots=True)
class Pulling:
    """A pull, or a push that wants the values back, of which `missing` slices may not be read yet."""

    worker: int
    request: int
    slices: list[int]
    steps: list[int]
    priority: float
    missing: int = 0


@dataclass(slots=True)
class ServedSlice:
    """A slice of `key`. value: None until worker 0 has filled it. sums: of the steps that are not complete, in sync.

    waiting: the pulls that may not read it yet, with their clocks.
    """

    key: Key
    dtype: torch.dtype
    numel: int
    clocks: Clocks
    value: Tensor | None = None
    rule: Rule | None = None
    is_given_out: bool = False
    sums: dict[int, Contributions] = field(default_factory=dict)
    waiting: list[tuple[int, Pulling]] = field(default_factory=list)
    _record: Any = None  # while it is restored: what the updater knew,
    _tensors: dict[str, tuple[torch.dtype, bool]] = field(default_factory=dict)  # the tensors in that,
    _supplied: dict[str, Tensor] = field(default_factory=dict)  # and those that have come

    def fill(self, value: Tensor, updater: Updater | None) -> None:
        """Takes `value` as the first one."""
        self.value = value
        self.rule = None if updater is None else updater.rule(value)

    def update(self, total: Tensor) -> None:
        """Makes the new value of `total`; one that was given out stays as it was."""
        if self.rule is None:
            self.value = total
        else:
            if self.is_given_out:
                self.rule.move_to(self.rule.value.clone())
            self.rule.apply(total)
            self.value = self.rule.value
        self.is_given_out = False

    # Keeping: all but the value, which is pulled

    def described(self) -> dict[str, Any]:
        """Clocks, what the updater knows, and the dtypes of the tensors in that, with whether they are one number."""
        record, tensors = (None, dict[str, Tensor]()) if self.rule is None else self.rule.described()
        return {
            "clocks": self.clocks.kept(),
            "updater": record,
            "tensors": {
                name: [str(tensor.dtype).removeprefix("torch."), tensor.dim() == 0] for name, tensor in tensors.items()
            },
        }

    def kept_tensor(self, name: str) -> Tensor:
        """A copy of a tensor that the updater keeps, flat. Raises RequestRefused if there is none of that name."""
        tensors = {} if self.rule is None else self.rule.described()[1]
        if name not in tensors:
            raise RequestRefused(f"key {self.key!r}: its updater keeps no {name[:80]!r}")
        return tensors[name].detach().reshape(-1).clone()

    def restore(self, state: dict[str, Any]) -> None:
        """Begins to take up what `described` gave elsewhere; `supply` brings the tensors. Raises RequestRefused."""
        if self.value is None or self.clocks.is_used or set(state) != {"clocks", "updater", "tensors"}:
            raise RequestRefused(f"key {self.key!r}: a state is taken up after the first value, before any push")
        tensors = state["tensors"]
        if not isinstance(tensors, dict) or not all(map(_is_kind, tensors.values())):
            raise RequestRefused(f"key {self.key!r}: expected dtypes of tensors; got {str(tensors)[:80]}")
        self.clocks.restore(state["clocks"])
        self._record = state["updater"]
        self._tensors = {name: (DTYPES[dtype], is_number) for name, (dtype, is_number) in tensors.items()}
        self._finish()

    def awaited(self, name: str) -> tuple[torch.dtype, int]:
        """Dtype and elements of the tensor `name` of a state that is being restored. Raises RequestRefused."""
        if name not in self._tensors:
            raise RequestRefused(f"key {self.key!r}: no {name[:80]!r} is awaited")
        dtype, is_number = self._tensors[name]
        return dtype, 1 if is_number else self.numel

    def supply(self, name: str, value: Tensor) -> None:
        """Takes a flat tensor that is awaited; with the last one the state is restored. Raises RequestRefused."""
        self.awaited(name)
        self._supplied[name] = value.view(()) if self._tensors[name][1] else value
        self._finish()

    def _finish(self) -> None:
        if set(self._supplied) == set(self._tensors):
            record, tensors = self._record, self._supplied
            self._record, self._tensors, self._supplied = None, {}, {}
            if self.rule is not None:
                self.rule.restore(record, tensors)
            elif record is not None:
                raise RequestRefused(f"key {self.key!r}: this store has no updater that could take up a state")


def _is_kind(kind: object) -> bool:
    return (
        isinstance(kind, list)
        and len(kind) == 2
        and isinstance(kind[0], str)
        and kind[0] in DTYPES
        and isinstance(kind[1], bool)
    )


@dataclass(slots=True)
class ServedKey:
    """What the first worker declared of a key, who else did, the numbers of its slices, and their bytes here.

    removing: the workers that need it no more, with their requests.
    """

    declared: tuple[str, list[int], list[list[int]]]
    first: int
    slices: list[int]
    nbytes: int
    workers: set[int] = field(default_factory=set)
    removing: dict[int, int] = field(default_factory=dict)


def described_alike(slices: Sequence[ServedSlice]) -> dict[str, Any]:
    """What is kept of slices of one key. Raises RequestRefused if they differ."""
    found = [each.described() for each in slices]
    if not found or any(each != found[0] for each in found):
        raise RequestRefused(
            "the parts of a value have different clocks: somebody pushes while it is to be kept. All workers call "
            "save alike, or wait for each other with barrier() before and after state_dict()"
        )
    return found[0]


def in_words(dtype: str, shape: Sequence[int], slices: Sequence[Sequence[int]]) -> str:
    """What was declared of a key."""
    return f"{dtype} of shape {list(shape)} in {len(slices)} slices here"
