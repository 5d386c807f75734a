"""A server against who means it ill, and against workers and servers that end: it lives, and the others are told."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.kvstore.stores import run_workers, some_servers
from tests.kvstore.test_state import gradient

from samegrad.errors import AccessRefused, ConfigurationError, FrameRefused, PeerFailed, ServerLost, StoreError
from samegrad.kvstore import KVStore, Server, connection
from samegrad.kvstore.connection import Caller, connect
from samegrad.kvstore.framing import PREFIX_BYTES, encode
from samegrad.kvstore.handles import Handle
from samegrad.kvstore.handshake import answer, challenge, check_answer, is_loopback, parse_address
from samegrad.kvstore.job import Job
from samegrad.kvstore.link import Link
from samegrad.kvstore.messages import Bye, Challenge, Declare, Fill, Hello, Message, Ping, Proof, Pull, Push, Status
from samegrad.kvstore.placement import LINK_SLICE_BYTES, SLICE_BYTES
from samegrad.shared_secret import new_nonce

SOUND: list[Message] = [
    Hello(0, "00" * 32, Job(1).to_json()),
    Hello(-1, "00" * 32, {}),
    Proof("00" * 32),
    Declare(1, "w", "float32", [5], [[0, 5]]),
    Fill(2, [0]),
    Push(3, [0], [1], 0, 0, True, 0.0),
    Pull(4, [0], [0], 0.0),
    Status(5),
    Ping(),
    Bye(),
]


def mutated(random_: random.Random) -> bytes:
    """One to three messages, damaged in some way."""
    data = bytearray()
    for message in random_.choices(SOUND, k=random_.randrange(1, 4)):
        payload = random_.randbytes(random_.choice([0, 0, 8, 24]))
        data += encode(message.kind, message.header(), len(payload), random_.randrange(1 << 64)) + payload
    for _ in range(random_.choice([0, 1, 1, 2, 8])):
        data[random_.randrange(len(data))] = random_.randrange(256)
    if random_.random() < 0.3:  # with a checksum that is right
        size = PREFIX_BYTES - 4
        length = min(struct.unpack_from("<I", data, 8)[0], len(data) - PREFIX_BYTES)
        text = data[PREFIX_BYTES : PREFIX_BYTES + length]
        struct.pack_into("<I", data, size, zlib.crc32(text, zlib.crc32(data[:size])))
    if random_.random() < 0.2:
        del data[random_.randrange(len(data)) :]
    return bytes(data)


def attack(server: Server, seed: int, count: int) -> int:
    """Sends mutated messages, some after a handshake as one that only looks; how many were sent."""
    random_, sent = random.Random(seed), 0
    while sent < count:
        try:
            if random_.random() < 0.1:
                link, _ = connect(server.address, Caller(-1, {}), 5.0)
                end = link._socket
            else:
                end = socket.create_connection((server.host, server.port), timeout=5.0)
        except StoreError:
            continue
        with end:
            try:
                for _ in range(random_.randrange(1, 20)):
                    end.sendall(mutated(random_))
                    sent += 1
            except OSError:
                continue
    return sent


def train(store: KVStore, steps: int) -> torch.Tensor:
    store.init("w", torch.zeros(5))
    out = torch.empty(5)
    for step in range(1, steps + 1):
        store.push_pull("w", gradient(store.worker, step), out).wait()
    return out


def fuzz(count: int) -> None:
    with some_servers(1) as (server,):
        sent: list[int] = []
        attackers = [
            threading.Thread(target=lambda seed=seed: sent.append(attack(server, seed, count // 2)), daemon=True)
            for seed in range(2)
        ]
        stores = [KVStore.connect(server.address, worker=(number, 2), timeout_s=30.0) for number in range(2)]
        for store in stores:
            store.init("w", torch.zeros(5))
        for attacker in attackers:
            attacker.start()
        step = 0
        while step < 20 or any(attacker.is_alive() for attacker in attackers):
            step += 1
            handles = [store.push_pull("w", gradient(store.worker, step % 50)) for store in stores]
            for handle in handles:
                total = handle.wait()
                assert isinstance(total, torch.Tensor)
                assert torch.equal(total, gradient(0, step % 50) + gradient(1, step % 50))
        assert sum(sent) >= count
        for store in stores:
            store.close()
        with KVStore.connect(server.address, worker=(0, 1)) as store:
            assert torch.equal(train(store, 3), gradient(0, 3))


def test_mutated_frames_do_not_disturb_workers() -> None:
    fuzz(1500)


@pytest.mark.slow
def test_a_hundred_thousand_mutated_frames_do_not_disturb_workers() -> None:
    fuzz(100_000)


# Who may come


@pytest.mark.parametrize(("theirs", "ours"), [("a", "b"), (None, "b"), ("a", None)])
def test_another_secret_is_refused_on_both_sides(theirs: str | None, ours: str | None) -> None:
    with some_servers(1, secret=theirs) as (server,), pytest.raises(AccessRefused, match="has another secret than"):
        KVStore.connect(server.address, worker=(0, 1), secret=ours, timeout_s=5.0)


def test_the_same_secret_lets_in() -> None:
    with (
        some_servers(2, secret="s") as servers,
        KVStore.connect([server.address for server in servers], worker=(0, 1), secret="s") as store,
    ):
        assert torch.equal(train(store, 2), gradient(0, 2))


def test_what_was_recorded_proves_nothing() -> None:
    hello = Hello(0, new_nonce(), {})
    asked = challenge("s", hello)
    given = answer("s", hello, asked, "here")
    check_answer("s", hello, asked, given)
    for other in (Challenge(new_nonce(), asked.proof), challenge("s", hello)):
        with pytest.raises(AccessRefused):
            check_answer("s", hello, other, given)
    with pytest.raises(AccessRefused):
        check_answer("s", Hello(1, hello.nonce, {}), asked, given)
    with pytest.raises(AccessRefused):  # the server's own proof, sent back
        check_answer("s", hello, asked, Proof(asked.proof))


def test_a_server_shows_that_it_knows_the_secret() -> None:
    hello = Hello(0, new_nonce(), {})
    with pytest.raises(AccessRefused, match="the server at here has another secret than this worker"):
        answer("s", hello, challenge("other", hello), "here")


def test_beyond_this_machine_a_secret_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"serving on 0\.0\.0\.0 goes over a network.*needs a secret"):
        Server("0.0.0.0")
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("192.0.2.1")


def test_slices_are_short_if_a_server_may_be_on_another_host() -> None:
    with some_servers(1, secret="s") as (near,), contextlib.closing(Server("0.0.0.0", secret="s")) as far:
        addresses = {"near": [near.address], "both": [near.address, f"127.0.0.1:{far.port}"]}
        longest = {}
        for name, listed in addresses.items():
            with KVStore.connect(listed, worker=(0, 1), secret="s") as store:
                store.init("w", torch.zeros(3 << 20))
                total = torch.zeros(3 << 20)
                store.push_pull("w", torch.ones(3 << 20), total).wait()
                assert torch.equal(total, torch.ones(3 << 20))
                longest[name] = max(4 * (piece.stop - piece.start) for piece in store._entries["w"].pieces)
    assert longest == {"near": SLICE_BYTES, "both": LINK_SLICE_BYTES}


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_nobody_waits_for_no_time_or_for_ever(timeout_s: float) -> None:
    with pytest.raises(ConfigurationError, match="server: timeout_s must be a number of seconds above 0 and below 1e"):
        Server(timeout_s=timeout_s)
    with pytest.raises(ConfigurationError, match="store: timeout_s must be a number of seconds above 0 and below 1e"):
        KVStore.connect("127.0.0.1:1", worker=(0, 1), timeout_s=timeout_s)


@pytest.mark.parametrize("wanted", [-1, 0, 4096, LINK_SLICE_BYTES + 1, 2 * SLICE_BYTES, 1 << 62])
def test_a_server_that_wants_slices_which_cannot_be_is_refused(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with some_servers(1) as (server,):
        monkeypatch.setattr(server, "_slice_bytes", wanted)
        with pytest.raises(FrameRefused, match=rf"{server.address} wants slices of {wanted} bytes .* 65536 to 4194304"):
            KVStore.connect(server.address, worker=(0, 1))


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "host:-1", "host:٣"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        parse_address(text)
    assert parse_address("[::1]:80") == ("::1", 80)


def test_two_servers_on_a_port_are_refused() -> None:
    with some_servers(1) as (server,), pytest.raises(ConfigurationError, match=r"cannot listen on 127.*another one"):
        Server(port=server.port)


def test_another_program_and_another_version_are_refused() -> None:
    with some_servers(1) as (server,):
        for data, text in ((b"GET / HTTP/1.1\r\n\r\n" * 4, b"begins with"), (version_2(), b"speaks version 2")):
            with socket.create_connection((server.host, server.port), timeout=5.0) as end:
                end.sendall(data)
                assert text in read_all(end)


def version_2() -> bytes:
    data = bytearray(encode(Bye().kind, {}))
    data[4] = 2
    return bytes(data)


def read_all(end: socket.socket) -> bytes:
    data = b""
    try:
        while piece := end.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


def test_what_is_announced_too_large_is_not_waited_for() -> None:
    with some_servers(1) as (server,), socket.create_connection((server.host, server.port), timeout=5.0) as end:
        end.sendall(struct.pack("<4sHHIQQII", b"SGKV", 1, 1, 1 << 30, 1 << 40, 0, 0, 0))
        assert b"was announced; at most" in read_all(end)


def test_a_link_refuses_a_damaged_payload() -> None:
    left, right = socket.socketpair()
    with left, right:
        link = Link(right, 5.0)
        left.sendall(encode(Fill.kind, Fill(1, [0]).header(), 8, 1) + struct.pack("<Q", 2))
        _, prefix = link.receive()
        with pytest.raises(FrameRefused, match="the sum of a payload is wrong"):
            link.receive_payload(prefix)
        left.sendall(encode(Fill.kind, Fill(1, [0]).header(), 8, 1 << 56) + bytes(7) + b"\x01")
        _, prefix = link.receive()
        with pytest.raises(FrameRefused, match="expected zeros between"):
            link.receive_payload_into(prefix, [torch.empty(5, dtype=torch.uint8)])


# Ends


WORKER = """
import sys, time, torch
from samegrad.kvstore import KVStore
store = KVStore.connect(sys.argv[1:], worker=(1, 2), timeout_s=20.0)
store.init("w", torch.zeros(5))
store.push_pull("w", torch.ones(5)).wait()
print("ready", flush=True)
time.sleep(100)
"""

SERVER = """
import time
from samegrad.kvstore import Server
print(Server().address, flush=True)
time.sleep(100)
"""


def start(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A process of its own, and the first line that it prints."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.dist
def test_a_worker_that_is_killed_ends_the_job_on_all_within_two_seconds() -> None:
    with some_servers(2) as servers:
        addresses = [server.address for server in servers]
        store = KVStore.connect(addresses, worker=(0, 2), timeout_s=30.0)
        made: list[subprocess.Popen[str]] = []
        starter = threading.Thread(target=lambda: made.append(start(WORKER, *addresses)[0]), daemon=True)
        starter.start()
        store.init("w", torch.zeros(5))
        store.push_pull("w", torch.ones(5)).wait()
        starter.join(20.0)
        handle = store.push_pull("w", torch.ones(5))
        began = time.monotonic()
        end(made[0])
        with pytest.raises(PeerFailed, match=r"worker 1 at 127.* was lost before it closed the store"):
            handle.wait()
        assert time.monotonic() - began < 2.0
        with pytest.raises(PeerFailed):
            store.pull("w")
        store.close()


@pytest.mark.dist
def test_a_server_that_is_killed_ends_the_job_on_all_within_two_seconds() -> None:
    process, address = start(SERVER)
    with some_servers(1) as (server,):
        stores = [KVStore.connect([server.address, address], worker=(number, 2)) for number in range(2)]
        for store in stores:
            store.init({f"w{key}": torch.zeros(5) for key in range(8)})
        handles = [store.pull([f"w{key}" for key in range(8)]) for store in stores]
        for handle in handles:
            handle.wait()
        waiting = stores[0].push_pull("w0", torch.ones(5)), stores[0].push_pull("w1", torch.ones(5))
        began = time.monotonic()
        end(process)
        for handle in waiting:
            with pytest.raises((ServerLost, PeerFailed), match="was lost"):
                handle.wait()
        assert time.monotonic() - began < 2.0
        for store in stores:
            store.close()


@pytest.mark.dist
def test_a_worker_that_stands_still_is_told_by_its_number() -> None:
    with some_servers(1, timeout_s=0.6) as (server,):
        store = KVStore.connect(server.address, worker=(0, 2), timeout_s=30.0)
        made: list[subprocess.Popen[str]] = []
        starter = threading.Thread(target=lambda: made.append(start(WORKER, server.address)[0]), daemon=True)
        starter.start()
        store.init("w", torch.zeros(5))
        store.push_pull("w", torch.ones(5)).wait()
        starter.join(20.0)
        os.kill(made[0].pid, signal.SIGSTOP)
        with pytest.raises(PeerFailed, match=r"worker 1 at 127.* has given no sign for 0\.6 s"):
            store.push_pull("w", torch.ones(5)).wait(5.0)
        end(made[0])
        store.close()


def test_a_worker_that_is_ahead_and_waits_gives_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the server waits for one; sums come all the time."""
    monkeypatch.setattr(connection, "AHEAD_SLICES", 0)
    keys = range(15)

    def work(store: KVStore) -> None:
        store.init({key: torch.zeros(5) for key in keys})
        store.barrier().wait()
        handles: list[Handle] = []
        for key in keys:
            if store.worker == 1:
                time.sleep(0.1)
            elif key == keys[-1]:
                handles[0].wait()  # so this one has to wait until all others have come
            handles.append(store.push_pull(key, torch.ones(5)))
        store.wait(handles)

    with some_servers(1, timeout_s=0.6) as (server,):
        stores = [KVStore.connect(server.address, worker=(worker, 2)) for worker in range(2)]
        run_workers(stores, work)
        for store in stores:
            store.close()


