"""What an exchange is for, in words, so that ranks which meet for different things notice it before they take data.

An operation is named for a person, alike on every rank: "step 3 of epoch 0 on 256 examples". Ranks compare tags, which
cost nothing to exchange; the names are looked up only for the message.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping

from samegrad.errors import CallMismatch

__all__ = ["NAME_BYTES", "check_operations", "packed_name", "tag", "unpacked_name"]

NAME_BYTES = 120
"""No name is longer, as UTF-8."""


@functools.lru_cache(maxsize=64)
def tag(operation: str) -> int:
    """A number of 63 bits, which is equal for equal names only."""
    return int.from_bytes(hashlib.blake2b(operation.encode(), digest_size=8).digest(), "little") >> 1


@functools.lru_cache(maxsize=64)
def packed_name(operation: str) -> bytes:
    """`NAME_BYTES` bytes for `unpacked_name`."""
    packed = operation.encode().ljust(NAME_BYTES, b"\0")
    assert len(packed) == NAME_BYTES, f"the name of an operation is too long: {operation}"
    return packed


def unpacked_name(packed: bytes) -> str:
    """The name in `packed`."""
    return packed.rstrip(b"\0").decode()


def check_operations(operations: Mapping[int, str]) -> None:
    """Raises CallMismatch if not all ranks, which are the keys in ascending order, are at the same operation."""
    ranks: dict[str, list[str]] = {}
    for rank, operation in operations.items():
        ranks.setdefault(operation, []).append(str(rank))
    if len(ranks) > 1:
        places = ", ".join(
            f"rank{'s' * (len(found) > 1)} {', '.join(found)} {'are' if len(found) > 1 else 'is'} at {operation!r}"
            for operation, found in ranks.items()
        )
        first_other = list(ranks.values())[1][0]
        raise CallMismatch(
            f"the ranks do different things: {places}. All ranks must make the same calls in the same order, with the "
            f"same data",
            int(first_other),
        )
