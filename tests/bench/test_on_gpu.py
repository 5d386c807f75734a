"""The experiments on a GPU: they run, and their sentences say what a GPU is known to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from samegrad.bench import asynchrony, overlap, parallelism, timeline
from samegrad.bench import compile as compiling
from samegrad.exporting import export, load_exported
from samegrad.models import lenet

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
    overlap.run(lambda *_: None, device="cuda", repetitions=2)
    timeline.run(lambda *_: None, devices="cuda,cpu", repetitions=1)
    compiling.run(lambda *_: None, models=["mlp"], calls=3, device="cuda", ways=["plain", "program"])


def test_what_is_exported_on_a_gpu_runs_on_a_gpu(tmp_path: Path) -> None:
    model, X = lenet().cuda(), torch.randn(2, 1, 28, 28, device="cuda")
    run = load_exported(export(model, X, tmp_path / "lenet.pt2"))
    with torch.no_grad():
        torch.testing.assert_close(run(X), model.eval()(X))
