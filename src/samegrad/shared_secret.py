"""Showing that one knows a secret without saying it: HMAC-SHA256 over numbers that are new for each connection.

Each side of a connection proves over both sides' numbers, under a label of its own; so neither a recorded proof nor one
that is sent back to where it came from is of any use. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any

__all__ = ["is_proof", "new_nonce", "proof"]

_NONCE_BYTES = 32


def new_nonce() -> str:
    """A random number for one connection."""
    return secrets.token_hex(_NONCE_BYTES)


def proof(secret: str, *said: Any) -> str:
    """The proof for the JSON values `said`."""
    text = json.dumps(said, sort_keys=True).encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def is_proof(given: object, secret: str, *said: Any) -> bool:
    """Whether `given`, from the other side, is that proof; takes as long whatever was given."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(secret, *said).encode())
