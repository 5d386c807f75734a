"""Records in JSON that carry a checksum of themselves. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from samegrad.storing.checksums import count_parts

__all__ = ["is_description", "sealed", "unsealed"]

_SEAL = "checkpoint_sha256"


def sealed(document: Mapping[str, Any]) -> bytes:
    """The bytes of `document` with a checksum over all of them but itself."""
    return _rendered({**document, _SEAL: hashlib.sha256(_rendered(document)).hexdigest()})


def unsealed(content: bytes) -> tuple[dict[str, Any], str, bool]:
    """The document in `content`, the checksum that it carries, and whether that is right.

    Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for bytes that are no sealed document.
    """
    document = json.loads(content)
    written = document.pop(_SEAL)
    return document, written, sealed(document) == content


def is_description(file: object) -> bool:
    """Whether it is {"bytes": length, "crc32": [of each part]} of a file."""
    if not isinstance(file, dict) or set(file) != {"bytes", "crc32"}:
        return False
    nbytes, checksums = file["bytes"], file["crc32"]
    return (
        type(nbytes) is int
        and 0 <= nbytes < 1 << 63
        and type(checksums) is list
        and len(checksums) == count_parts(nbytes)
        and all(type(checksum) is str for checksum in checksums)
    )


def _rendered(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
