"""The name that somebody will have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

__all__ = ["meant", "nearest"]

_MOST = 5000  # names to look through


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of the `known` names that is most like `name`, in whatever letters; "" if none is like it."""
    by_letters = {str(each).lower(): str(each) for each in islice(known, _MOST)}
    near = difflib.get_close_matches(name.lower(), by_letters, n=1)
    return by_letters[near[0]] if near else ""


def meant(name: str, known: Iterable[str]) -> str:
    """What follows an unknown name in a message: "; did you mean 'ring'?", or a full stop if none is like it."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else "."
