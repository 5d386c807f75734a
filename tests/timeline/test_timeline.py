"""Spans, what they are summed up to, and what viewers are given."""

from __future__ import annotations

import json
import threading

import pytest

from samegrad.errors import ConfigurationError
from samegrad.timeline import LANES, Lane, Span, Timeline, recording, span, spans, summary_of, trace_events

MS = 1_000_000


def timeline(*parts: tuple[Lane, int, int]) -> Timeline:
    """Spans from and to a millisecond."""
    return Timeline([Span(lane, lane, start * MS, stop * MS, {}) for lane, start, stop in parts])


def test_spans_are_recorded_from_all_threads_and_only_while_recording() -> None:
    with span("before"):
        pass
    with recording(Timeline()) as found:
        with span("outer", "step", step=3), span("inner"):
            pass

        def exchange() -> None:
            with span("of another", "exchange", bucket=1):
                pass

        thread = threading.Thread(target=exchange)
        thread.start()
        thread.join()
    with span("after"):
        pass
    assert [(each.name, each.lane, dict(each.arguments)) for each in found.spans] == [
        ("inner", "compute", {}),
        ("outer", "step", {"step": 3}),
        ("of another", "exchange", {"bucket": 1}),
    ]
    inner, outer, _ = found.spans
    assert outer.start_ns <= inner.start_ns <= inner.stop_ns <= outer.stop_ns


def test_a_span_ends_with_what_raises_in_it() -> None:
    with recording(Timeline()) as found, pytest.raises(ValueError, match="mine"), span("that fails"):
        raise ValueError("mine")
    assert [each.name for each in found.spans] == ["that fails"]


def test_one_timeline_at_a_time() -> None:
    with recording(Timeline()):
        with pytest.raises(ConfigurationError, match="is being recorded already"), recording(Timeline()):
            pass
        with span("still"):
            pass
    with recording(Timeline()):
        pass


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_SPANS", 2)
    with recording(Timeline()) as found:
        for _ in range(5):
            with span("x"):
                pass
    assert len(found.spans) == 2
    assert found.left_out == 3
    assert summary_of([found]).left_out == 3


def test_timelines_of_other_ranks_are_put_on_this_clock() -> None:
    own = timeline(("compute", 100, 103))
    own.left_out = 4
    found = Timeline.from_bytes(own.to_bytes(), later_ns=90 * MS)
    assert [(each.start_ns, each.stop_ns) for each in found.spans] == [(10 * MS, 13 * MS)]
    assert found.left_out == 4


def test_a_summary() -> None:
    """Two steps of two ranks; rank 1 computes twice as long. Of 4 + 4 ms of exchange of rank 0, 3 are hidden."""
    fast = timeline(
        *(("step", 0, 20), ("compute", 0, 6), ("exchange", 3, 7), ("waiting", 6, 16)),
        *(("step", 20, 40), ("compute", 20, 26), ("exchange", 26, 30), ("waiting", 26, 36)),
    )
    slow = timeline(
        *(("step", 0, 20), ("compute", 0, 12), ("exchange", 12, 16), ("waiting", 12, 16)),
        *(("step", 20, 40), ("compute", 20, 26), ("compute", 24, 32), ("exchange", 32, 36), ("compute", 90, 99)),
    )
    found = summary_of([fast, slow])
    assert found.steps == 2
    assert found.step_s == pytest.approx(0.020)
    assert found.compute_s == pytest.approx((0.006, 0.012))  # what overlaps counts once, what is in no step not at all
    assert found.waiting_s == pytest.approx((0.010, 0.002))
    assert found.exchange_s == pytest.approx((0.004, 0.004))
    assert found.hidden == pytest.approx(3 / 16)
    assert (found.slowest, found.is_uneven) == (1, True)
    assert found.slow_by == pytest.approx(2.0)
    assert found.sentence() == (
        "2 steps of 20.0 ms; 19% of the exchange was hidden behind computing; "
        "rank 1 was slow: it computed 2.00 times as long as the others"
    )
    assert json.loads(json.dumps(found.to_json()))["slowest"] == 1


def test_who_waits_while_computing_is_not_slow() -> None:
    """As in a forward pass that needs values of all ranks."""
    waits = timeline(("step", 0, 50), ("compute", 0, 40), ("waiting", 5, 20), ("waiting", 30, 45), ("exchange", 10, 30))
    late = timeline(("step", 0, 50), ("compute", 0, 25), ("exchange", 25, 30))
    found = summary_of([waits, late])
    assert found.compute_s == (0.015, 0.025)
    assert found.waiting_s == (0.03, 0.0)
    assert found.hidden == pytest.approx(10 / 25)
    assert found.slowest == 1


def test_a_summary_of_little() -> None:
    assert summary_of([Timeline()]).sentence() == "no step was recorded"
    alone = summary_of([timeline(("step", 0, 2), ("compute", 0, 1))])
    assert (alone.hidden, alone.slowest, alone.sentence()) == (None, None, "1 step of 2.00 ms")
    even = [timeline(("step", 0, 2), ("compute", 0, 1)), timeline(("step", 0, 2), ("compute", 1, 2))]
    assert summary_of(even).sentence().endswith("no rank was slow")


def test_events_for_viewers() -> None:
    record = trace_events([timeline(("compute", 5, 7)), timeline(("exchange", 6, 9))], ["rank 0 (cpu)", "rank 1 (cpu)"])
    spans_found = [event for event in record["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["tid"], event["ts"], event["dur"]) for event in spans_found] == [
        (0, LANES.index("compute"), 0.0, 2000.0),
        (1, LANES.index("exchange"), 1000.0, 3000.0),
    ]
    names = [event["args"]["name"] for event in record["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0 (cpu)", "rank 1 (cpu)"]
    json.dumps(record)
