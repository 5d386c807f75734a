"""Messages beside training: what is kept of a store and taken up again, keys that are removed, work that is shared out,
and who is late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samegrad.kvstore.message import Kind, Message
from samegrad.kvstore.placement import Key

__all__ = [
    "Describe",
    "Described",
    "Explain",
    "Explained",
    "Fetch",
    "Remove",
    "Restore",
    "Supply",
    "Take",
    "Taken",
]


@dataclass(frozen=True, slots=True)
class Describe(Message):
    """Wants to know what is kept of `slices` of one key, besides the value."""

    kind = Kind.DESCRIBE
    request: int
    slices: list[int]


@dataclass(frozen=True, slots=True)
class Described(Message):
    """That: the clocks, what the updater knows, and the dtypes of the tensors in that; the same for all slices."""

    kind = Kind.DESCRIBED
    request: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Wants the tensor `name` that the updater keeps for each of `slices`; it is answered with Values."""

    kind = Kind.FETCH
    request: int
    slices: list[int]
    name: str


@dataclass(frozen=True, slots=True)
class Restore(Message):
    """What Described said of slices, elsewhere, is to hold here; the tensors in it come with Supply."""

    kind = Kind.RESTORE
    request: int
    slices: list[int]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Supply(Message):
    """The tensor `name` of each of `slices`, which are being restored. Payload: as in Fill."""

    kind = Kind.SUPPLY
    request: int
    slices: list[int]
    name: str


@dataclass(frozen=True, slots=True)
class Remove(Message):
    """The worker needs `key` no more; Accepted when that is so of all workers that are there."""

    kind = Kind.REMOVE
    request: int
    key: Key


@dataclass(frozen=True, slots=True)
class Take(Message):
    """Wants the next number of the counter `name`, which begins at 0; each number is given to one worker."""

    kind = Kind.TAKE
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class Taken(Message):
    """That."""

    kind = Kind.TAKEN
    request: int
    number: int


@dataclass(frozen=True, slots=True)
class Explain(Message):
    """Why is it not done? what: "pull" or "push" of `slices` at clock `steps[i]`, "remove" of their keys, "barrier"."""

    kind = Kind.EXPLAIN
    request: int
    what: str
    slices: list[int]
    steps: list[int]


@dataclass(frozen=True, slots=True)
class Explained(Message):
    """Because of the workers `late`: what they have not done, in words; both empty if nobody is waited for."""

    kind = Kind.EXPLAINED
    request: int
    late: list[int]
    text: str
