"""Keys of random generators: what they are, and that no two uses share one."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import pytest

from samegrad.keys import generator_key


@pytest.mark.parametrize(
    ("seed", "purpose", "position", "text"),
    [
        (0, "order", (3,), b"samegrad:order:0:3"),
        (7, "shard", (1, 2, 3), b"samegrad:shard:7:1:2:3"),
        (2**70, "evaluated", (), b"samegrad:evaluated:1180591620717411303424"),
    ],
)
def test_a_key_is_the_published_hash(seed: int, purpose: str, position: tuple[int, ...], text: bytes) -> None:
    digest = hashlib.blake2b(text, digest_size=8).digest()
    assert generator_key(seed, purpose, *position) == sum(byte << 8 * place for place, byte in enumerate(digest))


def test_keys_of_earlier_releases_stay() -> None:
    """Every random number of every run follows from these; a change makes all earlier results unrepeatable."""
    assert generator_key(0, "order", 0) == 9240861341953375415
    assert generator_key(1, "shard", 2, 3, 4) == 293253252506453355


def test_a_key_fits_the_generators() -> None:
    keys = [generator_key(seed, "example", 0, index) for seed in range(3) for index in range(300)]
    assert all(0 <= key < 2**64 for key in keys)
    assert any(key >= 2**63 for key in keys)  # torch takes these too; NumPy gets the lower half


def test_different_uses_have_different_keys() -> None:
    uses = list(itertools.product(range(12), ["order", "shard", "example", "after"], range(12), range(12)))
    keys = {generator_key(seed, purpose, *position) for seed, purpose, *position in uses}
    keys |= {generator_key(seed, purpose, first) for seed, purpose, first, _ in uses}
    assert len(keys) == len(uses) + 12 * 4 * 12


def test_digits_do_not_run_together() -> None:
    assert generator_key(1, "shard", 23) != generator_key(1, "shard", 2, 3)
    assert generator_key(1, "shard", 1, 23) != generator_key(1, "shard", 12, 3)
    assert generator_key(1, "shard") != generator_key(11, "shard")


def test_a_key_is_the_same_in_every_process() -> None:
    """Unlike `hash`, which Python randomises."""
    code = "from samegrad.keys import generator_key; print(generator_key(5, 'shard', 1, 2, 3))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == generator_key(5, "shard", 1, 2, 3)
