"""What compiling gives: results agree, and the sentence follows the figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from samegrad.bench import compile as module
from samegrad.bench.compile import WAYS, _Row, run
from samegrad.errors import ConfigurationError
from samegrad.timing import Spread

QUICK = [way for way in WAYS if way not in ("compile", "package")]


def check(result: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    assert all(row["per call"] > 0 and row["difference"] < 1e-4 for row in rows)
    assert [row["to compile"] is None for row in rows] == [row["way"] == "plain" for row in rows]
    assert [row["file"] is None for row in rows] == [row["way"] in ("plain", "compile") for row in rows]
    figure = Figure()
    result.draw(figure)
    assert len(figure.axes) == 2
    return rows


def test_ways_that_need_no_compiler_agree() -> None:
    threads, told = torch.get_num_threads(), []
    result = run(lambda _, done: told.append(done), models=["mlp", "lenet"], batch=2, calls=3, ways=QUICK)
    rows = check(result)
    assert [(row["model"], row["way"]) for row in rows] == [(name, way) for name in ("mlp", "lenet") for way in QUICK]
    assert told == sorted(told)
    assert torch.get_num_threads() == threads
    assert "results agree within" in result.shows or "the same bits" in result.shows


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # by inductor itself
def test_all_ways_agree() -> None:
    assert len(check(run(lambda *_: None, models=["mlp"], calls=5))) == len(WAYS)


def row(model: str, way: str, seconds: float, compile_s: float | None = None, difference: float = 0.0) -> _Row:
    return _Row(model, way, compile_s, Spread(seconds, seconds, seconds, 3), difference, None)


def test_the_sentence_follows_the_figures() -> None:
    shows = module._shows
    fast = [row("mlp", "plain", 3e-4), row("mlp", "compile", 1e-4, 10.0, 1e-7), row("lenet", "plain", 1e-3)]
    assert shows(fast) == (
        "Here compile is 3.00 × as fast as the plain model for mlp, which pays for compiling after 50,000 calls; "
        "nothing is clearly faster than the plain model for lenet; results agree within 1e-07 of the largest output."
    )
    assert "all ways give the same bits" in shows([row("mlp", "plain", 1.0)])
    wrong = shows([row("mlp", "plain", 1.0), row("mlp", "compile", 2.0, 1.0, 0.5)])
    assert "but compile differs by 5e-01 of the largest output for mlp" in wrong


def test_a_model_that_is_not_known_and_a_device_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="there is no model 'alexnet'; there are mlp, lenet, resnet18"):
        run(lambda *_: None, models=["alexnet"])
    with pytest.raises(ConfigurationError, match="a device is cpu, cuda or cuda:<index>; got 'tpu'"):
        run(lambda *_: None, models=["mlp"], device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cuda:1: this machine has no GPUs that torch finds; use cpu"):
        run(lambda *_: None, models=["mlp"], device="cuda:1")
