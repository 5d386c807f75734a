"""The ways of adding along the tree that `hierarchical` can put together, by name."""

from __future__ import annotations

from samegrad.errors import ConfigurationError
from samegrad.schedules.binomial_tree import BINOMIAL_TREE
from samegrad.schedules.halving_doubling import HALVING_DOUBLING
from samegrad.schedules.one_device import ONE_DEVICE
from samegrad.schedules.sharded import SHARDED
from samegrad.schedules.trees import Level

__all__ = ["WAYS", "way_named"]

WAYS: dict[str, Level] = {
    "one-device": ONE_DEVICE,
    "sharded": SHARDED,
    "halving-doubling": HALVING_DOUBLING,
    "binomial-tree": BINOMIAL_TREE,
}


def way_named(algorithm: str, name: str) -> Level:
    """The way called `name`; raises ConfigurationError, for `algorithm`, if there is none."""
    if name not in WAYS:
        raise ConfigurationError(f"{algorithm}: {name!r} is no way to add along the tree; there are {', '.join(WAYS)}")
    return WAYS[name]
