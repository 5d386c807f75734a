"""The connections that ranks make to each other; the ranks are threads here."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from samegrad.workers import calling
from samegrad.workers.calling import call_each_other
from samegrad.workers.meeting import Meeting

Called = tuple[dict[int, socket.socket], list[str], list[str]]


def call(size: int, addresses: list[str]) -> list[Called]:
    """What each rank finds."""
    store = HashStore()

    def one(rank: int) -> Called:
        return call_each_other(Meeting(store, rank, size, 20.0), rank, size, addresses[rank])

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def close(found: list[Called]) -> None:
    for ends, _, _ in found:
        for end in ends.values():
            end.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_two_ranks_are_connected_and_nobody_listens_any_more(size: int) -> None:
    found = call(size, ["127.0.0.1"] * size)
    for rank, (ends, hosts, failures) in enumerate(found):
        assert (sorted(ends), len(hosts), failures) == ([each for each in range(size) if each != rank], size, [])
        for other, end in ends.items():
            end.sendall(bytes([rank]))
            assert found[other][0][rank].recv(2) == bytes([rank])
            port = end.getsockname()[1]
            listening = [one for one in psutil.Process().net_connections() if one.status == "LISTEN"]
            assert port not in [one.laddr.port for one in listening]
    close(found)


def test_an_address_that_cannot_be_listened_at_is_told_to_all() -> None:
    found = call(3, ["127.0.0.1", "192.0.2.1", "127.0.0.1"])
    for ends, _, failures in found:
        assert ends == {}
        assert len(failures) == 1
        assert failures[0].startswith("rank 1 cannot listen at '192.0.2.1': ")


def test_a_rank_that_cannot_be_reached_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_WITHIN_S", 0.3)
    exchange = Meeting.exchange

    def lie(self: Any, name: str, record: Any) -> list[Any]:
        records = exchange(self, name, record)
        if name == "calling each other":
            records[0]["at"] = ["127.0.0.1", 1]
        return records

    monkeypatch.setattr(Meeting, "exchange", lie)
    for ends, _, failures in call(3, ["127.0.0.1"] * 3):
        assert ends == {}
        assert any("rank 2: no connection to rank 0 at 127.0.0.1:1: " in each for each in failures), failures
        assert any("rank 0: no call from ranks 1, 2" in each for each in failures), failures


@pytest.mark.parametrize("said", [b"GET / HTTP/1.0\r\n\r\n", b"", b"\xff\n", b"[1]\n", b"{}\n", b"x" * 2000, "forged"])
def test_a_stranger_is_let_go_and_the_ranks_are_connected(said: bytes | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to rank 0 before the others do."""
    monkeypatch.setattr(calling, "_STRANGER_S", 0.2)
    answers: list[bytes] = []
    visits: list[threading.Thread] = []
    exchange = Meeting.exchange

    def with_stranger(self: Any, name: str, record: Any) -> list[Any]:
        if name == "calling each other" and record["key"]:
            end = socket.create_connection(record["at"], timeout=5.0)
            visits.append(threading.Thread(target=come, args=(end,)))
            visits[0].start()
        return exchange(self, name, record)

    def come(end: socket.socket) -> None:
        with end:
            if isinstance(said, bytes):
                end.sendall(said)
            else:  # as rank 2 would, without the key
                end.sendall(json.dumps({"ranks": [2, 0], "nonce": "ab"}).encode() + b"\n")
                with end.makefile() as lines:
                    given = json.loads(lines.readline())
                end.sendall(json.dumps({"proof": given["proof"]}).encode() + b"\n")
            try:
                answers.append(end.recv(100))
            except ConnectionResetError:  # with what was said unread
                answers.append(b"")

    monkeypatch.setattr(Meeting, "exchange", with_stranger)
    found = call(3, ["127.0.0.1"] * 3)
    assert [(sorted(ends), failures) for ends, _, failures in found] == [([1, 2], []), ([0, 2], []), ([0, 1], [])]
    close(found)
    visits[0].join()
    assert answers == [b""]


def test_a_listener_without_the_key_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            with server.accept()[0] as end:
                end.makefile().readline()
                end.sendall(b'{"nonce": "ab", "proof": "cd"}\n')
                end.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(TimeoutError, match="does not know the key of this job"):
            calling._call(list(server.getsockname()), [1, 0], "key", 0.0)
        thread.join()
