"""Questions of a worker to several servers, put at once, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from samegrad.kvstore.handles import Handle, Peer, Question
from samegrad.kvstore.messages import Message

__all__ = ["Ask", "Asked", "ask_all"]


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
