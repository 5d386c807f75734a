"""A worker's connection to one server: a thread that sends what is asked, and one that receives the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from samegrad import errors
from samegrad.errors import (
    ConfigurationError,
    FrameRefused,
    PeerFailed,
    PeerTimeout,
    SamegradError,
    ServerLost,
    StoreError,
)
from samegrad.kvstore.handles import Question, last_message
from samegrad.kvstore.handshake import LONGEST_S, answer, check_reach, is_loopback, parse_address
from samegrad.kvstore.lead import AHEAD_SLICES, Lead
from samegrad.kvstore.link import Link
from samegrad.kvstore.messages import Challenge, Failed, Hello, Message, Ping, Push, Refused, Values, Welcome
from samegrad.kvstore.placement import LINK_SLICE_BYTES, SLICE_BYTES, UNIT_BYTES, WHOLE_BYTES
from samegrad.kvstore.ring import new_rings
from samegrad.kvstore.tls import greet
from samegrad.machine import orders_stores
from samegrad.memory import host_identity, offered_memory
from samegrad.shared_secret import new_nonce

__all__ = ["LONGEST_START_S", "Caller", "Connection", "connect", "connect_all", "error_of"]

LONGEST_START_S = 60.0
"""How long servers are waited for at the beginning, at most."""

_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects to servers, as worker number `worker` of `job`; -1 of none: to look.

    shares: whether payloads may go through memory that both share, if a server is on this host. tls: with which the
    connection is secured; then nothing is shared.
    """

    worker: int
    job: dict[str, Any]
    secret: str | None = field(default=None, repr=False)
    shares: bool = False
    tls: ssl.SSLContext | None = None


def connect(address: str, caller: Caller, timeout_s: float) -> tuple[Link, Welcome]:
    """A link of `caller` to the server at `address`, and how that has welcomed it.

    Waits up to `timeout_s` for the server to be there. Raises ServerLost if it is not, AccessRefused,
    ConfigurationError for what the server does not agree to.
    """
    host, port = parse_address(address)
    check_reach(host, caller.secret, "a connection to")
    deadline = time.monotonic() + timeout_s
    end = _reach(host, port, timeout_s)
    link = Link(end, max(deadline - time.monotonic(), 0.1))
    secret, hello = caller.secret, Hello(caller.worker, new_nonce(), caller.job)
    try:
        if caller.tls is not None:
            link.secure(partial(greet, context=caller.tls, host=host, address=address))
        if caller.tls is not None or not (caller.shares and is_loopback(host) and orders_stores()):
            welcome = _shake_hands(link, secret, hello, address)
        else:
            with new_rings() as (fd, out, into):
                hello = dataclasses.replace(hello, host=host_identity(), memory=[os.getpid(), *offered_memory(fd)])
                welcome = _shake_hands(link, secret, hello, address)
                if welcome.shares:
                    link.share(out, into)
        link.set_timeout(welcome.timeout_s)  # the server answers pings, which come four times as often
        return link, welcome
    except OSError as error:
        link.close()
        if isinstance(error, SamegradError):
            raise
        raise ServerLost(f"the server at {address} ended the connection at its beginning: {error}") from error
    except BaseException:
        link.close()
        raise


def _reach(host: str, port: int, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), 0.01))
        except OSError as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise ServerLost(
                    f"no server answers at {host}:{port} within {timeout_s:g} s: {error.strerror or error}. Start one "
                    f"with `samegrad serve --port {port}`, or look at the address"
                ) from error
            time.sleep(_RETRY_S)


def _shake_hands(link: Link, secret: str | None, hello: Hello, address: str) -> Welcome:
    link.send(hello)
    asked = _told(link, address)
    if not isinstance(asked, Challenge):
        raise FrameRefused(f"the server at {address} sent {type(asked).__name__} where a Challenge was expected")
    link.send(answer(secret, hello, asked, address))
    welcome = _told(link, address)
    if not isinstance(welcome, Welcome):
        raise FrameRefused(f"the server at {address} sent {type(welcome).__name__} where a Welcome was expected")
    longest = welcome.slice_bytes
    if not WHOLE_BYTES <= longest <= SLICE_BYTES or longest % UNIT_BYTES or not 0 < welcome.timeout_s < LONGEST_S:
        raise FrameRefused(
            f"the server at {address} wants slices of {longest} bytes and a sign within {welcome.timeout_s} s; "
            f"expected whole units of {UNIT_BYTES} bytes, from {WHOLE_BYTES} to {SLICE_BYTES}, and up to "
            f"{LONGEST_S:g} s. Is it of another version?"
        )
    return welcome


def _told(link: Link, address: str) -> Message:
    message, _ = link.receive()
    if isinstance(message, Refused):
        raise error_of(message, f"the server at {address}")
    return message


def error_of(refused: Refused, who: str) -> Exception:
    """The error that a server has named; only those that it may name."""
    known = (StoreError, ConfigurationError)
    kind = getattr(errors, refused.error, None) if refused.error in errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, known)):
        kind = StoreError
    return kind(f"{who} refuses: {refused.text}")


def connect_all(
    addresses: Sequence[str], caller: Caller, timeout_s: float, on_failure: Callable[[Exception], None]
) -> list[Connection]:
    """Connections to all servers, or to none: raises what `connect` does. timeout_s: for each, but a minute at most."""
    with contextlib.ExitStack() as made:
        links = []
        for address in addresses:
            least = min(timeout_s, LONGEST_START_S)
            links.append(connect(address, caller, least))
            made.callback(links[-1][0].close)
        made.pop_all()
    return [
        Connection(address, link, welcome, timeout_s, on_failure)
        for address, (link, welcome) in zip(addresses, links, strict=True)
    ]


