"""`samegrad export`: from a checkpoint of `samegrad train` to a file that computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import samegrad as sg
from samegrad.cli import main
from samegrad.trainer.checkpoint_record import latest
from samegrad.trainer.job import TrainJob, run_train_job


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as info:
        main(["export", *words])
    assert isinstance(info.value.code, int)
    return info.value.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_train_job(TrainJob(model="mlp", data="synthetic", epochs=1, out=str(folder), batch_size=512))
    return folder


def test_the_file_computes_what_the_checkpoint_does(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.pt2"
    assert run(str(trained), "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert "mlp after" in text
    assert f"samegrad.load_exported('{out}')(images)" in text
    from safetensors.torch import load_file

    model = sg.models.build("mlp")
    model.load_state_dict(load_file(latest(trained).with_suffix(".safetensors")))
    X = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(sg.load_exported(out)(X), model.eval()(X))


def test_machines_get_json(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "digits.pt2"
    assert run(str(latest(trained)), "--out", str(out), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["model"], record["kind"], record["bytes"]) == ("mlp", "program", out.stat().st_size)


def test_what_is_no_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path)) == 1
    assert "expected a folder with a checkpoint" in " ".join(capsys.readouterr().err.split())
    trainer = sg.Trainer(
        torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), sg.Recipe(shards=1)
    )
    trainer.save(tmp_path)
    assert run(str(tmp_path), "--out", str(tmp_path / "a.pt2")) == 1
    assert "written by a script, whose model only that script can make" in " ".join(capsys.readouterr().err.split())
