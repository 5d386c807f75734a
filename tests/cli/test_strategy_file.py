"""`samegrad train --strategy FILE`, with what `samegrad plan --json` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samegrad.cli import main
from samegrad.cli.strategy_file import strategy_text
from samegrad.errors import ConfigurationError, DataMissing
from samegrad.strategy import Strategy
from samegrad.trainer.job import TrainJob


@pytest.mark.parametrize("name", ["sharded", "auto", "nonsense", '{"algorithm": "ring"}'])
def test_what_names_no_file_stays_as_it_is(name: str) -> None:
    assert strategy_text(name) == name


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_strategy_in_a_file(tmp_path: Path, wrapped: bool) -> None:
    strategy = Strategy("hierarchical", groups=((2, 2),), ways=("sharded", "sharded"))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"strategy": strategy.to_json(), "step_s": 1} if wrapped else strategy.to_json()))
    assert Strategy.of(TrainJob(strategy=strategy_text(str(path))).strategy) == strategy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected what samegrad plan --json prints"),
        ("[1]", "expected what samegrad plan --json prints, .*; got neither"),
        ('{"strategy": "ring"}', "there is no algorithm in it"),
        ('{"algorithm": "rnig"}', "did you mean 'ring'"),
        ('{"algorithm": "ring", "colour": 1}', "unknown fields colour"),
        ('{"algorithm": "rings", "orders": 3}', "orders: expected a list of lists"),
    ],
)
def test_a_file_that_holds_none_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"--strategy .*plan.json: .*{problem}"):
        strategy_text(str(path))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(DataMissing, match=r"--strategy none.json: could not be read"):
        strategy_text("none.json")


@pytest.mark.slow
@pytest.mark.dist
def test_a_plan_is_trained_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capfd.readouterr()
        assert ended.value.code == 0, err
        return out

    plan = run("plan", "--model", "lenet", "--step", "9ms", "--topology", "dgx-1v", "--devices", "3", "--json")
    strategy = Strategy.from_json(json.loads(plan)["strategy"])
    (tmp_path / "plan.json").write_text(plan)
    words = ["train", "--epochs", "1", "--data", "synthetic", "--batch-size", "512", "--json", "--devices"]
    report = json.loads(run(*words, "cpu:3", "--strategy", str(tmp_path / "plan.json")))
    assert report["strategy"] == strategy.algorithm
    assert report["fingerprint"] == json.loads(run(*words, "cpu:1"))["fingerprint"]
