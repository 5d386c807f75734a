from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from samegrad.callbacks import EpochReport, StepReport
from samegrad.cli.display import Display

HEADER: dict[str, Any] = {
    "model": "lenet",
    "data": "synthetic",
    "parameters": 129_068,
    "gradient_bytes": 516_272,
    "examples": 2048,
    "test_examples": 512,
    "devices": ["cpu", "cpu"],
    "threads": 1,
    "cores": 2,
    "update": "owner",
    "shards": 8,
    "shares": "equal",
    "shards_by_rank": [4, 4],
    "subtrees_by_rank": [1, 1],
    "shard_cost": 1.04,
    "strategy": "sharded",
    "strategy_reason": "each worker sums up the gradients of the parameters that it updates",
    "predicted_step_seconds": 0.0123,
    "predicted_computing_seconds": 0.012,
    "predicted_exchange_seconds": 0.0002,
    "predicted_update_seconds": 0.0001,
    "optimizer": "sgd",
    "lr": 0.2,
    "lr_rule": "none",
    "base_batch_size": 256,
    "warmup_epochs": 0.0,
    "scaled_lr": 0.2,
    "batch_size": 32,
    "epochs": 2,
    "epochs_done": 0.0,
    "steps_done": 0,
    "seed": 0,
    "precision": "fp32",
    "compile": False,
    "earlier": None,
}


def header(capsys: pytest.CaptureFixture[str], **changed: Any) -> str:
    Display(on_stderr=False).header({**HEADER, **changed})
    return " ".join(capsys.readouterr().out.split())


def test_a_run_that_is_resumed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "resumed" not in header(capsys)
    assert "resumed after step 1,234, 1.25 of 2 epochs done" in header(capsys, epochs_done=1.25, steps_done=1234)


def test_files_that_went_aside_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "earlier" not in header(capsys)
    text = header(capsys, earlier="runs/a/earlier-2")
    assert "the files of the run that was here before are now in runs/a/earlier-2" in text


