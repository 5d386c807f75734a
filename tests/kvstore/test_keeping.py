"""A store that goes on elsewhere: with other numbers of servers and workers, and the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kvstore.stores import run_workers, some_stores
from tests.kvstore.test_contributions import node_value
from torch import Tensor

from samegrad.errors import ConfigurationError, OutputError, RequestRefused, StoreError
from samegrad.kvstore import KVStore, Updater
from samegrad.kvstore.placement import Key
from samegrad.shards import shares, subtrees

LEAVES = 4
SHAPES: dict[Key, tuple[int, ...]] = {"w": (130, 150), 7: (3,), "one": (), "none": (0, 2)}
UPDATERS = {
    "no updater": None,
    "sum": Updater("sum"),
    "momentum": Updater("SGD", {"lr": 0.1, "momentum": 0.9}),
    "Adam": Updater("Adam", {"lr": 0.01}, "MultiStepLR", {"milestones": [2, 4]}),
}


def values_of(step: int, leaf: int) -> dict[Key, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + leaf)
    return {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}


def advance(store: KVStore, steps: range) -> list[Tensor]:
    """The steps `steps` of a job whose leaves are shared out over the workers."""
    keys = list(SHAPES)
    outs = [torch.empty(SHAPES[key]) for key in keys]
    for step in steps:
        leaves = [values_of(step, leaf) for leaf in range(LEAVES)]
        own = []
        for node in subtrees(shares(LEAVES, store.job.workers)[store.worker], LEAVES):
            sums = [node_value([each[key] for each in leaves], node) for key in keys]
            own.append((node, [value for value in sums if value is not None]))
        store.contribute(keys, own, outs).wait()
    return outs


@pytest.mark.parametrize("name", UPDATERS)
@pytest.mark.parametrize(("kind", "workers", "servers"), [("local", 2, 1), ("servers", 2, 3), ("shared_memory", 3, 1)])
def test_a_store_goes_on_with_other_workers_and_servers(
    name: str, kind: str, workers: int, servers: int, tmp_path: Path
) -> None:
    updater = UPDATERS[name]

    def first(store: KVStore) -> list[Tensor]:
        store.init(values_of(0, 0))
        advance(store, range(1, 4))
        store.save(tmp_path)
        return advance(store, range(4, 7))

    def second(store: KVStore) -> list[Tensor]:
        store.load(tmp_path)
        assert store.state_dict()["keys"]["w"]["clocks"] == [3]
        return advance(store, range(4, 7))

    with some_stores("servers", 1, 2, updater=updater, leaves=LEAVES) as stores:
        expected = run_workers(stores, first)[0]
    with some_stores(kind, workers, servers, updater=updater, leaves=LEAVES) as stores:
        for outs in run_workers(stores, second):
            assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))


def test_the_state_in_sync_is_that_of_the_clock_whatever_the_others_have_pushed() -> None:
    with some_stores("local", 2, updater=Updater("SGD", {"lr": 1.0})) as (ahead, behind):
        for store in (ahead, behind):
            store.init("w", torch.zeros(2))
        for store in (ahead, behind):
            store.push("w", torch.ones(2))
        ahead.push("w", torch.ones(2))
        state = behind.state_dict()
        assert state["keys"]["w"]["value"].tolist() == [-2.0, -2.0]
        assert state["keys"]["w"]["clocks"] == [1]


@pytest.mark.parametrize(("mode", "staleness"), [("stale", 3), ("async", 0)])
def test_clocks_of_workers_go_on(mode: Any, staleness: int) -> None:
    options: dict[str, Any] = {"mode": mode, "staleness": staleness, "updater": Updater("sum")}
    with some_stores("local", 2, **options) as stores:
        for store in stores:
            store.init("w", torch.zeros(1))
        for store in stores:
            for _ in range(3 - 2 * store.worker):
                store.push("w", torch.ones(1)).wait()
        state = stores[0].state_dict()
    assert state["keys"]["w"]["clocks"] == [3, 1]
    for workers, clocks in ((2, [3, 1]), (3, [3, 3, 3])):
        with some_stores("local", workers, **options) as stores:
            for store in stores:
                store.load_state_dict(state)
            assert stores[0].state_dict()["keys"]["w"] == {
                "value": torch.tensor([4.0]),
                "clocks": clocks,
                "updater": None,
            }
            for store in stores:
                store.push("w", torch.ones(1)).wait()
            assert stores[0].state_dict()["keys"]["w"]["clocks"] == [clock + 1 for clock in clocks]


def test_somebody_who_pushes_meanwhile_is_noticed() -> None:
    with some_stores("servers", 1, 2, mode="async", updater=Updater("sum")) as (store,):
        store.init("w", torch.zeros(130, 150))
        store.push("w", torch.ones(130, 150)).wait()
        first = store._entries["w"].pieces[0]
        entry = store._entries["w"]
        entry.pieces, whole = [first], entry.pieces
        entry.shape = torch.Size([first.stop])
        store.push("w", torch.ones(first.stop)).wait()  # as if the other half were on its way
        entry.pieces, entry.shape, entry.step = whole, torch.Size([130, 150]), 1
        with pytest.raises(StoreError, match="somebody pushes while it is to be kept"):
            store.state_dict()


def test_states_that_do_not_belong_here_are_refused() -> None:
    with some_stores("local", 1, updater=Updater("SGD", {"lr": 0.1})) as (store,):
        store.init("w", torch.zeros(2))
        store.push("w", torch.ones(2)).wait()
        state = store.state_dict()
        with pytest.raises(RequestRefused, match="key 'w' was initialised already"):
            store.load_state_dict(state)
    with (
        some_stores("local", 1, updater=Updater("SGD", {"lr": 0.2})) as (store,),
        pytest.raises(ConfigurationError, match=r"has updater .*0\.1.* this store has .*0\.2"),
    ):
        store.load_state_dict(state)
    options: dict[str, Any] = {"mode": "async", "updater": Updater("SGD", {"lr": 0.1})}
    with (
        some_stores("local", 1, **options) as (store,),
        pytest.raises(ConfigurationError, match="has mode 'sync', this store has 'async'"),
    ):
        store.load_state_dict(state)
    with some_stores("local", 1, updater=Updater("SGD", {"lr": 0.1})) as (store,):
        with pytest.raises(ConfigurationError, match="one without mode"):
            store.load_state_dict({})
        with pytest.raises(ConfigurationError, match="expected value, clocks and updater"):
            store.load_state_dict({**state, "keys": {"w": {"value": 3}}})
        other = {"state": {}, "group": {"lr": 0.1}, "schedule": None}
        with pytest.raises(RequestRefused, match="expected the state of SGD"):
            store.load_state_dict({**state, "keys": {"w": {**state["keys"]["w"], "updater": other}}})


def test_a_folder_is_replaced_whole_and_believed_only_if_it_is(tmp_path: Path) -> None:
    with some_stores("local", 1, updater=Updater("Adam")) as (store,):
        store.init({"w": torch.zeros(20), "v": torch.ones(3)})
        for name in ("store-1", "store-2", "store-1"):
            store.push("w", torch.ones(20))
            store.save(tmp_path)
            assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.safetensors", "store.json"]
        kept = store.pull("w").wait()
    for name in ("store.json", "store-1.safetensors"):
        shutil.copytree(tmp_path, tmp_path / "damaged" / name, ignore=lambda *_: ["damaged"])
        damaged = tmp_path / "damaged" / name / name
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
    with some_stores("local", 1, updater=Updater("Adam")) as (store,):
        with pytest.raises(OutputError, match=r"store\.json: expected .* store"):
            store.load(tmp_path / "damaged" / "store.json")
        with pytest.raises(OutputError, match=r"store-1\.safetensors: expected the tensors .* CRC-32"):
            store.load(tmp_path / "damaged" / "store-1.safetensors")
        with pytest.raises(OutputError, match="No such file"):
            store.load(tmp_path / "nowhere")
        store.load(tmp_path)
        assert torch.equal(torch.as_tensor(store.pull("w").wait()), torch.as_tensor(kept))
    record = json.loads((tmp_path / "store.json").read_text())
    assert set(record["files"]) == {"store-1.safetensors"}


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    with some_stores("local", 1) as (store,):
        store.init("w", torch.zeros(2))
        store.save(tmp_path)
        store.push("w", torch.ones(2)).wait()
        (tmp_path / "store-2.safetensors").mkdir()  # in the way of the new file
        with pytest.raises(OutputError, match="could not be written"):
            store.save(tmp_path)
    with some_stores("local", 1) as (store,):
        store.load(tmp_path)
        assert torch.as_tensor(store.pull("w").wait()).tolist() == [0.0, 0.0]
