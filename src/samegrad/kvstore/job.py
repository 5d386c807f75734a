"""What all workers of a store must agree on before they begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samegrad import __version__
from samegrad.errors import ConfigurationError
from samegrad.kvstore.consistency import Consistency
from samegrad.kvstore.updaters import Updater
from samegrad.workers import context, join

__all__ = ["MOST_WORKERS", "Job", "own_place"]

MOST_WORKERS = 1 << 14


@dataclass(frozen=True, slots=True)
class Job:
    """The terms of a store, the same for all its workers and servers.

    workers: how many there are, numbered from 0.
    leaves: of the tree along which contributions are added up, in sync; as many as workers if None.
    updater: what servers do with a sum. None: a pull gives the sum over the last step, for sync only.

    Raises ConfigurationError for what cannot work together.
    """

    workers: int
    leaves: int | None = None
    consistency: Consistency = field(default_factory=Consistency)
    updater: Updater | None = None

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("leaves", self.shards)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_WORKERS:
                raise ConfigurationError(
                    f"store: {name} must be a whole number from 1 to {MOST_WORKERS}; got {str(value)[:80]!r}"
                )
        if self.consistency.is_sync:
            return
        mode = self.consistency.mode
        if self.updater is None:
            raise ConfigurationError(
                f"store: mode {mode!r} needs an updater: each push is applied alone, and without an updater there is "
                f"nothing to apply it to. Give one, such as Updater('SGD', {{'lr': 0.1}}) or Updater('sum')"
            )
        if self.leaves is not None:
            raise ConfigurationError(
                f"store: leaves are for mode 'sync'; in mode {mode!r} nothing is added along a tree"
            )

    @property
    def shards(self) -> int:
        """The leaves of the tree."""
        return self.workers if self.leaves is None else self.leaves

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the version of samegrad: bits may differ between versions."""
        return {
            "version": __version__,
            "workers": self.workers,
            "leaves": self.leaves,
            **self.consistency.to_json(),
            "updater": None if self.updater is None else self.updater.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Job:
        """The inverse of `to_json`. Raises ConfigurationError, also for another version of samegrad."""
        expected = {"version", "workers", "leaves", "mode", "staleness", "updater"}
        if set(record) != expected:
            raise ConfigurationError(f"store: expected {', '.join(sorted(expected))}; got {', '.join(record)[:200]}")
        if record["version"] != __version__:
            raise ConfigurationError(
                f"store: the worker has samegrad {str(record['version'])[:40]}, the server {__version__}; install the "
                f"same version on both"
            )
        updater = record["updater"]
        if updater is not None and not isinstance(updater, dict):
            raise ConfigurationError(f"store: expected a record as updater; got {str(updater)[:80]!r}")
        return cls(
            record["workers"],
            record["leaves"],
            Consistency(record["mode"], record["staleness"]),
            None if updater is None else Updater.from_json(updater),
        )


def own_place() -> tuple[int, int]:
    """The rank of this process, and how many there are, in the job it was launched in; (0, 1) outside of one."""
    worker = context() or join()
    return (0, 1) if worker is None else (worker.rank, len(worker.devices))