@pytest.mark.parametrize("_", range(20))  # often enough to stop it between welcoming a worker and serving it
def test_a_server_that_is_stopped_tells_its_workers_why(_: int) -> None:
    with some_servers(1) as (server,):
        store = KVStore.connect(server.address, worker=(0, 2))
        handle = store.barrier()
        server.close("it is time to go")
        with pytest.raises(PeerFailed, match="it is time to go"):
            handle.wait()
        store.close()


def test_no_server_is_said_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerLost, match=rf"no server answers at 127\.0\.0\.1:{port} within 0\.2 s"):
        KVStore.connect(f"127.0.0.1:{port}", worker=(0, 1), timeout_s=0.2)


def test_a_server_serves_one_job_after_the_other() -> None:
    with some_servers(2) as servers:
        addresses = [server.address for server in servers]
        for workers in (1, 2):
            stores = [KVStore.connect(addresses, worker=(number, workers)) for number in range(workers)]
            results: Sequence[torch.Tensor] = run_workers(stores, lambda store: train(store, 2))
            assert all(torch.equal(result, results[0]) for result in results)
            for store in stores:
                store.close()


def test_nothing_is_left_behind() -> None:
    before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with some_servers(2) as servers:
        stores = [KVStore.connect([s.address for s in servers], worker=(number, 2)) for number in range(2)]
        run_workers(stores, lambda store: train(store, 3))
        for store in stores:
            store.close()
    deadline = time.monotonic() + 5.0
    while (threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))) != before:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


def test_the_status_says_how_it_is() -> None:
    with some_servers(1) as (server,):
        assert server.status()["job"] is None
        with KVStore.connect(server.address, worker=(0, 1)) as store:
            train(store, 3)
            status = server.status()
            assert (status["keys"], status["bytes"], status["clocks"]) == (1, 20, [[3, 3]])
            assert status["connected"] == [0]
            assert status["traffic"]["0"]["received"] == 4 * 24
