"""The messages between workers and servers of a store, as plain records. Pure; how they lie in bytes is in `framing`.

Here are those of training; what is asked now and then is in `side_messages`.

What arrives is checked against the types of the fields before a record is made of it, so who handles a record need not
doubt it: whole numbers are not negative (but keys) and below 2^63.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samegrad.errors import FrameRefused
from samegrad.kvstore.message import Kind, Message
from samegrad.kvstore.placement import Key
from samegrad.kvstore.side_messages import (
    Describe,
    Described,
    Explain,
    Explained,
    Fetch,
    Remove,
    Restore,
    Supply,
    Take,
    Taken,
)

__all__ = [
    "MESSAGES",
    "Accepted",
    "Barrier",
    "Bye",
    "Challenge",
    "Declare",
    "Declared",
    "Describe",
    "Described",
    "Explain",
    "Explained",
    "Failed",
    "Fetch",
    "Fill",
    "Hello",
    "Kind",
    "Message",
    "Passed",
    "Ping",
    "Proof",
    "Pull",
    "Push",
    "Refused",
    "Remove",
    "Report",
    "Restore",
    "Status",
    "Supply",
    "Take",
    "Taken",
    "Values",
    "Welcome",
    "parse",
]


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first message of a connection. worker: its number; -1 for who only looks. job: see `Job`.

    host, memory: which host it is on, and the process and memory file with rings that it offers; empty without.
    """

    kind = Kind.HELLO
    worker: int
    nonce: str
    job: dict[str, Any]
    host: str = ""
    memory: list[int] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Challenge(Message):
    """The server's answer: that it knows the secret, and a number for the worker to show that it does."""

    kind = Kind.CHALLENGE
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Proof(Message):
    """That the worker knows the secret."""

    kind = Kind.PROOF
    proof: str


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The worker may begin. timeout_s: after how long without a message the server takes it for dead.

    slice_bytes: how long slices of values are to be, if no other server wants them shorter. shares: whether payloads go
    through the memory that was offered.
    """

    kind = Kind.WELCOME
    timeout_s: float
    slice_bytes: int
    shares: bool = False


@dataclass(frozen=True, slots=True)
class Declare(Message):
    """A key, the dtype and shape of its value, and [start, stop] of the slices that lie on this server."""

    kind = Kind.DECLARE
    request: int
    key: Key
    dtype: str
    shape: list[int]
    slices: list[list[int]]


@dataclass(frozen=True, slots=True)
class Declared(Message):
    """The numbers that the server gives to the slices; they stand for them in what follows."""

    kind = Kind.DECLARED
    request: int
    slices: list[int]


@dataclass(frozen=True, slots=True)
class Fill(Message):
    """The first values of slices, from worker 0. Payload: the values, each filled up to whole 8 bytes."""

    kind = Kind.FILL
    request: int
    slices: list[int]


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Contributions to slices: push number `steps[i]` of the worker to `slices[i]`, the value of the node of the tree.

    pull: also to be answered with the values, as by a Pull. Payload: the values, each filled up to whole 8 bytes.
    """

    kind = Kind.PUSH
    request: int
    slices: list[int]
    steps: list[int]
    level: int
    number: int
    pull: bool
    priority: float


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Wants the values of `slices`, as of clock `steps[i]`. The answer with the highest priority is sent first."""

    kind = Kind.PULL
    request: int
    slices: list[int]
    steps: list[int]
    priority: float


@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """A Fill or Push is in."""

    kind = Kind.ACCEPTED
    request: int


@dataclass(frozen=True, slots=True)
class Values(Message):
    """Payload: the values that were asked for, in that order, each filled up to whole 8 bytes."""

    kind = Kind.VALUES
    request: int


@dataclass(frozen=True, slots=True)
class Barrier(Message):
    """The worker waits for all the others that are still there.

    levels: in stale, who has come is not waited for by pulls; from there on workers are as far as each other.
    """

    kind = Kind.BARRIER
    request: int
    levels: bool = False


@dataclass(frozen=True, slots=True)
class Passed(Message):
    """All have come to the barrier."""

    kind = Kind.PASSED
    request: int


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The worker leaves, and all is well."""

    kind = Kind.BYE


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """The other side is alive."""

    kind = Kind.PING


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Wants to know how the server is."""

    kind = Kind.STATUS
    request: int


@dataclass(frozen=True, slots=True)
class Report(Message):
    """How the server is."""

    kind = Kind.REPORT
    request: int
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """What was asked cannot be done. error: the name of a class in `samegrad.errors`."""

    kind = Kind.REFUSED
    request: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The job is over. worker: who has failed; -1: none of them, or the worker that says so."""

    kind = Kind.FAILED
    worker: int
    text: str


MESSAGES: tuple[type[Message], ...] = (
    *(
        Accepted,
        Barrier,
        Bye,
        Challenge,
        Declare,
        Declared,
        Describe,
        Described,
        Explain,
        Explained,
        Failed,
        Fetch,
        Fill,
    ),
    *(
        Welcome,
        Hello,
        Passed,
        Ping,
        Proof,
        Pull,
        Push,
        Refused,
        Remove,
        Report,
        Restore,
        Status,
        Supply,
        Take,
        Taken,
        Values,
    ),
)
"""All of them."""
_CLASSES = {each.kind: each for each in MESSAGES}
_TYPES = {kind: {field.name: str(field.type) for field in dataclasses.fields(each)} for kind, each in _CLASSES.items()}
_BOUND = 1 << 63


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _BOUND


def _are_counts(value: object) -> bool:
    if type(value) is not list:
        return False
    return not value or (all(type(each) is int for each in value) and min(value) >= 0 and max(value) < _BOUND)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: _is_count(value) or value == -1,
    "float": lambda value: type(value) in (int, float),
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "Key": lambda value: type(value) is str or (type(value) is int and -_BOUND <= value < _BOUND),
    "list[int]": _are_counts,
    "list[list[int]]": lambda value: type(value) is list and all(map(_are_counts, value)),
    "dict[str, Any]": lambda value: type(value) is dict,
}


def parse(kind: int, header: dict[str, Any]) -> Message:
    """The record of a header. Raises FrameRefused for an unknown kind, or fields that are missing, unknown or wrong."""
    try:
        types = _TYPES[Kind(kind)]
    except (ValueError, KeyError):
        raise FrameRefused(f"there is no message of kind {kind}") from None
    name = Kind(kind).name
    if header.keys() != types.keys():
        raise FrameRefused(
            f"{name}: expected the fields {', '.join(types) or 'none'}; got {', '.join(header)[:80] or 'none'}"
        )
    for field, expected in types.items():
        if not _CHECKS[expected](header[field]):
            raise FrameRefused(f"{name}: expected {expected} as {field}; got {str(header[field])[:80]!r}")
    message = _CLASSES[Kind(kind)](**header)
    if isinstance(message, Push | Pull | Explain) and len(message.slices) != len(message.steps):
        raise FrameRefused(f"{name}: got {len(message.steps)} steps for {len(message.slices)} slices")
    return message
