"""The examples and the code in the README do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from examples import concise, from_scratch

ROOT = Path(__file__).resolve().parents[2]


def test_from_scratch_is_short_and_starts_as_the_mission_says() -> None:
    assert len((ROOT / "examples" / "from_scratch.py").read_text().splitlines()) < 100
    torch.manual_seed(0)
    parameters = from_scratch.new_parameters()
    assert [list(parameter.shape) for parameter in parameters[::2]] == [
        [20, 1, 3, 3],
        [50, 20, 5, 5],
        [128, 800],
        [10, 128],
    ]
    assert float(parameters[4].std()) == pytest.approx(0.01, rel=0.02)
    assert all(float(bias.abs().sum()) == 0 for bias in parameters[1::2])


def test_from_scratch_updates_every_replica_as_one_device_would() -> None:
    torch.manual_seed(0)
    X, y = torch.randn(7, 1, 28, 28), torch.randint(10, (7,))
    start = from_scratch.new_parameters()
    devices = [torch.device("cpu")] * 3
    replicas = [[parameter.clone().requires_grad_() for parameter in start] for _ in devices]
    from_scratch.train_minibatch(X, y, replicas, devices, lr=0.2)
    alone = [parameter.clone().requires_grad_() for parameter in start]
    gradients = torch.autograd.grad(F.cross_entropy(from_scratch.lenet(X, alone), y), alone)
    for position, (parameter, gradient) in enumerate(zip(alone, gradients, strict=True)):
        torch.testing.assert_close(replicas[0][position], parameter - 0.2 * gradient)
        assert all(torch.equal(replica[position], replicas[0][position]) for replica in replicas)


@pytest.mark.slow
def test_from_scratch_trains(capsys: pytest.CaptureFixture[str]) -> None:
    one = from_scratch.train("synthetic", None, "cpu", epochs=1, batch_size=64)
    assert from_scratch.train("synthetic", None, "cpu:2", epochs=1, batch_size=64) == pytest.approx(one, abs=0.02)
    assert "epoch 1: test accuracy" in capsys.readouterr().out


def test_concise_gives_accuracy_and_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    from samegrad.data import synthetic

    monkeypatch.setattr("samegrad.data.load", lambda _: synthetic.synthetic(train=32, test=8))
    accuracy, fingerprint = concise.train("synthetic", epochs=1, batch_size=16)
    assert accuracy * 8 == round(accuracy * 8)  # a share of eight images
    assert re.fullmatch("[0-9a-f]{64}", fingerprint)


def test_the_readme_is_filled_in() -> None:
    assert "@" not in (ROOT / "README.md").read_text().replace("@pytest", "")


@pytest.mark.dist
@pytest.mark.parametrize("place", [0, 1])
def test_the_code_in_the_readme_runs(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pieces = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(pieces) == 2
    shorter = (
        pieces[place]
        .replace("sample-digits", "synthetic")
        .replace("epochs=10", "epochs=1")
        .replace("epochs=15", "epochs=1")
    )
    assert shorter.count("synthetic") == 1
    assert "epochs=1" in shorter.replace("epochs=10", "")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(shorter, "README.md", "exec"), names)
    if "accuracy" in names:
        assert names["accuracy"] * 512 == round(names["accuracy"] * 512)
    assert re.fullmatch("[0-9a-f]{64}", names["fingerprint"])
    assert len(list(tmp_path.glob("runs/script/checkpoint-*.json"))) == place
