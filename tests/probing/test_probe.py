"""Probing as a whole: what cannot be measured says why, the rest goes on, and nothing is left behind."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from samegrad.errors import ConfigurationError, OutputError
from samegrad.probing import Machine, Row, probe
from samegrad.probing import probe as probe_function
from samegrad.probing.effort import EFFORTS, Effort
from samegrad.probing.references import REFERENCES, reference_of
from samegrad.probing.task import Task, per_call
from samegrad.timing import Spread

module = sys.modules["samegrad.probing.probe"]

TINY = Effort(2, 0.0005, 1 << 20, 4.0, 1 << 21, (16,))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", TINY)


def found(row: Row | None) -> Spread:
    assert row is not None
    assert row.value is not None, row.problem
    return row.value


@pytest.mark.dist
def test_all_groups_are_measured_and_nothing_is_left(tiny: None, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    told: list[float] = []
    before = (set(psutil.Process().children(recursive=True)), threading.active_count())
    machine = probe("quick", path=tmp_path, progress=lambda _, done: told.append(done))
    assert (set(psutil.Process().children(recursive=True)), threading.active_count()) == before
    assert list(tmp_path.iterdir()) == []
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] <= 1
    assert list(dict.fromkeys(row.group for row in machine.rows)) == list(module._SHARES)
    assert Machine.from_json(machine.to_json()) == machine
    assert found(machine.row("read backward")).repetitions == 2
    once, again = found(machine.row("write to fresh memory")), found(machine.row("write to the same memory again"))
    assert once.lowest < again.highest
    cached, past = (machine.row(f"read 4 KB at random, {way} the cache") for way in ("from", "past"))
    assert past is not None
    if past.value is not None:
        assert found(cached).lowest < past.value.highest
    assert found(machine.row("fork")).median < found(machine.row("start Python")).highest
    assert {curve.axis for curve in machine.curves} == {"bytes", "threads"}
    assert sum(abs(share) for share in module._SHARES.values()) == pytest.approx(1)


def test_what_fails_says_why_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, tiny: None) -> None:
    told: list[str] = []

    def one(value: float) -> Any:
        return lambda: Spread.of([value])

    def fails(error: Exception) -> Any:
        def run() -> Spread:
            raise error

        return run

    @contextlib.contextmanager
    def works() -> Iterator[list[Task]]:
        yield [
            Task("a", "s", fails(PermissionError(13, "Permission denied"))),
            Task("b", "s", fails(ConfigurationError("needs\nmore"))),
            Task("c", "s", one(3.0)),
            Task("d", "B/s", one(1.0), x=1),
            Task("d", "B/s", fails(RuntimeError("once")), x=2),
            Task("d", "B/s", fails(RuntimeError("once")), x=4),
            Task("d", "B/s", one(8.0), x=8),
        ]

    @contextlib.contextmanager
    def closed() -> Iterator[list[Task]]:
        if not told:
            raise OutputError("there is no room")
        yield []

    monkeypatch.setattr(module, "_groups", lambda *_: iter([("memory", works), ("storage", closed)]))
    machine = probe("quick")
    assert [(row.name, row.problem) for row in machine.rows] == [
        ("a", "PermissionError: [Errno 13] Permission denied"),
        ("b", "needs more"),
        ("c", ""),
        ("d", "RuntimeError: once"),
        ("storage", "there is no room"),
    ]
    (curve,) = machine.curves
    assert [(x, spread.median) for x, spread in curve.points] == [(1, 1.0), (8, 8.0)]


def test_a_group_that_takes_too_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", replace(TINY, patience=0.0))

    @contextlib.contextmanager
    def slow() -> Iterator[list[Task]]:
        yield [Task(name, "s", lambda: Spread.of([1.0])) for name in ("a", "b")]

    monkeypatch.setattr(module, "_groups", lambda *_: iter([("storage", slow)]))
    assert {row.problem for row in probe("quick").rows} == {
        "left out: what is measured before it took over 0 s; --full takes its time"
    }


def test_without_numba_rows_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tiny: None) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "samegrad.probing.kernels", raising=False)
    monkeypatch.delattr("samegrad.probing.kernels", raising=False)
    groups = module._groups(TINY, Path("/"), None)
    monkeypatch.setattr(module, "_groups", lambda *_: iter([next(groups)]))
    machine = probe("quick")
    assert machine.curves == []
    assert {row.problem for row in machine.rows} == {
        "needs numba, which compiles its loops: pip install 'samegrad[probe]'"
    }


def test_an_effort_that_is_not_known() -> None:
    with pytest.raises(ConfigurationError, match="one of quick, default, full; got 'fast'"):
        probe("fast")
    assert probe_function is probe


def test_a_call_is_timed_with_as_many_as_fill_a_repetition() -> None:
    calls: list[int] = []
    spread = per_call(TINY, lambda: calls.append(1))
    assert spread.repetitions == TINY.repetitions
    assert 0 < spread.lowest < 1e-4
    assert len(calls) > 100


def test_references_name_year_and_source() -> None:
    assert all(2000 <= each.year <= 2026 and each.source and each.value > 0 for each in REFERENCES.values())
    assert reference_of("memory, load") is REFERENCES["memory, load"]
    product = reference_of("gpu3: product of 4096 × 4096, bf16")
    assert product is not None
    assert product.value == 312e12
    assert reference_of("start Python") is None
