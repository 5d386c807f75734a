"""Test doubles for who tests code that talks to other ranks: a group of ranks without processes."""

from samegrad.testing.ranks import run_ranks

__all__ = ["run_ranks"]
