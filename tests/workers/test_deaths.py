"""Over Gloo and in memory, a rank that dies in the middle of a long message is named by all others, soon; one that
stands still, at the deadline; one that is slow, never."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.workers.jobs import environment

pytestmark = pytest.mark.dist
ROOT = Path(__file__).resolve().parents[2]

KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)
SOON_S = 8.0  # 1.5 s for the launcher, and a busy machine


def play(*scenarios: dict[str, Any]) -> list[dict[str, Any]]:
    """How each has gone; see `dying_ranks`."""
    base = {"size": 3, "mb": 16.0, "algorithm": "sharded", "signal": KILL, "timeout_s": 60.0}
    run = subprocess.run(
        [sys.executable, "-m", "tests.workers.dying_ranks", *(json.dumps({**base, **each}) for each in scenarios)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def check_death(found: dict[str, Any], victim: int) -> None:
    """Every other rank has named the victim, once, and soon, and has ended with an exit code that is not 0."""
    for rank, (code, said) in enumerate(zip(found["codes"], found["said"], strict=True)):
        if rank == victim:
            continue
        ((seconds, text),) = said
        assert text.startswith(f"PeerFailed {victim} rank {rank} of "), text
        assert f"at 'sum': there is nothing to wait for; rank {victim} (on " in text
        assert "has ended without a word: its process was killed or crashed" in text
        assert seconds < SOON_S, found
        assert code == 1


def test_a_rank_that_is_killed_is_named_by_all_others_soon() -> None:
    """One that only sends, rank 0, which serves the store, one with a child that keeps Gloo's connections, one that is
    read."""
    scenarios: list[dict[str, Any]] = [
        {"victim": 3, "size": 4, "algorithm": "binomial-tree"},
        {"victim": 0},
        {"victim": 1, "has_child": True, "algorithm": "native"},
        {"victim": 1, "reads": True},
    ]
    for scenario, found in zip(scenarios, play(*scenarios), strict=True):
        check_death(found, scenario["victim"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "reads"),
    [*((name, False) for name in ("one-device", "ring", "halving-doubling", "native")), ("ring", True)],
)
def test_it_is_named_whatever_it_was_at(algorithm: str, reads: bool) -> None:
    scenarios: list[dict[str, Any]] = [
        {"victim": victim, "size": size, "algorithm": algorithm, "mb": 64.0, "after_s": after_s, "reads": reads}
        for victim, size in ((0, 2), (1, 2), (0, 4), (2, 4))
        for after_s in (0.03, 0.11)
    ]
    for scenario, found in zip(scenarios, play(*scenarios), strict=True):
        check_death(found, scenario["victim"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "size", "algorithm", "reads"),
    [(1, 2, "sharded", False), (0, 3, "sharded", False), (2, 3, "native", False), (1, 3, "sharded", True)],
)
def test_a_rank_that_stands_still_is_named_at_the_deadline(victim: int, size: int, algorithm: str, reads: bool) -> None:
    base = {"victim": victim, "size": size, "algorithm": algorithm, "reads": reads}
    (found,) = play({**base, "signal": STOP, "timeout_s": 4.0, "mb": 32.0})
    for rank, said in enumerate(found["said"]):
        if rank != victim:
            ((seconds, text),) = said
            assert text.startswith(f"PeerTimeout {victim} rank {rank} of "), text
            assert f"rank {victim} (on " in text
            assert "gives no sign of life" in text
            assert 3.0 < seconds < 4.0 + SOON_S + 4.0
            assert found["codes"][rank] == 1


@pytest.mark.slow
def test_a_rank_that_is_busy_and_lets_nothing_else_run_raises_no_alarm() -> None:
    (found,) = play({"victim": 1, "signal": 0, "rounds": 4, "busy_s": 8.0, "mb": 1.0})
    assert found == {"codes": [0, 0, 0], "said": [[], [], []]}
