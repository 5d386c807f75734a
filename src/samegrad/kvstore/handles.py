"""What a worker waits for: an answer that comes later, and what it is waited for with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from samegrad.errors import PeerFailed, PeerTimeout
from samegrad.kvstore.messages import Bye, Failed, Message

__all__ = ["Handle", "Late", "Peer", "Question", "last_message"]

_LONGEST_TEXT = 2000


@dataclass(slots=True)
class Question:
    """A message to a server, with flat tensors as its payload; its answer's values are written into `targets`.

    done: called once, with the answer, or with what has failed; by another thread, or before `ask` returns.
    """

    message: Message
    values: Sequence[Tensor]
    targets: Sequence[Tensor]
    priority: float
    done: Callable[[Message | None, Exception | None], None]


class Peer(Protocol):
    """A server, as one worker sees it. slice_bytes: how long slices on it may be."""

    slice_bytes: int

    def ask(self, question: Question) -> None:
        """Sends `question`, sooner or later; returns at once. After a failure, its `done` is told that."""
        ...

    def close(self, error: Exception | None, timeout_s: float) -> None:
        """Ends the connection. If all is well, what was asked is sent and answered before; else the others are told
        the `error`, and so is who waits for an answer."""
        ...


def last_message(error: Exception | None) -> Message:
    """What a worker tells a server when it closes the store: that all is well, or who has failed, and how."""
    if error is None:
        return Bye()
    if isinstance(error, PeerFailed) and error.rank >= 0:  # heard from another server; it is not this worker's fault
        return Failed(error.rank, str(error)[:_LONGEST_TEXT])
    return Failed(-1, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT])


@dataclass(frozen=True, slots=True)
class Late:
    """Why something is not done: `worker` (-1: none) has not done its part, in words."""

    worker: int = -1
    text: str = ""


class Handle:
    """Something that was begun: a push, a pull, a barrier. Until it is done, what was pushed must not be changed."""

    def __init__(
        self,
        what: str,
        timeout_s: float,
        questions: int,
        finish: Callable[[], Tensor | list[Tensor] | None],
        explain: Callable[[], Late] | None = None,
    ) -> None:
        self._what, self._timeout_s, self._finish, self._explain = what, timeout_s, finish, explain
        self._missing = questions
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None
        if questions == 0:
            self._ended.set()

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> Tensor | list[Tensor] | None:
        """Waits until it is done. Returns what was pulled, as it was asked for: one tensor, or a list; None of a push.

        timeout_s: the store's if None. Raises PeerTimeout after that, and whatever has failed: RequestRefused,
        PeerFailed if another worker was lost, ServerLost.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        if not self._ended.wait(limit):
            late = Late() if self._explain is None else self._explain()
            raise PeerTimeout(
                f"{self._what} was not done within {limit:g} s: {late.text or f'{self._missing} answers are missing'}. "
                f"Are all workers alive, and do all push and pull the same keys?",
                rank=late.worker,
            )
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._finish()

    def answered(self, _: Message | None, error: Exception | None) -> None:
        """One of the questions is answered, or has failed; the first failure is that of the handle."""
        with self._lock:
            self._missing -= 1
            self._error = self._error or error
            if self._missing == 0 or error is not None:
                self._ended.set()
