"""How the ranks of one host find each other for a process group."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import psutil

from samegrad.executors.shared_memory import SharedMemoryGroup
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
