"""A connection between each two ranks of a job, made at its start; both ends show that they know the key of the job.

    caller (the higher rank)     Hello: its number, that of the other one, a random number
    listener                     a random number, and the proof over all of that, see `samegrad.shared_secret`
    caller                       its own proof
    listener                     that it is welcome

Messages are lines of JSON. Rank 0 makes the key and tells it in the store in which the ranks meet. A stranger is let
go; it learns nothing, and can delay the start for some seconds.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from samegrad.shared_secret import is_proof, new_nonce, proof
from samegrad.workers.meeting import Meeting

__all__ = ["call_each_other"]

_WITHIN_S = 60.0  # all ranks are there when it begins
_STRANGER_S = 5.0
_ATTEMPT_S = 10.0
_RETRY_S = 0.05
_BACKLOG = 1024
_LONGEST = 1024  # bytes of a line


def call_each_other(
    meeting: Meeting, rank: int, size: int, address: str
) -> tuple[dict[int, socket.socket], list[str], list[str]]:
    """The connections of this rank, by the rank at the other end; the names of all ranks' hosts; and what has failed,
    by rank, on any of them: then there are no connections.

    address: of this process for the others, where it listens meanwhile. All ranks call it. Raises what
    `meeting.exchange` does.
    """
    with contextlib.ExitStack() as opened:
        failure, listener = "", None
        own: dict[str, Any] = {"host": platform.node(), "at": None, "key": new_nonce() if rank == 0 else None}
        try:
            listener = opened.enter_context(
                socket.create_server((address, 0), family=_family(address), backlog=max(size, _BACKLOG))
            )
            own["at"] = [address, listener.getsockname()[1]]
        except OSError as error:
            failure = f"rank {rank} cannot listen at {address!r}: {error}"
        records = meeting.exchange("calling each other", own)
        hosts = [str(record["host"]) for record in records]
        ends: dict[int, socket.socket] = {}
        if listener is not None and all(record["at"] for record in records):
            key, deadline = records[0]["key"], time.monotonic() + _WITHIN_S
            try:
                for other in range(rank):
                    ends[other] = opened.enter_context(_call(records[other]["at"], [rank, other], key, deadline))
                _answer(listener, ends, rank, size, key, deadline, opened)
            except OSError as error:
                failure = f"rank {rank}: {error}"
        failures = [text for text in meeting.exchange("having called each other", failure) if text]
        if failures:
            return {}, hosts, failures
        opened.pop_all()
        if listener is not None:
            listener.close()
        for end in ends.values():
            end.settimeout(None)
        return ends, hosts, []


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]


def _call(at: list[Any], ranks: list[int], key: str, deadline: float) -> socket.socket:
    """A connection of `ranks[0]`, this one, to `ranks[1]`, which listens `at` a host and port."""
    while True:
        within = min(deadline, time.monotonic() + _ATTEMPT_S)
        try:
            with _kept_if_well(socket.create_connection((at[0], at[1]), _left(within))) as end:
                own = new_nonce()
                _send(end, {"ranks": ranks, "nonce": own}, within)
                given = _receive(end, within)
                if not is_proof(given.get("proof"), key, "listener", ranks, own, given.get("nonce")):
                    raise ConnectionRefusedError("what answers there does not know the key of this job")
                _send(end, {"proof": proof(key, "caller", ranks, own, given["nonce"])}, within)
                _receive(end, within)
                return end
        except OSError as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise TimeoutError(f"no connection to rank {ranks[1]} at {at[0]}:{at[1]}: {error}") from error
            time.sleep(_RETRY_S)


def _answer(
    listener: socket.socket,
    ends: dict[int, socket.socket],
    rank: int,
    size: int,
    key: str,
    deadline: float,
    opened: contextlib.ExitStack,
) -> None:
    """Adds the connections of all ranks that are to call this one to `ends`."""
    while missing := sorted(set(range(rank + 1, size)) - set(ends)):
        try:
            listener.settimeout(_left(deadline))
            end, _ = listener.accept()
        except TimeoutError:
            raise TimeoutError(f"no call from ranks {', '.join(map(str, missing))}") from None
        within = min(deadline, time.monotonic() + _STRANGER_S)
        with contextlib.suppress(OSError, LookupError, TypeError, ValueError), _kept_if_well(end):
            hello = _receive(end, within)
            ranks = hello["ranks"]
            caller, called = map(int, ranks)
            if called != rank or not rank < caller < size:
                raise ValueError(f"no call of a rank above {rank}: {ranks}")
            own = new_nonce()
            _send(end, {"nonce": own, "proof": proof(key, "listener", ranks, hello["nonce"], own)}, within)
            if not is_proof(_receive(end, within).get("proof"), key, "caller", ranks, hello["nonce"], own):
                raise ConnectionRefusedError
            _send(end, {"welcome": True}, within)
            if caller in ends:  # it has given up the connection before
                ends[caller].close()
            ends[caller] = opened.enter_context(end)


@contextlib.contextmanager
def _kept_if_well(end: socket.socket) -> Iterator[socket.socket]:
    try:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for what forgets connections that are silent
        yield end
    except BaseException:
        end.close()
        raise


def _send(end: socket.socket, record: Mapping[str, Any], deadline: float) -> None:
    end.settimeout(_left(deadline))
    end.sendall(json.dumps(record).encode() + b"\n")


def _receive(end: socket.socket, deadline: float) -> dict[str, Any]:
    """The next line; not a byte beyond it. Raises OSError for what is none, too."""
    line = bytearray()
    while not line.endswith(b"\n"):
        end.settimeout(_left(deadline))
        byte = end.recv(1)
        if not byte or len(line) == _LONGEST:
            raise ConnectionAbortedError("the other side has ended the connection, or says too much")
        line += byte
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ConnectionAbortedError("the other side says what is no message")
    return record


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
