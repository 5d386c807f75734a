"""How far pushes may be ahead of the sums that come back."""

from __future__ import annotations

from samegrad.kvstore.lead import Lead

MB = 1 << 20


def busy(most: int) -> Lead:
    """One whose connection has carried much, up to 10.0."""
    lead = Lead(most, MB)
    lead.pushed(-1, 2 * most, now=9.9)
    lead.answered(-1, now=10.0)
    return lead


def test_the_first_pushes_are_few_until_a_sum_comes_back() -> None:
    lead = Lead(8 * MB, 2 * MB)
    for request in range(3):
        assert lead.pause_s(10.0) <= 0
        lead.pushed(request, MB, now=10.0)
    assert lead.pause_s(10.0) > 0
    assert lead.answered(0, now=10.01)  # 2 MB are under way, and 3 may be
    lead.pushed(3, 2 * MB, now=10.01)
    assert lead.pause_s(10.01) > 0
    assert not lead.answered(4, now=10.02)


def test_nobody_waits_long_at_the_beginning_for_one_that_computes() -> None:
    lead = Lead(4 * MB, MB)
    lead.pushed(0, 2 * MB, now=10.0)
    assert 0 < lead.pause_s(10.0) <= 0.2
    assert lead.pause_s(10.2) <= 0


def test_without_a_link_nobody_waits_at_the_beginning() -> None:
    lead = Lead(4 * MB, 4 * MB)
    for request in range(9):
        assert lead.pause_s(10.0) <= 0
        lead.pushed(request, MB, now=10.0)


def test_a_connection_that_was_busy_does_not_begin_anew() -> None:
    lead = busy(4 * MB)
    for request in range(5):
        assert lead.pause_s(10.1) <= 0
        lead.pushed(request, MB, now=10.1)
    lead = busy(4 * MB)
    lead.pushed(0, 2 * MB, now=10.3)
    assert lead.pause_s(10.3) > 0


def test_who_is_ahead_waits_for_the_next_sum() -> None:
    lead = busy(2 * MB)
    for request in range(4):
        lead.pushed(request, MB, now=10.0)
    assert not lead.answered(0, now=10.0)  # 3 MB are left
    assert lead.pause_s(10.0) > 0
    assert lead.answered(1, now=10.01)
    assert lead.pause_s(10.01) <= 0


def test_what_came_back_makes_room_up_to_the_usual() -> None:
    lead = Lead(4 * MB, MB)
    for request in range(8):
        lead.pushed(request, MB, now=10.0)
    for request in range(4):
        lead.answered(request, now=10.0)
    assert lead.pause_s(10.0) <= 0  # 4 MB
    lead.pushed(8, MB, now=10.0)
    assert lead.pause_s(10.0) > 0


def flowing(sums: int, gap_s: float) -> tuple[Lead, float]:
    """One that is always ahead, after so many sums that came `gap_s` apart; and when the last one came."""
    lead, now = Lead(0, 0), 10.0
    for request in range(100):
        lead.pushed(request, MB, now)
    for request in range(sums):
        now += gap_s
        lead.answered(request, now)
    return lead, now


def test_nobody_waits_long_for_one_that_sends_nothing() -> None:
    lead, last = flowing(90, gap_s=0.01)
    assert 0.02 < lead.pause_s(last) < 0.1  # a few times from one sum to the next
    assert lead.pause_s(last + 0.1) <= 0


def test_a_pause_of_another_worker_counts_as_no_gap() -> None:
    lead, last = flowing(50, gap_s=0.01)
    usual = lead.pause_s(last)
    lead.answered(50, now=last + 50)
    assert usual < lead.pause_s(last + 50) < 1.5 * usual


def test_slower_links_make_for_longer_waits() -> None:
    lead, last = flowing(60, gap_s=0.2)
    assert 0.5 < lead.pause_s(last) <= 1.0


def test_answers_to_what_was_no_push_count_nothing() -> None:
    lead = Lead(0, 0)
    lead.pushed(1, MB, now=0.5)
    assert not lead.answered(2, now=1.0)
    assert lead.answered(1, now=1.0)
    assert not lead.answered(1, now=1.0)
    assert lead.pause_s(1.0) <= 0
