"""Recipes that are not synchronous: servers update, and ranks do not wait for each other."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.kvstore import KVStore, Updater
from samegrad.kvstore.own_servers import ServerList, own_servers
from samegrad.recipe import Mode, Recipe
from samegrad.trainer import Trainer
from samegrad.trainer.saving import Saving
from samegrad.workers import launch

OPTIONS: dict[str, Any] = {"batch_size": 24, "shards": 4}
X = torch.randn(100, 12, generator=torch.Generator().manual_seed(5))
DATA = TensorDataset(X, (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def made(recipe: Recipe, store: KVStore | None = None, **options: Any) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 50), nn.ReLU(), nn.Linear(50, 4))
    return Trainer(model, F.cross_entropy, options.pop("optimizer", sgd), recipe, strategy=store, **options)


def updater() -> Updater:
    return Updater.of(sgd([nn.Parameter(torch.zeros(1))]))


def free(mode: Mode, staleness: int = 0, **options: Any) -> Recipe:
    return Recipe(**{**OPTIONS, "exact": False, "consistency": mode, "staleness": staleness, **options})


@pytest.mark.parametrize(("mode", "staleness"), [("async", 0), ("stale", 2)])
def test_a_rank_alone_has_the_result_of_sync_whoever_updates(mode: Mode, staleness: int, tmp_path: Path) -> None:
    plain = made(Recipe(**OPTIONS, clip_norm=0.5), weight=lambda X, y: y.sum() + 1)
    expected = plain.fit(DATA, epochs=3)
    recipe, weight = free(mode, staleness, clip_norm=0.5), lambda X, y: y.sum() + 1
    options: dict[str, Any] = {"mode": mode, "staleness": staleness, "updater": updater()}
    (store,) = KVStore.local(1, **options)
    trainer = made(recipe, store, weight=weight)
    reports = trainer.fit(DATA, epochs=1, saving=Saving(tmp_path, "epoch"))
    (other,) = KVStore.local(1, **options)
    again = made(recipe, other, weight=weight)
    again.resume(tmp_path)
    reports += again.fit(DATA, epochs=2)
    assert again.fingerprint() == plain.fingerprint()
    assert [report.train_loss for report in reports] == pytest.approx([report.train_loss for report in expected])


def trained(servers: ServerList, mode: Mode, staleness: int) -> tuple[float, list[int], str]:
    store = KVStore.connect(servers.addresses, secret=servers.secret, mode=mode, staleness=staleness, updater=updater())
    with store:
        trainer = made(free(mode, staleness), store)
        first, *_, last = trainer.fit(DATA, epochs=6)
        if mode == "stale":
            assert trainer.position.epoch == 6
        prints = trainer.world.group.gather(trainer.fingerprint().encode(), "test")
        assert len(set(prints)) == 1
        assert last.train_loss < 0.7 * first.train_loss
        clocks = store.state_dict()["keys"]["0.bias"]["clocks"]
        return last.train_loss, clocks, trainer.fingerprint()


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(("mode", "staleness"), [("async", 0), ("stale", 1)])
def test_ranks_run_freely_and_have_one_model_at_the_end(mode: Mode, staleness: int) -> None:
    with own_servers(2) as servers:
        _, clocks, _ = launch(functools.partial(trained, servers, mode, staleness), devices="cpu:3")
    assert sum(clocks) == 30  # 6 epochs of 5 minibatches, each of which is one worker's


def test_what_contradicts_a_free_recipe_is_named(tmp_path: Path) -> None:
    for change, text in (
        ({"exact": True}, r"exact=True.*--inexact"),
        ({"precision": "fp16"}, "precision 'fp16'"),
        ({"staleness": 3}, "staleness is for consistency 'stale'"),
        ({"staleness": -1}, "staleness must be a whole number"),
        ({"consistency": "eventual"}, "consistency must be one of sync, stale, async"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            free("async", **change)
    with pytest.raises(ConfigurationError, match=r"consistency 'async' needs servers that update"):
        made(free("async"))
    (plain,) = KVStore.local(1, leaves=4)
    with pytest.raises(ConfigurationError, match="connected with mode 'sync'"):
        made(free("async"), plain)
    (store,) = KVStore.local(1, mode="async", updater=updater())
    with pytest.raises(ConfigurationError, match="expected mode 'sync'"):
        made(Recipe(**{**OPTIONS, "shards": 1}), store)
    with pytest.raises(ConfigurationError, match=r"that is SGD .*'lr': 0\.2.* but the store has SGD .*'lr': 0\.1"):
        made(free("async"), store, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9))
    for options, text in (
        ({"shares": "auto"}, "shares and check_every"),
        ({"shares": [1.0]}, "shares and check_every"),
        ({"check_every": 3}, "shares and check_every"),
        ({"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)}, "a scheduler is for 'sync'"),
        ({"update": "owner"}, "update='owner'"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            made(free("async"), store, **options)
    normed = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigurationError, match=r"buffers \(1\.running_mean"):
        Trainer(normed, F.cross_entropy, sgd, free("async"), strategy=store)
    with pytest.raises(ConfigurationError, match="within an epoch"):
        made(free("async"), store).fit(DATA, saving=Saving(tmp_path, 1))


def test_a_model_that_goes_wrong_is_told_as_ever() -> None:
    (store,) = KVStore.local(1, mode="async", updater=updater())
    trainer = made(free("async"), store)
    with pytest.raises(TrainingError, match="the loss must be one number"):
        Trainer(trainer.model, lambda outputs, y: outputs, sgd, free("async"), strategy=store).fit(DATA)


def test_updaters_are_made_of_optimizers() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    found = Updater.of(torch.optim.AdamW(parameters, lr=0.01, betas=(0.8, 0.9)))
    assert (found.name, found.options["lr"], found.options["betas"]) == ("AdamW", 0.01, [0.8, 0.9])
    assert found.to_json() == Updater("AdamW", {"lr": 0.01, "betas": [0.8, 0.9]}).spelled_out().to_json()
    assert Updater("sum").spelled_out() == Updater("sum")
    with pytest.raises(ConfigurationError, match="2 groups"):
        Updater.of(torch.optim.SGD([{"params": parameters}, {"params": [nn.Parameter(torch.ones(1))]}], lr=0.1))
    with pytest.raises(ConfigurationError, match=r"servers cannot do what torch\.optim\.lbfgs.LBFGS does"):
        Updater.of(torch.optim.LBFGS(parameters))
