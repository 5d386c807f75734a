"""A step on a host and two devices: it computes what autograd does, in an order that keeps all dependencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from samegrad.bench import timeline
from samegrad.bench.timeline import Step, run, times_of
from samegrad.parallel.device_queue import DeviceQueue

CPU = torch.device("cpu")


def test_the_step_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    X, y = torch.randn(10, 6, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    weights = [torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    learned = [weight.clone().requires_grad_() for weight in weights]
    loss = ((torch.relu(X @ learned[0]) @ learned[1] - y) ** 2).sum() / 2 / len(X)
    loss.backward()
    step = Step(X, y, weights, (CPU, CPU))
    with DeviceQueue() as host, DeviceQueue() as one, DeviceQueue() as two:
        times = times_of(step.parts(), {"host": host, "device 1": one, "device 2": two})
    for before, after in zip(learned, step.weights, strict=True):
        assert before.grad is not None
        torch.testing.assert_close(after, before.detach() - 0.1 * before.grad)
    for part in step.parts():
        assert all(times[name][1] <= times[part.name][0] for name in part.after)
    assert all(torch.equal(step._values[f"W{n}", k], step.weights[n - 1]) for n in (1, 2) for k in (1, 2))


def test_each_part_depends_on_parts_before_it() -> None:
    seen: set[str] = set()
    for part in Step(torch.zeros(2, 1), torch.zeros(2, 1), [torch.zeros(1, 1)] * 2, (CPU, CPU)).parts():
        assert set(part.after) <= seen
        assert part.name not in seen
        seen.add(part.name)
    assert len(seen) == 19


def test_table_trace_and_picture(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    result = run(lambda *_: None, batch=8, sizes=(6, 5, 4), repetitions=1, trace=path)
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    assert len(rows) == 19
    assert rows[0]["after"] is None
    assert min(row["starts"] for row in rows) == 0
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["host", "device 1", "device 2"]
    drawn = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(drawn) == {row["part"] for row in rows}
    assert drawn["add 2"]["args"]["after"] == "back 2, device 1; back 2, device 2"
    assert result.conditions["trace"] == str(path)
    result.draw(Figure())


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            20,
            "take 40.0 ms in all and are done after 20.0 ms, 2.00 at a time; the gradients of layer 2 are added whil",
        ),
        (5, "take 10.0 ms in all and are done after 10.0 ms, 1.00 at a time; the gradients of layer 2 are added onl"),
    ],
)
def test_the_sentence_follows_the_times(ends: int, said: str) -> None:
    times = {"split": (0, 2), "add 2": (8, 10), "back 1, device 1": (2, ends), "back 1, device 2": (2, ends)}
    scaled = {name: (start * 10**6, stop * 10**6) for name, (start, stop) in times.items()}
    assert said in timeline._shows(scaled)
