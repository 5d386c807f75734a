"""Every strategy in training: those that follow the tree give the result of one rank, the others the same each time."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samegrad.errors import ConfigurationError
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.strategy import STRATEGIES, Strategy
from samegrad.trainer import Trainer
from samegrad.workers import launch

pytestmark = pytest.mark.dist


class RunningMean(nn.Module):
    """Subtracts a running mean, which is a buffer; any number of examples will do."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.5)
        return torch.relu(x - self.mean)


TREE = [name for name in STRATEGIES if Strategy(name).follows_tree]
OTHERS = [name for name in STRATEGIES if name not in TREE]


def trained(
    strategy: Strategy | str | None, exact: bool = True, update: Literal["replicated", "owner"] = "replicated"
) -> str:
    """Three steps of a small model with buffers, the last one with fewer examples than shards; its fingerprint."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), RunningMean(40), nn.Linear(40, 3)).double()
    trainer = Trainer(
        model,
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
        Recipe(48, 8, exact=exact),
        update=update,
        strategy=strategy,
    )
    X, y = torch.randn(150, 6, dtype=torch.float64), torch.randint(3, (150,))
    X *= 10.0 ** torch.randint(-3, 4, X.shape)  # so that the order of additions matters
    for rows in (slice(0, 48), slice(48, 96), slice(96, 101)):
        trainer.step(X[rows], y[rows])
    return trainer.fingerprint()


def trained_by_all() -> dict[str, str]:
    """Called on each rank: the fingerprints, by strategy."""
    found = {name: trained(name) for name in TREE}
    found["None"] = trained(None)
    if current_world().size > 1:
        found |= {f"{name}, owner": trained(name, update="owner") for name in ("sharded", "halving-doubling")}
        found["None, owner"] = trained(None, update="owner")
    found["servers, 3"] = trained(Strategy("servers", helpers=3))
    return found


def trained_inexactly() -> list[dict[str, str]]:
    """Called on each rank: the fingerprints of the others, twice."""
    return [{name: trained(name, exact=False) for name in OTHERS} for _ in range(2)]


@pytest.fixture(scope="module")
def alone() -> str:
    """The result of one rank."""
    return launch(lambda: trained(None), devices="cpu:1")


@pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 5, 8))])
def test_all_that_follow_the_tree_give_the_result_of_one_rank(size: int, alone: str) -> None:
    found = launch(trained_by_all, devices=f"cpu:{size}", timeout_s=60)
    assert set(found.values()) == {alone}


def test_the_others_give_the_same_each_time(alone: str) -> None:
    first, second = launch(trained_inexactly, devices="cpu:3", timeout_s=60)
    assert first == second
    assert alone not in first.values()
    assert len(set(first.values())) > 1


def test_the_others_need_a_recipe_that_allows_them() -> None:
    for name in OTHERS:
        with pytest.raises(ConfigurationError, match=f"strategy: {name} adds in an order that depends on"):
            trained(name)
    with pytest.raises(ConfigurationError, match="did you mean 'sharded'"):
        trained("shraded")


def test_what_was_used_is_known() -> None:
    def used() -> list[str]:
        model = nn.Linear(2, 2)
        ways: list[tuple[str | None, Literal["replicated", "owner"]]] = [
            (None, "replicated"),
            (None, "owner"),
            ("host", "owner"),
        ]
        return [
            Trainer(
                model, F.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), Recipe(8, 8), update=update, strategy=strategy
            ).strategy_used.algorithm
            for strategy, update in ways
        ]

    assert launch(used, devices="cpu:2") == ["one-shot", "sharded", "host"]
