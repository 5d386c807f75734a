"""A simulation as a timeline."""

from __future__ import annotations

import itertools
import json

import pytest
from tests.simulator.nets import star

from samegrad.errors import ConfigurationError
from samegrad.schedules import build
from samegrad.simulator import simulate, trace


def test_a_bar_for_each_message_and_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(build("ring", 3), star(3, add_rate=1e9), 3e9)
    written = json.loads(json.dumps(found.trace()))
    bars = [event for event in written["traceEvents"] if event["ph"] == "X"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in written["traceEvents"] if e["ph"] == "M"}
    assert names[0, None] == "rank 0 (d0)"
    assert (names[0, 1], names[0, 5]) == ("to rank 1", "adds what rank 2 sent")
    sends = [bar for bar in bars if "to rank" in bar["name"]]
    adds = [bar for bar in bars if "add" in bar["name"]]
    assert (len(sends), len(adds)) == (12, 6)
    assert sends[0] == {
        "name": "round 0: to rank 1",
        "ph": "X",
        "pid": 0,
        "tid": 1,
        "ts": 0.0,
        "dur": 1e6,
        "args": {"round": 0, "bytes": 1e9, "critical": sends[0]["args"]["critical"]},
    }
    critical = sorted((bar["ts"], bar["ts"] + bar["dur"]) for bar in bars if bar["args"]["critical"])
    assert [start for start, _ in critical[1:]] == pytest.approx([end for _, end in critical[:-1]])
    assert critical[-1][1] == pytest.approx(found.seconds * 1e6)
    assert (adds[0]["name"], adds[0]["pid"], adds[0]["ts"]) == ("round 0: add what rank 0 sent", 1, 1e6)
    assert max(bar["ts"] + bar["dur"] for bar in bars) == pytest.approx(found.seconds * 1e6)
    for pid, tid in names:  # a row has one bar at a time
        row = sorted((bar["ts"], bar["dur"]) for bar in bars if (bar["pid"], bar["tid"]) == (pid, tid))
        assert all(a + b <= c + 1e-6 for (a, b), (c, _) in itertools.pairwise(row))
    monkeypatch.setattr(trace, "MOST_EVENTS", 11)
    with pytest.raises(ConfigurationError, match="a trace shows at most 11 messages; this has 12"):
        found.trace()
