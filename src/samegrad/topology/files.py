"""Topologies as TOML, and back. Nothing in a file is believed; errors name the file, the line and the key.

name = "two devices on a switch"        # what is written with = may be left out if it has a default

[[node]]
name = "gpu0"
kind = "device"                         # device, host, switch or nic
host = "host0"                          # default ""
add_rate = "800 GB/s"                   # of additions; default: they cost no time

[[link]]
between = ["gpu0", "switch0"]
bandwidth = "16 GB/s"                   # in each direction: bytes/s, or text such as "25 Gb/s"
latency = 1e-6                          # s, default 0
per_message = 0.0                       # s, default 0
kind = "PCIe 3.0 x16"                   # default ""
count = 1                               # parallel links, default 1
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from samegrad.errors import TopologyError
from samegrad.topology.check import unknown
from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.units import parse_rate

__all__ = ["from_toml", "to_toml"]

_Made = TypeVar("_Made", Node, Link)

_NODE = {"name", "kind", "host", "add_rate"}
_LINK = {"between", "bandwidth", "latency", "per_message", "kind", "count"}


def to_toml(topology: Topology) -> str:
    """The topology as TOML; `from_toml` makes an equal one of it."""
    parts = [f"name = {_text(topology.name)}\n"]
    for node in topology.nodes:
        lines = [f"name = {_text(node.name)}", f'kind = "{node.kind}"']
        lines += [f"host = {_text(node.host)}"] if node.host else []
        lines += [f"add_rate = {_number(node.add_rate)}"] if node.add_rate is not None else []
        parts.append("\n".join(["[[node]]", *lines, ""]))
    for link in topology.links:
        lines = [f"between = [{_text(link.a)}, {_text(link.b)}]", f"bandwidth = {_number(link.bandwidth)}"]
        lines += [f"latency = {_number(link.latency)}"] if link.latency else []
        lines += [f"per_message = {_number(link.per_message)}"] if link.per_message else []
        lines += [f"kind = {_text(link.kind)}"] if link.kind else []
        lines += [f"count = {link.count}"] if link.count != 1 else []
        parts.append("\n".join(["[[link]]", *lines, ""]))
    return "\n".join(parts)


def from_toml(text: str, source: str = "topology") -> Topology:
    """The inverse of `to_toml`; `source` names where the text comes from. Raises TopologyError."""
    try:
        record = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TopologyError(_with_line(source, str(error))) from error
    return _Reader(text, source).topology(record)


class _Reader:
    """Makes records of tables, and knows the lines that these stand in."""

    def __init__(self, text: str, source: str) -> None:
        self.lines = text.splitlines()
        self.source = source

    def topology(self, record: dict[str, Any]) -> Topology:
        for key in record:
            if key not in ("name", "node", "link"):
                self.refuse(self.line_of(key), f"there is no key {unknown(key, ['name', 'node', 'link'])}")
        name = record.get("name", self.source)
        if not isinstance(name, str) or not name.isprintable():
            self.refuse(self.line_of("name"), f"name: expected text in one line; got {name!r}")
        nodes: dict[str, Node] = {}
        for number, table in enumerate(self.tables(record, "node")):
            node = self.make("node", number, table, _NODE, self.node)
            if node.name in nodes:
                self.refuse(self.line_in("node", number, "name"), f"name: there are two nodes {node.name!r}")
            nodes[node.name] = node
        links: dict[frozenset[str], Link] = {}
        for number, table in enumerate(self.tables(record, "link")):
            link = self.make("link", number, table, _LINK, self.link)
            line = self.line_in("link", number, "between")
            for end in (link.a, link.b):
                if end not in nodes:
                    self.refuse(line, f"between: there is no node {unknown(end, nodes)}")
            if frozenset((link.a, link.b)) in links:
                self.refuse(
                    line,
                    f"between: {link.a} and {link.b} have a link already; give one, with the sum of the bandwidths and "
                    "its count",
                )
            links[frozenset((link.a, link.b))] = link
        try:
            return Topology(name, tuple(nodes.values()), tuple(links.values()))
        except TopologyError as error:
            raise TopologyError(str(error) if name == self.source else f"{self.source}: {error}") from error

    def tables(self, record: dict[str, Any], key: str) -> list[dict[str, Any]]:
        tables = record.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.refuse(self.line_of(key), f"{key}: expected tables, each after a line [[{key}]]")
        return tables

    def make(
        self, key: str, number: int, table: dict[str, Any], known: set[str], maker: Callable[[dict[str, Any]], _Made]
    ) -> _Made:
        for name in table:
            if name not in known:
                self.refuse(self.line_in(key, number, name), f"a {key} has no key {unknown(name, sorted(known))}")
        try:
            return maker(table)
        except _Wrong as wrong:
            self.refuse(self.line_in(key, number, wrong.key), f"{wrong.key}: {wrong.problem}")
        except TopologyError as error:
            said = str(error)
            named = next(
                (name for name in table if f" {name} must be " in said), "name" if key == "node" else "between"
            )
            self.refuse(self.line_in(key, number, named), said)

    def node(self, table: dict[str, Any]) -> Node:
        kind = _of_type(table, "kind", str, "device, host, switch or nic")
        if kind not in list(Kind):
            raise _Wrong("kind", f"expected device, host, switch or nic; got {unknown(kind, list(Kind))}")
        rate = _rate(table, "add_rate") if "add_rate" in table else None
        return Node(_of_type(table, "name", str, "text"), Kind(kind), _of_type(table, "host", str, "text", ""), rate)

    def link(self, table: dict[str, Any]) -> Link:
        ends = _of_type(table, "between", list, 'the names of two nodes, as ["a", "b"]')
        if len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            raise _Wrong("between", f'expected the names of two nodes, as ["a", "b"]; got {_short(ends)}')
        return Link(
            a=ends[0],
            b=ends[1],
            bandwidth=_rate(table, "bandwidth"),
            latency=_seconds(table, "latency"),
            per_message=_seconds(table, "per_message"),
            kind=_of_type(table, "kind", str, "text", ""),
            count=_of_type(table, "count", int, "a whole number", 1),
        )

    def refuse(self, line: int, problem: str) -> NoReturn:
        raise TopologyError(f"{self.source}: line {line}: {problem}")

    def line_of(self, key: str) -> int:
        """The first line that speaks of a key at the top, 1 if none is found."""
        pattern = re.compile(rf"\s*(\[\[?\s*)?[\"']?{re.escape(key)}[\"']?\s*[\].=]")
        return next((number for number, line in enumerate(self.lines, 1) if pattern.match(line)), 1)

    def line_in(self, key: str, number: int, name: str) -> int:
        """The line of key `name` in the table `number` (from 0) of `[[key]]`; that of its head if not found."""
        heads = [at for at, line in enumerate(self.lines) if re.match(rf"\s*\[\[\s*{key}\s*\]\]", line)]
        if number >= len(heads):
            return self.line_of(key)
        for at in range(heads[number] + 1, len(self.lines)):
            if re.match(r"\s*\[", self.lines[at]):
                break
            if name and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[.=]", self.lines[at]):
                return at + 1
        return heads[number] + 1


class _Wrong(Exception):
    def __init__(self, key: str, problem: str) -> None:
        self.key, self.problem = key, problem


def _of_type(table: dict[str, Any], key: str, kind: type[Any], expected: str, default: Any = None) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _Wrong(key, f"expected {expected}; got {'nothing' if value is None else _short(value)}")
    return value


def _rate(table: dict[str, Any], key: str) -> float:
    value: Any = table.get(key)
    if isinstance(value, str):
        try:
            value = parse_rate(value)
        except ValueError as error:
            raise _Wrong(key, str(error)) from None
    if not _is_number(value) or not 0 < value < math.inf:
        got = "nothing" if value is None else _short(value)
        raise _Wrong(key, f'expected positive bytes/s, or text such as "25 Gb/s" or "16 GB/s"; got {got}')
    return float(value)


def _seconds(table: dict[str, Any], key: str) -> float:
    value = table.get(key, 0.0)
    if not _is_number(value) or not 0 <= value < math.inf:
        raise _Wrong(key, f"expected seconds, 0 or more; got {_short(value)}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_line(source: str, message: str) -> str:
    match = re.search(r"\s*\(at line (\d+), column \d+\)$", message)
    return f"{source}: line {match[1]}: {message[: match.start()]}" if match else f"{source}: {message}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    return f"{value:_}" if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