def test_the_header_says_what_runs_where(capsys: pytest.CaptureFixture[str]) -> None:
    text = header(capsys)
    for part in (
        "lenet, 129,068 parameters, 516 kB of gradients",
        "synthetic, 2,048 images to train and 512 to test on",
        "2 workers: cpu × 2, 1 thread each, 2 cores here; update: owner",
        "8: 4 on each device, 2 subtrees exchanged per step. Here they take 1.04 × as long as one piece would",
        "sgd, lr 0.2, batch 32, 2 epochs, seed 0",
        "strategy sharded: each worker sums up the gradients of the parameters that it updates",
        "step 12.3 ms predicted (computing 12.0 ms, exchange 200 µs, updating 100 µs)",
    ):
        assert part in text
    assert "warning" not in text


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (
            {"lr_rule": "linear", "scaled_lr": 0.8, "warmup_epochs": 1.0},
            "lr 0.2 × 4 (linear rule: batch 1024 / 256) = 0.8, warm-up over 1 epoch, batch 1024,",
        ),
        (
            {"lr_rule": "sqrt", "scaled_lr": 0.4, "warmup_epochs": 2.5},
            "lr 0.2 × 2 (square root rule: root of batch 1024 / 256) = 0.4, warm-up over 2.5 epochs,",
        ),
        ({"lr_rule": "linear", "scaled_lr": 0.8}, "lr 0.2 × 4 (linear rule: batch 1024 / 256) = 0.8, batch 1024,"),
        (
            {"lr_rule": "linear", "scaled_lr": 0.025, "batch_size": 32, "warmup_epochs": 1.0},
            "lr 0.2 × 0.125 (linear rule: batch 32 / 256) = 0.025, without warm-up, since the rate is not raised",
        ),
    ],
)
def test_the_header_says_what_became_of_the_rate(
    changed: dict[str, Any], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in header(capsys, **{"batch_size": 1024, **changed})


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"shard_cost": None}, "was not measured: one minibatch takes long"),
        ({"shard_cost": None, "steps_done": 5}, "8: 4 on each device, 2 subtrees exchanged per step training sgd"),
        ({"shards_by_rank": [3, 3, 2], "subtrees_by_rank": [2, 2, 1]}, "8: 3 + 3 + 2 on the devices, 5 subtrees"),
        (
            {"shares": "auto"},
            "8: 4 on each device at first, later as they are measured to be fast, 2 subtrees exchanged",
        ),
        ({"devices": ["cpu"], "predicted_exchange_seconds": 0.0}, "(computing 12.0 ms, updating 100 µs)"),
        ({"devices": ["cpu"], "shards_by_rank": [8], "subtrees_by_rank": [1]}, "8 on one device, nothing to exchange"),
        ({"devices": ["cuda:0", "cuda:1"]}, "2 workers: cuda:0, cuda:1; update"),
        ({"devices": ["cpu"] * 4}, "warning 4 CPU workers on 2 cores get in each other's way"),
        ({"threads": 2}, "warning 2 CPU workers of 2 threads on 2 cores"),
        ({"devices": ["cpu", "cuda:0"], "threads": 2}, "2 workers: cpu, cuda:0, 2 threads each"),
    ],
)
def test_the_header_fits_the_run(changed: dict[str, Any], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in header(capsys, **changed)


def test_other_shares_are_told_when_an_epoch_has_ended_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(on_stderr=False)
    display.header({**HEADER, "shares": "auto"})
    capsys.readouterr()
    for held in ((4, 4), (5, 3), (5, 3)):
        display.on_epoch(EpochReport(0, 2048, 0.5, {}, 1.25, 0.1, 64, 2, 0.2, held))
    found = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("epoch")]
    assert found == ["shards, by measured speed: 5 + 3 on the devices"]


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_has_a_bar_that_leaves_only_lines(
    no_color: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if there were a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    display = Display(on_stderr=True)
    display.loading({"data": "synthetic"})
    display.header(HEADER)
    display.on_step(StepReport(0, 15, 64, 12345, 0.4, 10, steps_done=16, epochs=2, lr=0.1))
    display.on_epoch(EpochReport(0, 2048, 0.5, {"loss": math.inf, "accuracy": 0.912}, 1.25, 0.1, 64, 2, 0.2))
    display.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert "loading synthetic" in err
    assert re.search(r"epoch 1/2 .*1,23[45] samples/s, \d+:\d\d left", err)
    assert "epoch 1/2  train loss 0.5000  test loss not finite  test accuracy 91.2 %  1.25 s" in err
    assert ("\x1b[36m" in err) is not no_color
    assert err.rstrip().endswith("\x1b[2K")  # the bar is erased
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h") == 1  # the cursor comes back


RESULT = {
    **dict.fromkeys(("test_accuracy", "seconds_per_epoch", "samples_per_second", "shards", "world_size"), 1),
    "devices": ["cpu"],
    "fingerprint": "0123456789abcdef" * 4,
    "shares": "equal",
    "shards_by_rank": [1],
    "timeline": None,
    "exact": True,
    "strategy": "one-shot",
    "follows_tree": True,
    "step_seconds": 0.0125,
}


@pytest.mark.parametrize(
    ("by_rank", "shares", "text"),
    [
        ([28], "auto", "28"),
        ([14, 14], "equal", "28: 14 on each device"),
        ([18, 10], [2, 1], "28: 18 + 10 on the devices"),
        ([16, 8, 4], "auto", "28: 16 + 8 + 4 on the devices, by measured speed"),
    ],
)
def test_the_result_says_who_had_how_many_shards(
    by_rank: list[int], shares: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Display(on_stderr=False).result({**RESULT, "shards": 28, "shards_by_rank": by_rank, "shares": shares})
    assert f"shards         {text}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "line", "repeats"),
    [
        ({}, None, True),
        ({"strategy": "ring", "follows_tree": False, "exact": False}, None, False),
        ({"world_size": 2}, "one-shot, which adds along the tree", True),
        ({"world_size": 2, "exact": False}, "one-shot, which adds along the tree", False),
        (
            {"world_size": 2, "strategy": "double-binary-tree", "follows_tree": False, "exact": False},
            "double-binary-tree: the result depends on the number of devices",
            False,
        ),
    ],
)
def test_the_result_says_whether_other_devices_give_it_too(
    facts: dict[str, Any], line: str | None, repeats: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display(on_stderr=False)
    display.result({**RESULT, **facts})
    display.files(None)
    lines = capsys.readouterr().out.splitlines()
    assert [each.split(maxsplit=1)[1] for each in lines if each.startswith("strategy")] == ([line] if line else [])
    assert "step           12.5 ms measured" in lines
    assert all(len(each) <= 80 for each in lines if not each.startswith("files"))
    assert any("same fingerprint" in each for each in lines) is repeats


def test_the_result_can_be_copied_whole_from_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    display = Display(on_stderr=False)
    display.result(RESULT)
    display.files(Path("runs/a/folder/far/down"), ["report.json", "metrics.jsonl"])
    lines = capsys.readouterr().out.splitlines()
    assert f"fingerprint    {'0123456789abcdef' * 4}" in lines
    assert "files          runs/a/folder/far/down: report.json, metrics.jsonl" in lines
