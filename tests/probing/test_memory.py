"""The loops that memory is measured with do what they say, and threads run together."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from samegrad.errors import ConfigurationError
from samegrad.probing import memory, working_sets
from samegrad.probing.effort import Effort
from samegrad.probing.working_sets import compiled_loops, thread_counts, together

pytest.importorskip("numba")


def test_the_loops_compute_what_they_say() -> None:
    loops = compiled_loops()
    words = np.arange(1024, dtype=np.int64)
    total = int(words.sum())
    assert loops.read(words) == loops.read_backward(words) == loops.read_unaligned(words) == total
    odd = np.frombuffer(b"x" + words.tobytes(), dtype=np.uint8)[1:].copy()
    base = np.empty(odd.size + 1, dtype=np.uint8)
    base[1:] = odd
    assert loops.read_unaligned(base[1:].view(np.int64)) == total
    assert loops.read_strided(words, 64) == int(words[::64].sum())
    assert loops.read_pieces(words, 1024, 3, 1) == 3 * total
    ring = np.empty(8, dtype=np.int64)
    start = ring.ctypes.data
    ring[:] = start + 8 * np.roll(np.arange(8), -1)
    assert [(loops.chase(start, count) - start) // 8 for count in (0, 1, 7, 8, 9)] == [0, 1, 7, 0, 1]
    assert loops.write(words, 7) == 0
    assert (words == 7).all()
    loops.increment(words, np.array([0, 1, 0, 1, 0, 1, 0, 1], dtype=np.int64), 10)
    assert words[:3].tolist() == [12, 12, 7]


def test_a_working_set_is_one_circle_through_all_its_lines() -> None:
    places: list[int] = []
    loops = compiled_loops()
    lines = (1 << 14) // 64

    class Watching:
        @staticmethod
        def chase(place: int, count: int) -> int:
            if not places:
                places.extend(int(loops.chase(place, number)) for number in range(lines + 1))
            return int(loops.chase(place, count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "compiled_loops", lambda: Watching)
        memory._latency(Effort(1, 1e-5, 1 << 14, 2.0, 0, ()), 1 << 14, {})
    assert places[0] == places[-1]
    assert places[0] % 64 == 0
    assert sorted(places[1:]) == list(range(places[0], places[0] + (1 << 14), 64))


def test_works_run_at_the_same_time_and_the_last_one_counts() -> None:
    meeting = threading.Barrier(2)
    assert 0 < together([lambda: meeting.wait(30), lambda: meeting.wait(30)]) < 30


def test_a_work_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(ConfigurationError, match="has not come to its end"):
        together([lambda: 1 / 0, lambda: None])


def test_threads_go_up_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, counts in ((1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])):
        monkeypatch.setattr(working_sets, "usable_cores", lambda cores=cores: cores)
        assert thread_counts() == counts
