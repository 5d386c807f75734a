"""How far pushes may be ahead of the sums that come back."""

from __future__ import annotations

from samegrad.kvstore.lead import Lead

MB = 1 << 20


def test_pushes_go_until_so_much_is_on_its_way() -> None:
    lead = Lead(2 * MB)
    for request in range(3):
        assert lead.pause_s(0.0) <= 0
        lead.pushed(request, MB)
    assert lead.pause_s(0.0) <= 0  # no sum has come yet: the others may not be there


def test_who_is_ahead_waits_for_the_next_sum() -> None:
    lead = Lead(2 * MB)
    for request in range(4):
        lead.pushed(request, MB)
    assert not lead.answered(0, now=10.0)  # 3 MB are left
    assert lead.pause_s(10.0) > 0
    assert lead.answered(1, now=10.01)
    assert lead.pause_s(10.01) <= 0


def flowing(sums: int, gap_s: float) -> tuple[Lead, float]:
    """One that is always ahead, after so many sums that came `gap_s` apart; and when the last one came."""
    lead, now = Lead(0), 10.0
    for request in range(100):
        lead.pushed(request, MB)
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
    lead = Lead(0)
    lead.pushed(1, MB)
    assert not lead.answered(2, now=1.0)
    assert lead.answered(1, now=1.0)
    assert not lead.answered(1, now=1.0)
    assert lead.pause_s(1.0) <= 0
