"""Training whose gradients are added up by the servers of a store has the result of one rank."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.kvstore.stores import some_servers
from tests.trainer.test_strategies import RunningMean
from torch import nn
from torch.nn import functional as F

from samegrad.errors import ConfigurationError
from samegrad.kvstore import KVStore, Updater
from samegrad.kvstore.own_servers import ServerList, own_servers
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.workers import launch

RECIPE = Recipe(batch_size=20, shards=8)


def made(recipe: Recipe = RECIPE, **options: object) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 150), RunningMean(150), nn.ReLU(), nn.Linear(150, 200), nn.Linear(200, 4))
    return Trainer(
        model,
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        recipe,
        **options,  # type: ignore[arg-type]
    )


def trained(servers: ServerList | None) -> tuple[str, str]:
    """Fingerprint and algorithm of three steps, the last of which leaves shards without examples; ranks have other
    shares then."""
    store = None
    if servers is not None:
        store = KVStore.connect(servers.addresses, secret=servers.secret, leaves=RECIPE.shards)
    trainer = made(strategy=store)
    generator = torch.Generator().manual_seed(1)
    for size in (20, 20, 5):
        if store is not None and size == 5:
            held = len(store._entries)
            trainer._step.hold([range(1), range(1, 6), range(6, 8)])
            assert len(store._entries) == held
        X, y = torch.randn(size, 12, generator=generator), torch.randint(4, (size,), generator=generator)
        trainer.step(X, y)
    if store is not None:
        store.close()
    return trainer.fingerprint(), trainer.strategy_used.algorithm


@pytest.mark.slow
@pytest.mark.dist
def test_servers_give_the_result_of_one_rank() -> None:
    expected, _ = trained(None)
    with own_servers(2) as servers:
        assert launch(functools.partial(trained, servers), devices="cpu:3") == (expected, "servers")


def test_a_store_that_is_of_no_use_is_refused() -> None:
    (local,) = KVStore.local(1)
    with pytest.raises(ConfigurationError, match=r"expected leaves to be 8, .* got 1"):
        made(strategy=local)
    (local,) = KVStore.local(1, leaves=8)
    assert made(strategy=local).strategy_used.algorithm == "servers"
    assert made(strategy=local).choice.strategy.algorithm == "servers"
    with pytest.raises(ConfigurationError, match="update='owner' shares parameters within a host"):
        made(strategy=local, update="owner")
    (updating,) = KVStore.local(1, leaves=8, updater=Updater("sum"))
    with pytest.raises(ConfigurationError, match="expected mode 'sync' without an updater, got mode 'sync' and sum"):
        made(strategy=updating)
    with (
        some_servers(1) as (server,),
        KVStore.connect(server.address, worker=(1, 2), leaves=8) as other,
        pytest.raises(ConfigurationError, match="expected worker to be 0, for rank 0 of 1"),
    ):
        made(strategy=other)
