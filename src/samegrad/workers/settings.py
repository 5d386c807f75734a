"""How workers are started: what `launch` was told, checked before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from samegrad.errors import ConfigurationError
from samegrad.workers.devices import device_words

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """`devices` are words that `parse_devices` accepts; all numbers are positive; see `launch` for their meaning.

    argv: the caller's `sys.argv`, for what workers import and run.
    apart: of a job that another launcher has started, how many of the last ranks are no workers, but serve these.
    """

    devices: tuple[str, ...] = ("auto",)
    threads: int = 1
    timeout_s: float | None = None
    start_timeout_s: float = 300.0
    at_most: int = 8
    preload: tuple[str, ...] = ("torch",)
    argv: tuple[str, ...] = ()
    apart: int = 0

    def __post_init__(self) -> None:
        for name in ("threads", "at_most"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"launch: {name} must be a whole number of at least 1; got {value!r}")
        for name in ("timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if value is None and name == "timeout_s":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigurationError(f"launch: {name} must be a number of seconds above 0; got {value!r}")
        if not all(isinstance(name, str) and name for name in self.preload):
            raise ConfigurationError(f"launch: preload must be a list of names of modules; got {self.preload!r}")
        device_words(self.devices)

    def to_json(self) -> bytes:
        """The settings, for `from_json`."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Settings:
        """Reads what `to_json` wrote."""
        record = json.loads(text)
        for name in ("devices", "preload", "argv"):
            record[name] = tuple(record[name])
        return cls(**record)
