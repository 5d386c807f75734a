"""How the gradients are added up: not part of the recipe, since it does not change the result, or must be allowed to.

`Strategy("sharded")` names an algorithm and what it can be told; `None` instead of a strategy leaves the choice to the
trainer. JSON in and out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from samegrad.errors import ConfigurationError
from samegrad.nearest import meant
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build_for
from samegrad.schedules.compose import co_located
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Schedule
from samegrad.schedules.options import Options

__all__ = ["NATIVE", "STRATEGIES", "Strategy", "default_strategy"]

NATIVE = "native"
"""The all-reduce of torch.distributed's backend, which is no schedule."""

STRATEGIES = (*ALGORITHMS, NATIVE)
"""The names of all."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to add gradients up, checked when it is made.

    algorithm: one of `samegrad.schedules.ALGORITHMS`, or "native", the all-reduce of the backend (Gloo, NCCL). Those
        that follow the tree give the bits of the recipe; the others need `Recipe(exact=False)`.
    helpers: for `servers`, the number of servers; they run on the ranks themselves, one after the other.
    groups, ways, share, orders, speeds: see `samegrad.schedules.Options`.
    bucket_bytes: gradients are exchanged in buckets of at least so many bytes, those of the last parameters first, each
        as soon as backward has made it. None leaves the size to samegrad. Does not change the result.
    """

    algorithm: str
    helpers: int | None = None
    groups: tuple[tuple[int, ...], ...] | None = None
    ways: tuple[str, ...] | None = None
    share: str | None = None
    orders: tuple[tuple[int, ...], ...] | None = None
    speeds: tuple[int, ...] | None = None
    bucket_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in STRATEGIES:
            hint = meant(str(self.algorithm), STRATEGIES)
            raise ConfigurationError(
                f"strategy: there is no {self.algorithm!r}{hint} There are {', '.join(STRATEGIES)} (--strategy)"
            )
        known = () if self.algorithm == NATIVE else ALGORITHMS[self.algorithm].takes
        wrong = [name for name in self.options().given() if name not in known]
        if self.helpers is not None and self.algorithm != "servers":
            wrong.insert(0, "helpers")
        if wrong:
            takes = [*(["helpers"] if self.algorithm == "servers" else []), *known]
            raise ConfigurationError(
                f"strategy: {self.algorithm} takes no {wrong[0]}; it takes {', '.join(takes) or 'no options'}"
            )
        if self.helpers is not None and (not isinstance(self.helpers, int) or self.helpers < 0):
            raise ConfigurationError(f"strategy: helpers must be a whole number of at least 0; got {self.helpers!r}")
        size = self.bucket_bytes
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ConfigurationError(f"strategy: bucket_bytes must be a whole number of at least 1; got {size!r}")

    @classmethod
    def of(cls, strategy: Strategy | str) -> Strategy:
        """The strategy itself, that of a name, or that of JSON text: the record of `to_json`, or what `samegrad plan
        --json` prints."""
        if isinstance(strategy, str) and strategy.lstrip().startswith("{"):
            try:
                record = json.loads(strategy)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"strategy: expected a name or JSON; {error} in {strategy[:80]}") from None
            return cls.from_json(record)
        return strategy if isinstance(strategy, Strategy) else cls(strategy)

    @property
    def is_native(self) -> bool:
        """Whether the backend adds, by no schedule of ours."""
        return self.algorithm == NATIVE

    @property
    def follows_tree(self) -> bool:
        """Whether the result is that of the recipe, whatever the number of ranks."""
        return not self.is_native and algorithm(self.algorithm).follows_tree

    def check(self, exact: bool) -> None:
        """Raises ConfigurationError for one whose bits depend on the number of ranks, if the recipe is `exact`."""
        if exact and not self.follows_tree:
            raise ConfigurationError(
                f"strategy: {self.algorithm} adds in an order that depends on the number of devices, and so does the "
                f"result; the recipe says that it must not. Allow it (--inexact, Recipe(exact=False)), or take one "
                f"that adds along the tree: sharded, one-shot or halving-doubling, for example"
            )

    def options(self) -> Options:
        """What the algorithm is told."""
        return Options(*(getattr(self, field.name) for field in dataclasses.fields(Options)))

    def schedule(self, held: Sequence[range], leaves: int) -> Schedule:
        """The schedule for ranks that hold these ranges of the leaves; a host, or servers, are played by the ranks.

        Raises ConfigurationError if the algorithm cannot be built for them.
        """
        if self.is_native:
            raise ConfigurationError("strategy: native is no schedule; the backend of torch.distributed runs it")
        helpers = algorithm(self.algorithm).helpers if self.helpers is None else self.helpers
        built = build_for(self.algorithm, Cut.of(held, leaves, helpers), options=self.options())
        return co_located(built, [number % len(held) for number in range(helpers)])

    def to_json(self) -> dict[str, Any]:
        """What is set, as JSON values."""
        record = dataclasses.asdict(self)
        return {name: value for name, value in record.items() if value is not None}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Strategy:
        """The inverse of `to_json`, also of the record of a plan with one in it; unknown fields are refused."""
        inner = record.get("strategy", record)
        record = inner if isinstance(inner, dict) else {}
        unknown = sorted(set(record) - {field.name for field in dataclasses.fields(cls)})
        if unknown or "algorithm" not in record:
            raise ConfigurationError(
                f"strategy: {'unknown fields ' + ', '.join(unknown) if unknown else 'there is no algorithm in it'}; "
                f"was it written by a newer version of samegrad?"
            )
        for name, value in record.items():
            kind, nested = _SHAPES[name]
            if not _has_shape(value, kind, nested):
                raise ConfigurationError(f"strategy: {name}: expected {_WORDS[kind, nested]}; got {str(value)[:80]!r}")
        return cls(**{name: _as_tuple(value) for name, value in record.items()})


def default_strategy(ranks: int, in_place: bool = False) -> Strategy:
    """What is used where nothing is said: the fastest one for ranks that share memory.

    in_place: the sum may stay in the shared memory; else every rank wants it in memory of its own.
    """
    return Strategy("one-shot" if ranks <= 2 and not in_place else "sharded")


_SHAPES: dict[str, tuple[type, int]] = {
    "algorithm": (str, 0),
    "helpers": (int, 0),
    "bucket_bytes": (int, 0),
    "share": (str, 0),
    "groups": (int, 2),
    "orders": (int, 2),
    "ways": (str, 1),
    "speeds": (int, 1),
}
"""The kind of value in each field of a record, and in how many lists it stands."""
_WORDS = {
    (str, 0): "text",
    (int, 0): "a whole number",
    (str, 1): "a list of text",
    (int, 1): "a list of whole numbers",
    (int, 2): "a list of lists of whole numbers",
}


def _has_shape(value: Any, kind: type, nested: int) -> bool:
    if nested:
        return isinstance(value, list | tuple) and all(_has_shape(each, kind, nested - 1) for each in value)
    return isinstance(value, kind) and not isinstance(value, bool)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value
