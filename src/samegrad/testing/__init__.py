"""Test doubles for who tests code that talks to other ranks: a group of ranks without processes, and slow devices."""

from samegrad.testing.played_layers import PlayedLayers
from samegrad.testing.ranks import run_ranks
from samegrad.testing.slowness import slowed

__all__ = ["PlayedLayers", "run_ranks", "slowed"]