class Connection:
    """The connection of a worker to the server at `address`, which is ready for questions.

    on_failure: called once with what ended the connection, if that was not `close`; by the thread that receives.
    """

    def __init__(
        self, address: str, link: Link, welcome: Welcome, timeout_s: float, on_failure: Callable[[Exception], None]
    ) -> None:
        self._address, self._link, self._on_failure = address, link, on_failure
        self.slice_bytes = welcome.slice_bytes
        self._ping_s = min(welcome.timeout_s, timeout_s) / 4
        self._queue: list[tuple[float, int, Question]] = []
        self._order = itertools.count()
        self._requests = itertools.count(1)
        self._asked: dict[int, Question] = {}
        most = AHEAD_SLICES * welcome.slice_bytes
        self._lead = Lead(most, welcome.slice_bytes if welcome.slice_bytes <= LINK_SLICE_BYTES else most)
        self._changed = threading.Condition()
        self._last: Message | None = None
        self._failure: Exception | None = None
        self._sender = threading.Thread(target=self._send, name=f"store to {address}", daemon=True)
        self._receiver = threading.Thread(target=self._receive, name=f"store from {address}", daemon=True)
        self._sender.start()
        self._receiver.start()

    def ask(self, question: Question) -> None:
        """See `Peer`."""
        with self._changed:
            if self._failure is None and self._last is None:
                heapq.heappush(self._queue, (-question.priority, next(self._order), question))
                self._changed.notify_all()
                return
        question.done(None, self._failure or StoreError(f"the connection to the server at {self._address} is closed"))

    def close(self, error: Exception | None, timeout_s: float) -> None:
        """See `Peer`."""
        with self._changed:
            waiting = []
            if error is None:
                self._changed.wait_for(lambda: self._failure is not None or not (self._queue or self._asked), timeout_s)
            if error is None and (self._queue or self._asked):
                error = PeerTimeout(f"{len(self._queue) + len(self._asked)} requests were not done at the end")
            if error is not None:
                waiting = self._take_waiting()
            self._last = last_message(error)
            self._changed.notify_all()
        for question in waiting:
            question.done(None, error)
        self._sender.join(timeout_s if error is None else 1.0)
        if error is None:  # the server closes the connection when it has read that
            self._receiver.join(timeout_s)
        self._link.close()
        for thread in (self._sender, self._receiver):
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _take_waiting(self) -> list[Question]:
        waiting = [*self._asked.values(), *(question for _, _, question in self._queue)]
        self._asked.clear()
        self._queue.clear()
        return waiting

    def _next(self) -> Question | None:
        """What is to be sent next; a Ping if nothing may be for a while; None at the end."""
        with self._changed:
            ping_at = time.monotonic() + self._ping_s
            while self._failure is None and (pause_s := self._pause_s()) > 0:
                left_s = ping_at - time.monotonic()
                if left_s <= 0:
                    return Question(Ping(), (), (), 0.0, lambda *_: None)
                self._changed.wait(min(pause_s, left_s))
            if self._failure is not None or not self._queue:
                return None
            question = heapq.heappop(self._queue)[2]
            request = next(self._requests)
            question.message = dataclasses.replace(question.message, request=request)  # type: ignore[call-arg]
            self._asked[request] = question
            if _is_added(question):
                self._lead.pushed(request, sum(value.nbytes for value in question.values), time.monotonic())
            return question

    def _pause_s(self) -> float:
        """Seconds until something is to be sent, unless something changes; 0 or less: now."""
        if not self._queue:
            return math.inf if self._last is None else 0.0
        return self._lead.pause_s(time.monotonic()) if _is_added(self._queue[0][2]) else 0.0

    def _send(self) -> None:
        try:
            while (question := self._next()) is not None:
                self._link.send(question.message, question.values)
            if self._failure is None and self._last is not None:
                self._link.send(self._last)
        except (OSError, FrameRefused) as error:
            self._fail(error)

    def _receive(self) -> None:
        try:
            while True:
                self._take()
        except Exception as error:
            self._fail(error)

    def _take(self) -> None:
        message, prefix = self._link.receive()
        if isinstance(message, Ping):
            return
        if isinstance(message, Failed):
            raise PeerFailed(message.text, message.worker)
        request = getattr(message, "request", 0)
        with self._changed:
            question = self._asked.get(request)
        if question is None:
            if self._last is not None:  # an answer to what nobody waits for any more
                self._link.receive_payload(prefix)
                return
            raise FrameRefused(f"the server at {self._address} answers request {request}, which was not made")
        if isinstance(message, Values):
            self._link.receive_payload_into(prefix, question.targets)
        if isinstance(message, Refused):
            question.done(None, error_of(message, f"the server at {self._address}"))
        else:
            question.done(message, None)
        with self._changed:
            self._asked.pop(request, None)
            may_go_on = self._lead.answered(request, time.monotonic())
            if may_go_on or not self._asked:
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """The connection is over: tells everybody who waits, once."""
        if not isinstance(error, SamegradError):
            what = "gives no sign" if isinstance(error, TimeoutError) else "was lost"
            error = ServerLost(f"the server at {self._address} {what}: {error}")
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            waiting, is_leaving = self._take_waiting(), self._last is not None
            self._changed.notify_all()
        if not is_leaving:
            self._on_failure(error)  # first, so that who is told below finds the store failed
        for question in waiting:
            question.done(None, error)
        with contextlib.suppress(OSError):
            self._link.close()


def _is_added(question: Question) -> bool:
    """Whether it pushes values, and the sums are to come back by the same question."""
    return isinstance(question.message, Push) and question.message.pull
