"""Loading, saving and resuming on each kind of device; on CUDA where there is one, on the CPU everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.loading_cases import Drawing, fit
from torch import Tensor, nn

from samegrad.parallel.nested import leaves
from samegrad.recipe import Recipe
from samegrad.trainer import Loading, Saving, Trainer
from samegrad.trainer import step as step_module
from samegrad.workers import launch

on_cuda = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))

pytestmark = pytest.mark.dist


@dataclass
class Inputs:
    """A batch as a record, which torch's own pinning passes over."""

    pixels: Tensor


class Records:
    """Gives many at once."""

    def __len__(self) -> int:
        return 20

    def batch(self, indices: Tensor) -> tuple[Inputs, Tensor]:
        return Inputs(indices.float().view(-1, 1) / 20), indices % 3


class Pairs:
    """A stream of the same."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.tensor([index / 20]), index % 3) for index in range(20))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, X: Inputs | Tensor) -> Tensor:
        scores: Tensor = self.linear(X.pixels if isinstance(X, Inputs) else X)
        return scores


def train(dataset: Any, loading: Loading) -> tuple[str, list[bool]]:
    """The fingerprint, and for each tensor that a step was given whether it was in pinned memory."""
    seen: list[bool] = []
    to_device = step_module.to_device

    def noted(batch: Any, device: torch.device) -> Any:
        tensors = [leaf for _, leaf in leaves(batch) if isinstance(leaf, Tensor)]
        assert all(tensor.device.type == "cpu" for tensor in tensors)
        seen.extend(tensor.is_pinned() for tensor in tensors)
        return to_device(batch, device)

    torch.manual_seed(0)
    trainer = Trainer(Net(), nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, 0.1), Recipe(8, shards=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "to_device", noted)
        trainer.fit(dataset, loading=loading)
    return trainer.fingerprint(), seen


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=on_cuda)])
def test_what_loader_workers_read_is_pinned_where_that_helps(device: str) -> None:
    """A step on CUDA finds all that they read in pinned memory, on the CPU nothing; the result is that without them."""

    def work() -> Any:
        return [[train(kind(), loading) for loading in (Loading(1), Loading(0))] for kind in (Records, Pairs)]

    tensors = 2 * (4 + 4 + 4)  # X and y of four shards in three steps
    for (ahead, pinned), (itself, ordinary) in launch(work, devices=device, timeout_s=100):
        assert ahead == itself
        assert pinned == [device != "cpu"] * tensors
        assert ordinary == [False] * tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "fewer"), [("cpu:2", "cpu"), pytest.param("cuda:0,cuda:0", "cuda:0", marks=on_cuda)]
)
def test_saved_on_two_devices_and_resumed_on_one(devices: str, fewer: str, tmp_path: Path) -> None:
    """Stopped in the middle of the second epoch."""
    saving = Saving(tmp_path, every=1)
    alone = launch(lambda: fit(Drawing), devices=fewer, timeout_s=100)
    first = launch(lambda: fit(Drawing, saving=saving, stop_after=4), devices=devices, timeout_s=100)
    rest = launch(lambda: fit(Drawing, saving=saving), devices=fewer, timeout_s=100)
    assert first["losses"] + rest["losses"] == alone["losses"]
    assert rest["fingerprint"] == alone["fingerprint"]
    assert rest["metrics"][-1] == alone["metrics"][-1]
    assert rest["predicted"] == alone["predicted"]
