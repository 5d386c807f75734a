"""How the ranks of one host find each other for a process group."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from samegrad.errors import PeerFailed
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel import world
from samegrad.parallel.world import _loopback_store
from samegrad.testing import run_ranks


def test_the_store_of_workers_listens_to_this_host_only() -> None:
    def meet(group: SharedMemoryGroup) -> Any:
        worker = cast(Any, SimpleNamespace(rank=group.rank))
        return _loopback_store(worker, group, timedelta(seconds=20))

    stores = run_ranks(3, meet)
    stores[1].set("a", "b")
    assert [store.get("a") for store in stores] == [b"b"] * 3
    connections = psutil.Process().net_connections()
    found = [one.laddr.ip for one in connections if one.status == "LISTEN" and one.laddr.port == stores[0].port]
    assert found == ["127.0.0.1"]


def test_ranks_that_cannot_connect_to_each_other_go_on_and_rank_0_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "call_each_other", lambda *_: ({}, ["a", "b"], ["rank 1: no connection to rank 0"]))
    workers = [cast(Any, SimpleNamespace(rank=rank, devices=("cpu",) * 2, start_timeout_s=1.0)) for rank in range(2)]
    with pytest.warns(RuntimeWarning, match=r"\(rank 1: no connection to rank 0\), so the death of one is noticed by"):
        assert world._roll_call(workers[0], None) is None
    assert world._roll_call(workers[1], None) is None


def test_a_rank_says_what_python_has_ended_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("sys.last_value", raising=False)
    ended = "has ended, and the others have not. All ranks must make the same calls"
    assert world._last_words() == ended
    monkeypatch.setattr("sys.last_value", ValueError("bad"), raising=False)
    assert world._last_words() == "has ended: it raised ValueError: bad"
    monkeypatch.setattr("sys.last_value", PeerFailed("told already"), raising=False)
    assert world._last_words() == ended
