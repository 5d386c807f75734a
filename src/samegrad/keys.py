"""Keys of random generators: a pure function of what a random number is for, never of the rank that draws it.

Every generator is seeded from (seed, purpose, position): the order of examples from (seed, "order", epoch), dropout
from (seed, "shard", epoch, step, shard). Pure: no torch.
"""

from __future__ import annotations

import hashlib

__all__ = ["generator_key"]


def generator_key(seed: int, purpose: str, *position: int) -> int:
    """A 64-bit key, the first 8 bytes of a BLAKE2b digest over its arguments; different arguments, different key."""
    text = ":".join(["samegrad", purpose, str(seed), *map(str, position)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
