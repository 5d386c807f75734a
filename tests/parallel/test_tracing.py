"""The timelines of all ranks in one file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import samegrad as sg
from samegrad.errors import ConfigurationError, OutputError
from samegrad.parallel import current_world, trace, tracing
from samegrad.parallel.tracing import computing
from samegrad.timeline import span
from samegrad.workers import launch

CPU = torch.device("cpu")


def traced(path: str) -> tuple[str, int | None]:
    """On each rank: two steps, of which rank 1 computes longer."""
    world = current_world()
    with trace(path) as found:
        for step in range(2):
            with span("step", "step", step=step):
                with computing("forward", CPU, shard=world.rank):
                    time.sleep(0.02 * (1 + world.rank))
                with span("bucket 0", "exchange"):
                    world.group.gather(b"", "x")
    assert found.summary is not None
    assert found.summary.hidden == 0.0
    return found.summary.sentence(), found.summary.slowest


@pytest.mark.parametrize("size", [1, 2])
def test_all_ranks_are_in_one_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    sentence, slowest = launch(lambda: traced(str(path)), devices=f"cpu:{size}", timeout_s=60)
    assert sentence.startswith("2 steps of ")
    assert slowest == (None if size == 1 else 1)
    events = json.loads(path.read_bytes())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        f"rank {rank} (cpu)" for rank in range(size)
    ]
    for rank in range(size):
        own = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        assert sorted(event["name"] for event in own) == ["bucket 0"] * 2 + ["forward"] * 2 + ["step"] * 2
        forward = [event for event in own if event["name"] == "forward"]
        assert all(event["dur"] >= 20_000 * (1 + rank) for event in forward)
        assert forward[0]["args"] == {"shard": rank}
    # One clock: both ranks leave an exchange together, within what a machine with few cores needs to wake one up.
    ends = [event["ts"] + event["dur"] for event in events if event["name"] == "bucket 0"]
    assert abs(ends[0] - ends[-2 if size == 2 else 0]) < 20_000


def own_loop(path: str) -> str:
    """On each rank: three steps of a loop of one's own; the second one accumulates two passes."""
    torch.manual_seed(0)
    model = sg.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
    model(torch.ones(1, 4)).sum().backward()  # before anything is recorded
    with trace(path) as found:
        for step in range(3):
            with span("augment"):
                X = torch.ones(2, 4)
            if step == 1:
                with model.no_sync():
                    model(X).sum().backward()
            model(X).sum().backward()
    assert found.summary is not None
    return found.summary.sentence()


def test_a_loop_of_ones_own_has_steps(tmp_path: Path) -> None:
    sentence = launch(lambda: own_loop(str(tmp_path / "trace.json")), devices="cpu:2", timeout_s=60)
    assert sentence.startswith("3 steps of ")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    for rank in range(2):
        names = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank]
        once, twice = ["augment", "bucket 0", "other ranks", "step"], ["backward", "forward"]
        assert sorted(names) == sorted(once * 3 + twice * 4)


def fails(path: str) -> None:
    with trace(path):
        with span("the last thing", "compute"):
            pass
        raise ValueError("mine")


def test_an_exception_leaves_what_rank_0_did(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        fails(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["the last thing"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="mine"):  # not that it cannot be written
        fails(str(tmp_path / "file" / "trace.json"))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"file/trace.json: could not be written"),
        trace(tmp_path / "file/trace.json"),
    ):
        pass
    with trace(tmp_path / "a"), pytest.raises(ConfigurationError, match="already"), trace(tmp_path / "b"):
        pass
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def on_several_hosts() -> list[int]:
    """On each rank: clocks compared as if the ranks were on different hosts."""
    return tracing._clocks(current_world())


def test_clocks_of_other_hosts_are_compared() -> None:
    """They are one clock here; what is found is how far apart two ranks leave a meeting."""
    later = launch(on_several_hosts, devices="cpu:2", timeout_s=60)
    assert later[0] == 0
    assert abs(later[1]) < 50_000_000
