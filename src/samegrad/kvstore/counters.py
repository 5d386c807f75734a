"""Numbers by which workers of a store share work out. Pure."""

from __future__ import annotations

from samegrad.errors import RequestRefused

__all__ = ["Counters"]

_MOST, _LONGEST = 1 << 16, 512


class Counters:
    """Counters by name, each of which begins at 0 and gives each number once."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def take(self, name: str) -> int:
        """The next number of `name`. Raises RequestRefused for a long name, and for too many of them."""
        if len(name) > _LONGEST or (len(self._next) >= _MOST and name not in self._next):
            raise RequestRefused(
                f"counter {name[:80]!r}: a name has at most {_LONGEST} characters; there are at most {_MOST} of them"
            )
        number = self._next.get(name, 0)
        self._next[name] = number + 1
        return number
