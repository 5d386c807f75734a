"""Plans: figures by hand, what is ranked, explained and advised, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tests.planner.works import even_workload, one_gradient

from samegrad.errors import ConfigurationError, TopologyError
from samegrad.planner import Plan, Workload, plan
from samegrad.planner.candidates import label
from samegrad.recipe import Recipe
from samegrad.strategy import Strategy
from samegrad.topology import Kind, Link, Node, Topology

PCIE = Topology.preset("pcie-switch-4")
CUBE = Topology.preset("dgx-1v")


def by_label(made: Plan) -> dict[str, float]:
    """Seconds of exchange of each strategy that is exchanged at once."""
    return {label(each.strategy): each.exchange_s for each in made.forecasts if each.pieces == 1}


def test_160_mb_behind_a_pcie_switch() -> None:
    made = plan(one_gradient(160_000_000, step_s=0.03), PCIE)
    exchange = by_label(made)
    assert exchange["sharded"] == pytest.approx(0.015)
    assert exchange["one-device"] == pytest.approx(0.060)
    assert exchange["one-shot"] == pytest.approx(0.030)
    best = made.fastest
    assert made.best == Strategy("sharded")
    assert (best.computing_s, best.exposed_s) == pytest.approx((0.0075, 0.015))
    assert best.hidden_s == 0
    assert best.step_s == pytest.approx(0.0225)
    assert best.examples_per_s == pytest.approx(256 / 0.0225)
    assert best.efficiency == pytest.approx(0.030 / (4 * 0.0225))
    assert best.traffic == 1.5
    assert made.limit is not None
    assert made.limit.links == ("gpu0 - plx0", "gpu1 - plx0", "gpu2 - plx0", "gpu3 - plx0")
    assert made.limit.faster_step_s == pytest.approx(0.015)
    assert made.limit.busy == pytest.approx(1)
    assert made.explanation == (
        "sharded is the fastest way over 4 devices: a step takes 22.5 ms, 7.50 ms of computing and 15.0 ms of "
        "exchange. gpu0 - plx0 and 3 more like it (PCIe 3.0 x16, 16.0 GB/s) limit it, busy for 100% of an exchange; "
        "with twice the bandwidth, a step would take 15.0 ms, 1.50 times as fast."
    )


def test_rings_in_the_cube_mesh_need_leave() -> None:
    assert "ring" not in by_label(plan(one_gradient(160_000_000), CUBE))
    made = plan(one_gradient(160_000_000), CUBE, Recipe(exact=False))
    assert made.fastest.exchange_s == pytest.approx(2 * 7 / 8 * 160e6 / (6 * 18e9))
    assert not made.best.follows_tree


def test_traffic_of_subtrees_counts() -> None:
    made = plan(one_gradient(160_000_000), PCIE, devices=3)
    # rank 2 receives four sums of 1/3 M, then two thirds of the result: 2 M at 16 GB/s
    assert by_label(made)["sharded"] == pytest.approx(0.020)
    assert any("5 sums of subtrees" in text and "--shards 12" in text for text in made.advice)
    evenly = plan(one_gradient(160_000_000), PCIE, Recipe(shards=12), devices=3)
    assert by_label(evenly)["sharded"] == pytest.approx(4 / 3 * 0.010)
    assert not any("subtrees" in text for text in evenly.advice)


def test_overlap_hides_what_is_ready_early() -> None:
    # Each device computes one shard: 20 ms forward, 40 ms backward; a bucket of 80 MB takes 7.5 ms.
    work, recipe = even_workload(2, 80_000_000), Recipe(shards=4)
    made = plan(work, PCIE, recipe, overlap=True)
    best = made.fastest
    assert best.exchange_s == pytest.approx(0.015)
    assert (best.hidden_s, best.exposed_s) == pytest.approx((0.0075, 0.0075))
    assert best.step_s == pytest.approx(0.0675)
    assert plan(work, PCIE, recipe).fastest.step_s == pytest.approx(0.075)


def test_only_backward_of_the_last_shard_can_hide_anything() -> None:
    # Two shards a device: 20 ms of backward for each; the first bucket is ready 10 ms before the end, and takes 15.
    best = plan(even_workload(2, 160_000_000), PCIE, Recipe(shards=8), overlap=True).fastest
    assert (best.hidden_s, best.exposed_s) == pytest.approx((0.010, 0.020))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topology", [PCIE, CUBE, Topology.preset("ethernet-2x3@10Gb")], ids=lambda each: each.name)
def test_what_belongs_together(topology: Topology, overlap: bool) -> None:
    made = plan(Workload.known("resnet18", 0.01, 0.02, 256), topology, Recipe(exact=False), overlap=overlap)
    steps = [each.step_s for each in made.forecasts]
    assert steps == sorted(steps, key=lambda step: float(f"{step:.9g}"))
    for each in (*made.forecasts, *made.curve):
        assert each.hidden_s + each.exposed_s == pytest.approx(each.exchange_s)
        assert each.computing_s + each.exposed_s == pytest.approx(each.step_s)
        assert 0 < each.efficiency <= 1
        if not overlap:
            assert (each.bucket_bytes, each.pieces, each.hidden_s) == (None, 1, 0)
    assert [each.devices for each in made.curve] == list(range(1, len(topology.devices) + 1))
    assert made.curve[-1] == made.fastest
    assert made.curve[0].step_s == made.one_device_s
    assert made.limit is not None
    assert made.limit.faster_step_s <= made.fastest.step_s


def test_overlap_is_never_slower() -> None:
    work = Workload.known("resnet18", 0.01, 0.02, 256)
    for name in ("pcie-switch-4", "ethernet-2x3@10Gb", "dgx-1v"):
        topology = Topology.preset(name)
        assert plan(work, topology, overlap=True).fastest.step_s <= plan(work, topology).fastest.step_s


def test_stay_on_one_host() -> None:
    made = plan(Workload.known("resnet18", 0.01, 0.02, 256), Topology.preset("ethernet-2x4@1Gb"))
    (advice,) = made.advice
    assert advice.startswith("stay on one host: 4 devices take 11.7 ms a step instead of")
    assert advice.endswith("on 8 devices of 2 hosts")


def test_stay_on_one_device() -> None:
    slow = replace(PCIE, links=tuple(replace(link, bandwidth=1e6) for link in PCIE.links))
    made = plan(Workload.known("lenet", 0.01, 0.02, 256), slow)
    assert made.advice[0].startswith("stay on one device: 30.0 ms a step instead of")
    assert made.devices == 4


def test_more_devices_than_wanted_may_be_faster() -> None:
    made = plan(Workload.known("lenet", 0.1, 0.2, 256), PCIE, devices=2)
    assert made.advice[0].startswith("4 devices are faster:")
    assert made.devices == made.fastest.devices == 2


def test_shards_limit_the_devices_unless_a_number_is_wanted() -> None:
    work = Workload.known("lenet", 0.1, 0.2, 256)
    made = plan(work, CUBE, Recipe(shards=4))
    assert made.devices == 4
    assert any("4 shards can be shared by 4 devices at most; dgx-1v has 8. --shards 8" in text for text in made.advice)
    with pytest.raises(ConfigurationError, match="--shards 5"):
        plan(work, CUBE, Recipe(shards=4), devices=5)


def test_one_device_exchanges_nothing() -> None:
    made = plan(one_gradient(4), PCIE, devices=1)
    assert made.explanation == "One device takes 30.0 ms of computing for a step, and exchanges nothing."
    assert made.limit is None
    assert made.fastest.exchange_s == 0
    assert plan(one_gradient(4), Topology("one", (Node("gpu0", Kind.DEVICE),), ())).devices == 1


@pytest.mark.parametrize("devices", [0, -1, 5, 2.0, 10**30])
def test_devices_that_are_not_there(devices: int) -> None:
    with pytest.raises(ConfigurationError, match=r"devices must be from 1 to 4, those of pcie-switch-4; got"):
        plan(one_gradient(4), PCIE, devices=devices)


def test_names_instead_of_what_they_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected a Workload and a Topology, .*; got str and str"):
        plan("resnet18", "dgx-1v")  # type: ignore[arg-type]


def test_the_kind_of_link_that_helps_most_is_named() -> None:
    # A chain: gpu0 - fast switch - slow link - fast switch - gpu1; the slow link has a kind of its own.
    nodes = (*(Node(f"gpu{n}", Kind.DEVICE) for n in range(2)), *(Node(f"s{n}", Kind.SWITCH) for n in range(2)))
    links = (
        Link("gpu0", "s0", 4e9, kind="wide"),
        Link("s0", "s1", 1e9, kind="narrow"),
        Link("s1", "gpu1", 4e9, kind="wide"),
    )
    made = plan(one_gradient(10_000_000), Topology("chain", nodes, links))
    assert made.limit is not None
    assert (made.limit.kind, made.limit.links) == ("narrow", ("s0 - s1",))
    assert "s0 - s1 (narrow, 1.00 GB/s) limits it" in made.explanation
    assert made.limit.faster_step_s == pytest.approx(0.015 + 0.005)


def test_a_hidden_exchange_gains_nothing_by_faster_links() -> None:
    made = plan(even_workload(200, 1_000), PCIE, overlap=True)
    assert "with twice the bandwidth, a step would take as long" in made.explanation


def test_the_best_strategy_is_the_fastest_that_a_trainer_runs() -> None:
    made = plan(Workload.known("mlp", 0.016, 0.02, 256), Topology.preset("ethernet-4x2@25Gb"), overlap=True)
    assert made.fastest.pieces > 1
    assert made.trained.step_s == min(each.step_s for each in made.forecasts if each.pieces == 1)
    assert made.best == replace(made.trained.strategy, bucket_bytes=made.best.bucket_bytes)
    assert made.trained.bucket_bytes is not None
    assert made.best.bucket_bytes == math.ceil(made.trained.bucket_bytes)


def test_the_best_strategy_has_the_buckets_of_the_fastest_way() -> None:
    made = plan(Workload.known("resnet18", 0.01, 0.02, 256), PCIE, Recipe(shards=4), overlap=True)
    size = made.fastest.bucket_bytes
    assert size is not None
    assert made.best == replace(made.fastest.strategy, bucket_bytes=int(size))
    assert Strategy.from_json(made.to_json()["strategy"]) == made.best
    one = plan(one_gradient(10_000_001), PCIE, overlap=True)
    assert (one.fastest.bucket_bytes, one.best.bucket_bytes) == (None, 10_000_001)
    odd = plan(even_workload(3, 333), PCIE, Recipe(shards=4), overlap=True)
    assert odd.fastest.bucket_bytes is not None
    assert odd.best.bucket_bytes == math.ceil(odd.fastest.bucket_bytes)
    assert plan(one_gradient(1_000), PCIE, devices=1, overlap=True).best.bucket_bytes is None


def test_json() -> None:
    made = plan(Workload.known("lenet", 0.1, 0.2, 256), CUBE, Recipe(exact=False))
    record = json.loads(json.dumps(made.to_json()))
    assert Strategy.from_json(record["strategy"]) == made.best
    assert Recipe.from_json(record["recipe"]) == made.recipe
    assert record["forecasts"][0]["step_s"] == record["step_s"] == made.fastest.step_s
    assert len(record["curve"]) == 8
    assert record["limit"]["kind"] == "NVLink 2"


def test_large_topologies_have_few_points() -> None:
    made = plan(Workload.known("lenet", 0.1, 0.2, 256), Topology.preset("ethernet-4x6@25Gb"), Recipe(shards=24))
    assert [each.devices for each in made.curve] == [1, 2, 4, 6, 8, 16, 24]


def test_too_many_devices_to_simulate_all_ways() -> None:
    cluster = Topology.preset("ethernet-512x4@25Gb")
    with pytest.raises(ConfigurationError, match=r"over 2048 devices .* plan for 1024 at most \(--devices 1024\)"):
        plan(one_gradient(4), cluster, Recipe(batch_size=4096, shards=2048))


def test_ways_without_routes_are_left_out() -> None:
    # Four devices in a circle of links, 0-2-1-3: devices forward nothing, so only rings in this order have routes.
    nodes = tuple(Node(f"gpu{number}", Kind.DEVICE) for number in range(4))
    links = tuple(Link(f"gpu{a}", f"gpu{b}", 1e9) for a, b in ((0, 2), (2, 1), (1, 3), (3, 0)))
    circle = Topology("circle", nodes, links)
    made = plan(one_gradient(10_000_000), circle, Recipe(exact=False))
    assert {each.strategy.algorithm for each in made.forecasts} == {"rings", "two-way-rings"}
    assert made.fastest.exchange_s == pytest.approx(2 * 3 / 4 * 10e6 / 2e9)
    assert [each.devices for each in made.curve] == [1, 4]  # no way has all its routes among the first two, or three
    with pytest.raises(TopologyError, match="no route from gpu"):
        plan(one_gradient(10_000_000), circle, devices=2)


def test_small_models_have_buckets_too() -> None:
    work = Workload.known("lenet", 0.003, 0.006, 256)
    best = plan(work, Topology.preset("ethernet-4x1@1Gb"), Recipe(shards=4), overlap=True).fastest
    assert best.bucket_bytes == work.nbytes / 2
    assert best.hidden_s > 0
