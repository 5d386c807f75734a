"""Ranks that meet at a store; here they are threads."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.workers.jobs import free_port
from torch.distributed import HashStore  # type: ignore[attr-defined]

from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout
from samegrad.workers import meeting
from samegrad.workers.meeting import Meeting, address_of, interface_of, open_store, own_address, serve_store
from samegrad.workers.variables import Place


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody else's server, which takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_rank_gets_the_records_of_all(size: int) -> None:
    store = HashStore()

    def meet(rank: int) -> list[Any]:
        meeting = Meeting(store, rank, size, 20.0)
        return [meeting.exchange("first", {"rank": rank}), meeting.exchange("second", None if rank else "zero")]

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(meet, range(size)))
    assert found == [[[{"rank": rank} for rank in range(size)], ["zero"] + [None] * (size - 1)]] * size


def test_ranks_that_do_not_come_are_named() -> None:
    store = HashStore()
    Meeting(store, 0, 4, 20.0)._store.set("joining/2", "1")
    with pytest.raises(
        PeerTimeout, match=r"rank 0 of 4 waited 0\.2 s at the start \(joining\), but ranks 1, 3 did not"
    ) as e:
        Meeting(store, 0, 4, 0.2).exchange("joining", 1)
    assert e.value.rank == 1


def test_a_store_is_served_by_rank_0_and_reached_by_all() -> None:
    port = free_port()

    def meet(rank: int) -> list[Any]:
        place = Place(rank, 3, rank, "127.0.0.1", port)
        return Meeting(open_store(place, False, 20.0), rank, 3, 20.0).exchange("joining", rank)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(meet, range(3))) == [[0, 1, 2]] * 3


def test_a_store_that_goes_is_said_to_be_gone() -> None:
    port = free_port()
    store = open_store(Place(0, 2, 0, "127.0.0.1", port), False, 20.0)
    other = Meeting(open_store(Place(1, 2, 1, "127.0.0.1", port), False, 20.0), 1, 2, 20.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.exchange, "joining", 1)
        while not store.check(["joining/1"]):
            time.sleep(0.01)
        del store
        with pytest.raises(
            PeerFailed, match=r"rank 1 of 2 lost the store in which the ranks meet \(joining\): .*rank 0"
        ):
            waiting.result()


def test_a_port_in_use_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(
        ConfigurationError, match=f"MASTER_PORT={port}: port {port} is in use on this host, by another job"
    ):
        open_store(Place(0, 2, 0, "127.0.0.1", port), False, 20.0)


def test_a_server_that_is_no_store_is_noticed(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    before = threading.active_count()
    with pytest.raises(PeerTimeout, match=f"has reached .*MASTER_PORT={port}, but what answers there is not the store"):
        open_store(Place(1, 2, 1, "127.0.0.1", port), False, 0.1)
    listener.close()
    while threading.active_count() > before:  # its attempt ends with the connection
        time.sleep(0.01)


def test_a_server_that_is_not_there_is_waited_for_until_the_deadline() -> None:
    port = free_port()
    wanted = re.escape(
        f"rank 1 of 2 tried for 0.2 s to reach the meeting of the ranks at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}"
    )
    with pytest.raises(PeerTimeout, match=wanted):
        open_store(Place(1, 2, 1, "127.0.0.1", port), True, 0.2)


def test_the_interface_is_the_one_that_leads_there() -> None:
    assert interface_of(Place(0, 1, 0, "127.0.0.1", 1), []) == "lo"
    assert interface_of(Place(0, 1, 0, "", 0), []) is None
    assert interface_of(Place(0, 1, 0, "no such host", 1), []) is None


def test_an_interface_has_an_address() -> None:
    assert address_of("lo") == "127.0.0.1"
    assert address_of("no such interface") is None


def test_the_loopback_interface_leads_to_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes the name of rank 0, its own, for 127.0.1.1, as on Debian; the others are at 10.0.0.2."""
    own = {"node-1": "127.0.0.1", "10.0.0.2": "10.0.0.1"}
    monkeypatch.setattr(meeting, "own_address", lambda address, port: own[address])
    interfaces = {"lo": [SimpleNamespace(address="127.0.0.1")], "eth1": [SimpleNamespace(address="10.0.0.1")]}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: interfaces)
    place = Place(0, 3, 0, "node-1", 1)
    assert interface_of(place, [None, "127.0.0.1", "10.0.0.2"]) == "eth1"
    assert interface_of(place, [None, "127.0.0.1"]) == "lo"  # all have come over loopback: they are on this host
    assert own_address("127.0.0.1", 1) == "127.0.0.1"


def listening() -> list[str]:
    """The addresses that this process listens at."""
    return [found.laddr.ip for found in psutil.Process().net_connections() if found.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize(("address", "at"), [("127.0.0.1", {"127.0.0.1"}), ("localhost", {"127.0.0.1", "::1"})])
def test_a_store_at_a_loopback_address_listens_nowhere_else(address: str, at: set[str]) -> None:
    before = listening()
    store = serve_store(address, 0, timedelta(seconds=20))
    (new,) = (Counter(listening()) - Counter(before)).elements()
    assert new in at
    second = serve_store(address, store.port, timedelta(seconds=20))  # of the same process: they share the server
    store.set("a", "b")
    assert second.get("a") == b"b"


def test_a_store_is_reached_by_other_hosts_where_the_name_leads_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = meeting._listening("127.0.0.1", 0)
    assert listener is not None
    listener.close()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))])
    assert meeting._listening("node-1", 0) is None
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("192.0.2.1", 0))])
    assert meeting._listening("node-1", 0) is None  # no address of this host
