"""The experiments on a GPU: they run, and their sentences say what a GPU is known to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from samegrad.bench import asynchrony, overlap, parallelism, timeline
from samegrad.bench import compile as compiling
from samegrad.bench.exchange_overlap import Load
from samegrad.exporting import export, load_exported
from samegrad.models import lenet
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def rows(result: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.to_json()["rows"]
    return found


def test_calls_return_before_the_gpu_is_done() -> None:
    found = rows(asynchrony.run(lambda *_: None, device="cuda", operations=16, size=4096, repetitions=3))
    (row,) = (row for row in found if row["way"] == "torch on cuda")
    assert row["returned after"] < 0.5 * row["done after"]


def test_the_other_experiments_run() -> None:
    parallelism.run(lambda *_: None, devices="cuda,cuda", repetitions=2)
    overlap.run(lambda *_: None, device="cuda", load=Load(layers=2, numel=1000), repetitions=2)
    timeline.run(lambda *_: None, devices="cuda,cpu", repetitions=1)
    compiling.run(lambda *_: None, models=["mlp"], calls=3, device="cuda", ways=["plain", "program"])


def test_a_trainer_is_never_further_ahead_of_a_gpu_than_a_minibatch() -> None:
    X, y = torch.zeros(2, 3), torch.zeros(2, 1)
    work = torch.zeros(2048, 2048, device="cuda")
    at_work: list[torch.cuda.Event] = []

    class Busy(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                work.mm(work)
            at_work.append(torch.cuda.current_stream().record_event())
            return super().forward(x)

    model = Busy(3, 1).cuda()
    trainer = Trainer(
        model, mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), Recipe(batch_size=2, shards=2, exact=False)
    )
    for _ in range(5):
        trainer.step(X, y)
        assert all(event.query() for event in at_work)


def test_what_is_exported_on_a_gpu_runs_on_a_gpu(tmp_path: Path) -> None:
    model, X = lenet().cuda(), torch.randn(2, 1, 28, 28, device="cuda")
    run = load_exported(export(model, X, tmp_path / "lenet.pt2"))
    with torch.no_grad():
        torch.testing.assert_close(run(X), model.eval()(X))
