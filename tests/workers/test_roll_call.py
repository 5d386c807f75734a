"""Who is to blame for an exchange that fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.workers.lifelines import lifelines
from tests.workers.processes import wait_until

from samegrad.errors import CallMismatch, GroupError, PeerFailed, PeerTimeout
from samegrad.workers import lifeline, roll_call
from samegrad.workers.lifeline import Lifeline
from samegrad.workers.roll_call import RollCall

BROKEN = "[pair.cc:537] Read error [10.0.0.1]:5: Connection reset. This is typically caused by bugs\nmore"
LATE = "Timed out waiting 1000ms for recv operation"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_GRACE_S", 0.05)
    monkeypatch.setattr(roll_call, "_NOTICE_S", 0.1)
    monkeypatch.setattr(roll_call, "_ANSWER_S", 0.5)


@pytest.fixture
def lines() -> Iterator[list[Lifeline]]:
    with lifelines(4) as made:
        yield made


class Group:
    """Counts how often it is interrupted."""

    def __init__(self) -> None:
        self.times = 0

    def interrupt(self) -> None:
        self.times += 1


def fail(call: RollCall, operation: str, text: str) -> GroupError:
    """What is raised where torch says `text` at `operation`."""
    with pytest.raises(GroupError) as caught, call.waiting(operation):
        raise RuntimeError(text)
    return caught.value


@pytest.mark.parametrize("gone", [{1}, {0, 3}])
def test_ranks_that_have_died_are_named_by_all_others(gone: set[int], lines: list[Lifeline]) -> None:
    there = [rank for rank in range(4) if rank not in gone]
    calls = {rank: RollCall(lines[rank]) for rank in there}
    for rank in sorted(gone):
        lines[rank].forget()
    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(lambda rank: fail(calls[rank], "bucket 3", BROKEN), there))
    for rank, error in zip(there, errors, strict=True):
        assert type(error) is PeerFailed
        assert error.rank in gone
        assert f"rank {rank} of 4, on host-{rank}, at 'bucket 3': there is nothing to wait for; rank" in str(error)
        assert all(f"{each} (on host-{each})" in str(error) for each in gone), error
        assert not any(f"{each} (on host-{each})" in str(error) for each in there), error
        assert "killed or crashed" in str(error)


def test_a_rank_that_gives_no_sign_is_named_by_all_and_none_that_waits(lines: list[Lifeline]) -> None:
    calls = [RollCall(line) for line in lines[:3]]
    with ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(lambda rank: fail(calls[rank], "x", LATE if rank else BROKEN), range(3)))
    for error in errors:
        assert type(error) is PeerTimeout
        assert error.rank == 3
        assert "rank 3 (on host-3) gives no sign of life" in str(error)
    assert LATE in str(errors[1])


def test_a_rank_that_is_busy_is_named_with_what_it_did_before(lines: list[Lifeline]) -> None:
    calls = [RollCall(line) for line in lines]
    with calls[2].waiting("step 4"):
        pass
    with ExitStack() as waiting:
        for rank in (1, 3):
            waiting.enter_context(calls[rank].waiting("step 5"))
        error = fail(calls[0], "step 5", LATE)
    assert (type(error), error.rank) == (PeerTimeout, 2)
    assert "rank 2 (on host-2) lives, but has not come: it has been busy with something else for " in str(error)
    assert "since 'step 4'" in str(error)


@pytest.mark.parametrize(("text", "kind"), [(LATE, PeerTimeout), (BROKEN, PeerFailed)])
def test_ranks_at_different_things_are_named_with_them(
    text: str, kind: type[GroupError], lines: list[Lifeline]
) -> None:
    calls = [RollCall(line) for line in lines]
    with ExitStack() as waiting:
        for rank in (1, 2, 3):
            waiting.enter_context(calls[rank].waiting("step" if rank < 3 else "evaluate"))
        error = fail(calls[0], "step", text)
    assert type(error) is kind
    assert "all ranks answer still: rank 0 at 'step', rank 1 at 'step', rank 2 at 'step', rank 3 at 'evaluate'" in str(
        error
    )


def test_where_all_wait_alike_the_others_are_told_what_has_failed(lines: list[Lifeline]) -> None:
    calls = [RollCall(line) for line in lines]
    with ExitStack() as waiting:
        for rank in (1, 2, 3):
            waiting.enter_context(calls[rank].waiting("x"))
        error = fail(calls[0], "x", BROKEN)
    assert (type(error), error.rank) == (PeerFailed, -1)
    assert "Connection reset.); all ranks answer still: is the network between their hosts at fault?" in str(error)
    told = fail(calls[2], "x", "Connection closed")
    assert (type(told), told.rank) == (PeerFailed, 0)
    assert "rank 0 (on host-0) has failed at 'x' ([pair.cc:537] Read error" in str(told)


def test_a_rank_that_is_told_names_who_has_died_and_who_says_so(lines: list[Lifeline]) -> None:
    calls = [RollCall(line) for line in lines[:3]]
    group = Group()
    calls[0].enter(group)

    def wait() -> GroupError:
        with pytest.raises(GroupError) as caught, calls[0].waiting("x"):
            wait_for_interruption()
        return caught.value

    def wait_for_interruption() -> None:
        wait_until(lambda: group.times > 0)
        assert calls[0].is_vain()
        raise RuntimeError("Application timeout caused pair closure")

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(wait)
        with calls[2].waiting("x"):
            assert fail(calls[1], "x", LATE).rank == 3
            told = waits.result()
    assert (type(told), told.rank) == (PeerTimeout, 3)
    assert "rank 3 (on host-3) gives no sign of life" in str(told)
    assert str(told).endswith("(says rank 1 (on host-1))")


def test_only_who_waits_is_interrupted_and_later_waits_fail_at_once(lines: list[Lifeline]) -> None:
    call, group = RollCall(lines[0]), Group()
    call.enter(group)
    lines[1].forget()
    wait_until(call.is_vain)
    assert group.times == 0
    said = r"at 'y': there is nothing to wait for; rank 1 \(on host-1\) has ended"
    with pytest.raises(PeerFailed, match=said), call.waiting("y"):
        raise AssertionError
    assert group.times == 1


def test_a_rank_that_has_left_is_named_with_its_last_words(lines: list[Lifeline]) -> None:
    call = RollCall(lines[0])
    lines[3].close("has ended: it raised ValueError: bad")
    error = fail(call, "x", BROKEN)
    assert (type(error), error.rank) == (PeerFailed, 3)
    assert str(error).endswith("rank 3 (on host-3) has ended: it raised ValueError: bad")


def test_errors_of_the_group_pass_as_they_are(lines: list[Lifeline]) -> None:
    with pytest.raises(CallMismatch, match="told"), RollCall(lines[0]).waiting("x"):
        raise CallMismatch("told")
