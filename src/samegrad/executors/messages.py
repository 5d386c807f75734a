"""The rounds of a schedule as one rank sees them that can only send and receive.

What a rank sends to another one in a round is one message, and so is what it receives: the cells in listed order.
Nothing here knows about tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from samegrad.schedules.ir import Op, Round, Transfer

__all__ = ["Apply", "Message", "RankRound", "Spot", "rounds_of"]


class Spot(NamedTuple):
    """A cell of this rank."""

    slot: int
    chunk: int


class Message(NamedTuple):
    """Cells that go to, or come from, `peer`.

    is_direct: of one that is received: that it can be written to the cells at once; nothing else in the round reads or
        writes them, and they are copied.
    """

    peer: int
    spots: tuple[Spot, ...]
    is_direct: bool = False


class Apply(NamedTuple):
    """What a transfer does to `spot`. Its value is cell `source` of this rank; or, if `peer` is not this rank, the
    cell number `number` of the message from there."""

    spot: Spot
    op: Op
    peer: int
    source: Spot
    number: int


@dataclass(frozen=True, slots=True)
class RankRound:
    """kept: cells to copy before anything is received, since they are read and written in this round."""

    kept: tuple[Spot, ...]
    sent: tuple[Message, ...]
    received: tuple[Message, ...]
    applied: tuple[Apply, ...]


def rounds_of(rounds: Iterable[Round], rank: int) -> list[RankRound]:
    """The rounds as `rank` sees them. What it does by itself belongs to the end of the round before, if it can: then a
    piece of a buffer goes on while the next one is on its way."""
    found: list[RankRound] = []
    for each in rounds:
        own = _round_of(list(each.where((each.source == rank) | (each.target == rank))), rank)
        if found and _follows(own, found[-1]):
            found[-1] = replace(found[-1], applied=found[-1].applied + own.applied)
        else:
            found.append(own)
    return found


def _follows(each: RankRound, before: RankRound) -> bool:
    """Whether it is additions only, of what is there at the end of the round before, and to what nobody reads then."""
    has_copies = bool(each.kept or {apply.source for apply in each.applied} & set(before.kept))
    read = {spot for message in before.sent for spot in message.spots}
    return not (each.sent or each.received or has_copies or {apply.spot for apply in each.applied} & read)


def _round_of(moves: list[Transfer], rank: int) -> RankRound:
    sent: dict[int, list[Spot]] = {}
    received: dict[int, list[Spot]] = {}
    applied = []
    read = {Spot(move.source_slot, move.chunk) for move in moves if move.source == rank}
    written: dict[Spot, int] = {}
    copies_only: dict[int, bool] = {}
    for move in moves:
        source, target = Spot(move.source_slot, move.chunk), Spot(move.target_slot, move.chunk)
        if move.source == rank and move.target != rank:
            sent.setdefault(move.target, []).append(source)
        if move.target == rank:
            number = 0
            if move.source != rank:
                spots = received.setdefault(move.source, [])
                number = len(spots)
                spots.append(target)
                copies_only[move.source] = copies_only.get(move.source, True) and move.op is Op.COPY
            applied.append(Apply(target, move.op, move.source, source, number))
            written[target] = written.get(target, 0) + 1

    def distance(message: tuple[int, list[Spot]]) -> tuple[bool, int]:
        """Who follows this rank is first: no rank is the first one for all others."""
        return message[0] < rank, message[0]

    direct = {
        peer
        for peer, spots in received.items()
        if copies_only[peer] and all(written[spot] == 1 and spot not in read for spot in spots)
    }
    return RankRound(
        kept=tuple(sorted(read & set(written))),
        sent=tuple(Message(peer, tuple(spots)) for peer, spots in sorted(sent.items(), key=distance)),
        received=tuple(
            Message(peer, tuple(spots), peer in direct) for peer, spots in sorted(received.items(), key=distance)
        ),
        applied=tuple(each for each in applied if each.peer not in direct),
    )
