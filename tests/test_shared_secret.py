"""Proofs of a secret."""

from __future__ import annotations

import pytest

from samegrad.shared_secret import is_proof, new_nonce, proof


def test_only_the_secret_and_what_was_said_give_the_proof() -> None:
    given = proof("s", "caller", [1, 0], "ab", "cd")
    assert is_proof(given, "s", "caller", [1, 0], "ab", "cd")
    for secret, said in (
        ("t", ("caller", [1, 0], "ab", "cd")),
        ("s", ("listener", [1, 0], "ab", "cd")),
        ("s", ("caller", [0, 1], "ab", "cd")),
        ("s", ("caller", [1, 0], "abc", "d")),
    ):
        assert not is_proof(given, secret, *said)


@pytest.mark.parametrize("given", [None, 5, "", "é", ["a"]])
def test_what_is_no_proof_is_refused(given: object) -> None:
    assert not is_proof(given, "s", "x")


def test_numbers_are_new_each_time() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
