"""A measured machine as a topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samegrad.errors import TopologyError
from samegrad.topology import Topology, find
from samegrad.topology.machine_file import from_machine


def record(cores: Any = 4, **rates: float) -> dict[str, Any]:
    """What samegrad probe writes, as far as a topology needs it."""
    values = {
        "sequential read, 1 thread": 20e9,
        "sequential read, 4 threads": 60e9,
        "add gradients, 1 thread": 8e9,
        "memory, load": 1e-7,
        **rates,
    }
    rows = [{"name": name, "value": {"median": value}} for name, value in values.items()]
    return {"format": "samegrad machine", "version": 1, "facts": {"cores usable": cores}, "rows": rows}


def gpus() -> dict[str, float]:
    values = {}
    for number in (0, 1, 2):
        values[f"gpu{number}: memory"] = 3e12
        values[f"gpu{number}: copy to the GPU, pinned"] = 24e9
        values[f"gpu{number}: copy from the GPU, pinned"] = 22e9
        values[f"gpu{number}: launch a kernel and wait for it"] = 9e-6
        for other in (0, 1, 2):
            values[f"gpu{number} to gpu{other}: copy"] = 200e9 if {number, other} == {0, 1} else 20e9
    return values


def test_cores_share_what_memory_gives() -> None:
    topology = from_machine(json.dumps(record()), "box")
    assert topology.devices == ("core0", "core1", "core2", "core3")
    assert {link.bandwidth for link in topology.links} == {15e9}
    assert topology.node("core0").add_rate == 8e9
    alone = from_machine(json.dumps(record(cores=1)))
    assert (alone.devices, alone.links[0].bandwidth) == (("core0",), 20e9)


def test_gpus_have_links_to_the_host_and_fast_ones_to_each_other() -> None:
    topology = from_machine(json.dumps(record(**gpus())))
    assert topology.devices == ("gpu0", "gpu1", "gpu2")
    links = {(link.a, link.b): link for link in topology.links}
    assert links["gpu0", "root0"].bandwidth == 22e9
    assert links["gpu0", "root0"].latency == 9e-6
    assert links["gpu0", "gpu1"].bandwidth == 200e9
    assert ("gpu0", "gpu2") not in links
    assert topology.node("gpu0").add_rate == pytest.approx(2e12)


def test_a_file_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    path.write_text(json.dumps(record(), indent=1), encoding="utf-8")
    assert find(str(path)) == Topology.load(path)
    assert find(str(path)).name == "box"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "expected version 1"),
        ({"rows": None}, "no figure for 'sequential read, 1 thread'"),
        ({"rows": [3, {"name": "memory, load", "value": {"median": -1}}]}, "no figure for"),
        ({"facts": None}, "cores usable: expected 1 to 1024; got None"),
        ({"facts": {"cores usable": 10**9}}, "cores usable: expected"),
        ({"facts": {"cores usable": 3}}, "no figure for 'sequential read, 3 threads'"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        from_machine(json.dumps({**record(), **change}), "box")


@pytest.mark.parametrize("text", ['{"samegrad machine"', "[" * 100_000 + '"samegrad machine"'])
def test_a_text_that_is_cut_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="box: expected the JSON"):
        from_machine(text, "box")
