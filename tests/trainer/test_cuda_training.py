"""The promise on CUDA: several ranks on one device, or one on each, give the fingerprint of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trainer.configurations import CONFIGURATIONS, RECIPE, train
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.workers import launch

CUDA_DEVICES = torch.cuda.device_count()
NAMES = [
    "lenet",
    "small resnet",
    "small resnet, bf16",
    "channels last",
    "dropout",
    "dropout, fp16",
    "heads",
    "buffers",
    "checkpoint",
    "augmented",
]

pytestmark = [pytest.mark.gpu, pytest.mark.dist, pytest.mark.skipif(not CUDA_DEVICES, reason="needs CUDA")]


def train_some() -> dict[str, Any]:
    """Called on each rank: what each of the trainings gives, but for what they draw from the CPU in between."""
    return {
        f"{name}, {optimizer}": train(CONFIGURATIONS[name], optimizer, "replicated")
        for name in NAMES
        for optimizer in CONFIGURATIONS[name].optimizers
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return launch(train_some, devices="cuda:0", timeout_s=100)


@pytest.mark.parametrize("devices", ["cuda:0,cuda:0", "cuda:0,cuda:0,cuda:0"])
def test_several_ranks_on_one_device_give_the_result_of_one(devices: str, alone: dict[str, Any]) -> None:
    assert launch(train_some, devices=devices, timeout_s=100) == alone


@pytest.mark.skipif(CUDA_DEVICES < 2, reason="needs two CUDA devices")
def test_two_devices_give_the_result_of_one(alone: dict[str, Any]) -> None:
    assert launch(train_some, devices="cuda:0,cuda:1", timeout_s=100) == alone


class Pooled(nn.Module):
    """Its adaptive pooling has no deterministic gradient on CUDA."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.pool = nn.AdaptiveAvgPool2d((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.pool(self.conv(x)).flatten(1)[:, :4]
        return scores


def test_an_operation_that_does_not_repeat_its_bits_is_refused_by_name() -> None:
    def run(exact: bool) -> float:
        recipe = Recipe(RECIPE.batch_size, RECIPE.shards, exact=exact)
        model = Pooled().to("cuda:0")
        trainer = Trainer(
            model, nn.functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.1), recipe
        )
        generator = torch.Generator().manual_seed(0)
        return trainer.step(torch.randn(16, 1, 9, 9, generator=generator), torch.arange(16) % 4)

    with pytest.raises(TrainingError, match=r"the recipe is exact, but adaptive_avg_pool2d_backward.*exact=False"):
        run(exact=True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert run(exact=False) > 0
