"""TOML in and out, and the line and key of whatever is wrong."""

from __future__ import annotations

import contextlib
import random

import pytest

from samegrad.errors import TopologyError
from samegrad.topology import PRESETS, Kind, Link, Node, Topology
from samegrad.topology.files import from_toml, to_toml
from samegrad.topology.presets import Preset

TEXT = """\
name = "two"

[[node]]
name = "a"
kind = "device"
host = "box"
add_rate = "800 GB/s"

[[node]]
name = "b"
kind = "device"

[[link]]
between = ["a", "b"]
bandwidth = "25 Gb/s"
latency = 1e-6
per_message = 0
kind = "Ethernet"
count = 2
"""


def test_what_a_file_says() -> None:
    nodes = (Node("a", Kind.DEVICE, "box", 800e9), Node("b", Kind.DEVICE))
    assert from_toml(TEXT) == Topology("two", nodes, (Link("a", "b", 3.125e9, 1e-6, 0.0, "Ethernet", 2),))
    assert from_toml(TEXT.replace('name = "two"\n', ""), "file.toml").name == "file.toml"


@pytest.mark.parametrize("each", PRESETS, ids=lambda each: each.name)
def test_what_is_written_is_read(each: Preset) -> None:
    name = each.name.replace("RATE", "10Gb").replace("K", "3").replace("H", "2").replace("R", "2")
    topology = Topology.preset(name)
    assert from_toml(to_toml(topology)) == topology


def test_odd_figures_and_names_are_read_as_written() -> None:
    nodes = (Node('a "quoted" \\ name', Kind.DEVICE, "höst", 1e9 / 3), Node("\u2603", Kind.DEVICE))
    links = (Link(nodes[0].name, nodes[1].name, 1e7 / 3, 1e-9, 5e-5, "x = 'y'", 7),)
    topology = Topology("[[link]]", nodes, links)
    assert from_toml(topology.to_toml()) == topology


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "two"', 'name = "two', "f: line 1: "),
        ('name = "two"', "name = 2", "f: line 1: name: expected text in one line; got 2"),
        ('name = "two"', 'nmae = "two"', "f: line 1: there is no key 'nmae'; did you mean 'name'?"),
        ('name = "two"', "node = 3", "f: line 3: "),
        ("[[link]]", "[link]", "f: line 13: link: expected tables, each after a line [[link]]"),
        (
            'kind = "device"\nhost',
            'kind = "gpu"\nhost',
            "f: line 5: kind: expected device, host, switch or nic; got 'gp",
        ),
        (
            'kind = "device"\nhost',
            'kind = "devcie"\nhost',
            "f: line 5: kind: expected device, host, switch or nic; got 'devcie'; did you mean 'device'?",
        ),
        ('kind = "device"\nhost', "host", "f: line 3: kind: expected device, host, switch or nic; got nothing"),
        ('name = "a"', "name = 1", "f: line 4: name: expected text; got 1"),
        ('name = "a"', 'name = ""', "f: line 4: a node needs a name"),
        ('name = "b"', 'name = "a"', "f: line 10: name: there are two nodes 'a'"),
        ("host =", "hots =", "f: line 6: a node has no key 'hots'; did you mean 'host'?"),
        ('"800 GB/s"', "-1", "f: line 7: add_rate: expected positive bytes/s"),
        ('["a", "b"]', '["a", "c"]', "f: line 14: between: there is no node 'c'"),
        ('["a", "b"]', '["a"]', "f: line 14: between: expected the names of two nodes"),
        ('["a", "b"]', '["a", "a"]', "f: line 14: link a - a: a link joins two different nodes"),
        ('"25 Gb/s"', "0", "f: line 15: bandwidth: expected positive bytes/s"),
        ('"25 Gb/s"', "-16e9", "f: line 15: bandwidth: expected positive bytes/s"),
        ('"25 Gb/s"', "nan", "f: line 15: bandwidth: expected positive bytes/s"),
        ('"25 Gb/s"', "1e-320", "f: line 15: link a - b: bandwidth must be positive bytes/s, from 1 to"),
        ('"25 Gb/s"', '"25"', "f: line 15: bandwidth: expected a rate such as 25Gb"),
        ('bandwidth = "25 Gb/s"\n', "", "f: line 13: bandwidth: expected positive bytes/s"),
        ("latency = 1e-6", "latency = -1", "f: line 16: latency: expected seconds, 0 or more; got -1"),
        ("latency = 1e-6", 'latency = "1 us"', "f: line 16: latency: expected seconds, 0 or more"),
        ("count = 2", "count = 0", "f: line 19: link a - b: count must be 1 to 65536 parallel links; got 0"),
        ("count = 2", "count = true", "f: line 19: count: expected a whole number; got True"),
        ("count = 2", "count = 1.5", "f: line 19: count: expected a whole number; got 1.5"),
        (
            '["a", "b"]\n',
            '["a", "b"]\nbandwidth = 1\n[[link]]\nbetween = ["b", "a"]\n',
            "f: line 17: between: b and a",
        ),
        ("[[link]]", "[[node]]\nname = 'c'\nkind = 'device'\n[[link]]", "f: two: it is not connected"),
        (TEXT, "", "f: there is no device among its 0 nodes"),
        ("count = 2", "count = 2\n" + "x = " + "[" * 5000, "f: "),
    ],
)
def test_refused_with_line_and_key(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(TopologyError) as info:
        from_toml(TEXT.replace(old, new), "f")
    assert message in str(info.value)


@pytest.mark.parametrize("seed", range(200))
def test_spoilt_files_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    text = TEXT[: rng.choice([len(TEXT), rng.randrange(len(TEXT))])]
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at]
            + rng.choice(["", "=", "[", "]]", '"', "1e999", "-", "#", "\n", "\x00"])
            + text[at + rng.randint(0, 3) :]
        )
    with contextlib.suppress(TopologyError):
        assert from_toml(text).devices
