"""Bytes through shared memory: all of them, in order, for any sizes; and what is done when the other side is gone."""

from __future__ import annotations

import os
import random
import threading

import numpy as np
import pytest

from samegrad.errors import FrameRefused
from samegrad.kvstore.ring import Ring, new_rings, rings_in
from samegrad.memory import new_memory_file

SIZE = 1 << 10


def nothing() -> None:
    pass


def two_ends(size: int = SIZE, timeout_s: float = 5.0) -> tuple[Ring, Ring]:
    memory = np.zeros(128 + size, np.uint8)
    return Ring(memory, nothing, timeout_s), Ring(memory, nothing, timeout_s)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_is_read(seed: int) -> None:
    random_ = random.Random(seed)
    sent = random_.randbytes(50_000)
    writer, reader = two_ends()

    def write() -> None:
        at, sizes = 0, random.Random(seed + 100)
        while at < len(sent):
            size = sizes.choice([0, 1, 7, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
            writer.write(memoryview(sent)[at : at + size])
            at += size

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    got = bytearray(len(sent))
    at = 0
    while at < len(got):
        size = random_.choice([0, 1, 5, SIZE, 2 * SIZE + 3])
        reader.read_into(memoryview(got)[at : at + size])
        at += size
    thread.join(5.0)
    assert bytes(got) == sent


def test_who_waits_for_somebody_who_is_gone_is_told() -> None:
    def gone() -> None:
        raise ConnectionResetError("gone")

    memory = np.zeros(128 + SIZE, np.uint8)
    ring = Ring(memory, gone, 5.0)
    with pytest.raises(ConnectionResetError):
        ring.read_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionResetError):
        ring.write(memoryview(bytes(SIZE + 1)))


def test_who_waits_too_long_is_told() -> None:
    _, reader = two_ends(timeout_s=0.02)
    with pytest.raises(TimeoutError):
        reader.read_into(memoryview(bytearray(1)))


def test_counters_that_cannot_be_are_refused() -> None:
    memory = np.zeros(128 + SIZE, np.uint8)
    ring = Ring(memory, nothing, 5.0)
    memory[:8].view(np.uint64)[0] = SIZE + 1
    with pytest.raises(FrameRefused, match="counters of shared memory cannot be"):
        ring.read_into(memoryview(bytearray(1)))
    with pytest.raises(FrameRefused, match="counters of shared memory cannot be"):
        ring.write(memoryview(b"x"))


def test_rings_lie_in_a_memory_file_of_their_size() -> None:
    with new_rings() as (fd, out, _):
        out[200] = 7
        again, into = rings_in(fd)
        assert again[200] == 7
        assert into[200] == 0
    fd = new_memory_file()
    try:
        os.ftruncate(fd, 100)
        with pytest.raises(ValueError, match="got 100"):
            rings_in(fd)
    finally:
        os.close(fd)
