"""Questions of a worker to several servers, put at once, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from samegrad.errors import PeerTimeout, SamegradError
from samegrad.kvstore.handles import Handle, Late, Peer, Question
from samegrad.kvstore.messages import Explain, Explained, Message

__all__ = ["Ask", "Asked", "ask_all", "ask_who_is_late"]

_EXPLAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the server numbered `server`; see `Question`."""

    server: int
    message: Message
    values: Sequence[Tensor] = ()
    targets: Sequence[Tensor] = ()


Ask = Callable[[Sequence[Asked]], list[Message]]
"""Puts questions, waits, and returns the answers in their order."""


def ask_all(peers: Sequence[Peer], asked: Sequence[Asked], what: str, timeout_s: float) -> list[Message]:
    """Puts all questions to `peers`, and waits for the answers, in the order of the questions. Raises as `Handle.wait`
    does, with `what` it is about."""
    answers: list[Message | None] = [None] * len(asked)
    handle = Handle(what, timeout_s, len(asked), lambda: None)
    for at, each in enumerate(asked):

        def done(answer: Message | None, error: Exception | None, at: int = at) -> None:
            answers[at] = answer
            handle.answered(answer, error)

        peers[each.server].ask(Question(each.message, each.values, each.targets, 0.0, done))
    handle.wait()
    return [answer for answer in answers if answer is not None]


def ask_who_is_late(peers: Sequence[Peer], what: str, clocks: Sequence[tuple[int, list[int], list[int]]]) -> Late:
    """Asks servers whom this worker waits for. what: see `Explain`. clocks: server, slices there, and a clock for each.

    Takes at most 2 s for each server.
    """
    by_server: dict[int, tuple[list[int], list[int]]] = {}
    for server, slices, steps in clocks:
        numbers, clock = by_server.setdefault(server, ([], []))
        numbers += slices
        clock += steps
    worker, texts = -1, dict[str, None]()
    for server, (slices, steps) in by_server.items():
        try:
            asked = [Asked(server, Explain(0, what, slices, steps))]
            (answer,) = ask_all(peers, asked, "asking who is late", _EXPLAIN_S)
        except PeerTimeout:
            texts[f"server {server} gives no answer"] = None
        except SamegradError:  # the store has failed, as who waits is told
            continue
        else:
            if isinstance(answer, Explained) and answer.late:
                worker = answer.late[0] if worker < 0 else worker
                texts[answer.text] = None
    return Late(worker, "; ".join(texts))
