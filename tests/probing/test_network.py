"""The two ends of a network measurement, on loopback: what is measured, and what else may be there."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest
from tests.probing.test_probe import TINY

from samegrad.errors import ConfigurationError
from samegrad.probing.helper import fork_times, helper_listening
from samegrad.probing.network import network, split_address
from samegrad.probing.wire import MAGIC, MOST, REQUEST, TOKEN_BYTES, Listener, receive_exactly


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener, over = Listener("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=listener.serve, args=[over.is_set])
    thread.start()
    yield listener
    over.set()
    thread.join(20)
    assert not thread.is_alive()


def test_what_is_measured(listener: Listener) -> None:
    with network(TINY, f"127.0.0.1:{listener.port}") as tasks:
        values = {(task.name, task.x): task.run() for task in tasks if not (task.x or 0) > 1 << 16}
    assert all(spread.lowest > 0 and spread.repetitions == TINY.repetitions for spread in values.values())
    assert values["round trip over TCP", None].median < 0.1
    assert values["send over TCP, 1 MB at a time", None].median > 1e6


def test_an_address_where_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(ConfigurationError, match=r"no connection: .* Is `samegrad probe --listen` running there"),
            network(TINY, address),
        ):
            pass


def test_without_a_loopback_interface_nothing_is_said_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr("samegrad.probing.network.helper_listening", lambda: contextlib.nullcontext(5))
    with (
        pytest.raises(ConfigurationError, match=r"127\.0\.0\.1 port 5: no connection: .* is the loopback interface up"),
        network(TINY),
    ):
        pass


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"samegrad probe 9\n"])
def test_an_address_where_something_else_answers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            with server.accept()[0] as client:
                client.recv(64)
                client.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with (
            pytest.raises(ConfigurationError, match="something else answers there"),
            network(TINY, f"127.0.0.1:{server.getsockname()[1]}"),
        ):
            pass
        thread.join(20)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n",
        MAGIC + REQUEST.pack(b"X", 1, 1),
        MAGIC + REQUEST.pack(b"E", MOST + 1, 1),
        MAGIC + REQUEST.pack(b"E", 0, 1),
        MAGIC + REQUEST.pack(b"S", MOST, 1 << 60),
    ],
)
def test_a_listener_drops_who_says_something_else_and_answers_the_next(listener: Listener, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as client:
        client.sendall(request_)
        with contextlib.suppress(ConnectionError):
            while client.recv(1024):  # ends when the listener has closed
                pass
    with network(TINY, f"127.0.0.1:{listener.port}") as tasks:
        assert tasks[0].run().lowest > 0


def test_only_datagrams_with_the_token_come_back(listener: Listener) -> None:
    with (
        socket.create_connection(("127.0.0.1", listener.port), timeout=20) as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        client.sendall(MAGIC)
        token = receive_exactly(client, len(MAGIC) + TOKEN_BYTES + 2)[len(MAGIC) : -2]
        datagrams.connect(("127.0.0.1", listener.port))
        datagrams.settimeout(20)
        datagrams.send(b"anything")
        datagrams.send(token + b"1")
        assert datagrams.recv(64) == token + b"1"  # the first that comes back


@pytest.mark.parametrize(
    ("text", "address"),
    [("box", ("box", 4199)), ("box:5", ("box", 5)), ("[::1]:7", ("::1", 7)), ("::1", ("::1", 4199))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", ":5", "box:x", "box:70000"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected an address"):
        split_address(text)


@pytest.mark.dist
def test_helpers_answer_fork_and_end() -> None:
    assert len(fork_times(3)) == 3
    before = set(psutil.Process().children())
    with helper_listening() as port:
        (child,) = set(psutil.Process().children()) - before
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    assert not child.is_running()


@pytest.mark.dist
def test_a_helper_ends_when_the_process_that_measures_is_killed() -> None:
    code = (
        "import os, psutil, signal\n"
        "from samegrad.probing.helper import helper_listening\n"
        "with helper_listening():\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(run.stdout)).wait(20)
