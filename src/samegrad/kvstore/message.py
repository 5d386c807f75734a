"""What all messages of a store have in common."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = ["Kind", "Message"]


class Kind(enum.IntEnum):
    """The number of each message in a prefix."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    DECLARE = 10
    DECLARED = 11
    FILL = 12
    PUSH = 13
    PULL = 14
    ACCEPTED = 15
    VALUES = 16
    BARRIER = 17
    PASSED = 18
    BYE = 19
    PING = 20
    STATUS = 21
    REPORT = 22
    DESCRIBE = 23
    DESCRIBED = 24
    FETCH = 25
    RESTORE = 26
    SUPPLY = 27
    REMOVE = 28
    EXPLAIN = 29
    REFUSED = 30
    FAILED = 31
    EXPLAINED = 32
    TAKE = 33
    TAKEN = 34


@dataclass(frozen=True, slots=True)
class Message:
    """What they have in common. `request` numbers the questions of a connection; an answer has its question's."""

    kind: ClassVar[Kind]

    def header(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {name: getattr(self, name) for name in self._names()}

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        """Those of the fields: what a frozen record has room for."""
        names: tuple[str, ...] = cls.__dict__["__slots__"]
        return names
