"""A wrapped model gives what one process gives, in the situations in which wrappers are known to break.

A launch runs all cases of `wrapped_cases` and `wrapped_loop_cases`, one after the other; each case is a test.
"""

from __future__ import annotations

import functools

import pytest
from tests.parallel.wrapped_loop_cases import CASES  # and those of wrapped_cases
from tests.parallel.wrapped_runs import check, run_cases

import samegrad as sg
from samegrad.executors import shared_mean
from samegrad.parallel import shared_means

pytestmark = pytest.mark.dist
SLOW = pytest.mark.slow


def run_all(store: str = "") -> dict[str, list[str]]:
    """Three ranks treat their gradients as if all were large, and add each up in part."""
    world = sg.current_world()
    if world.size == 3:
        vars(shared_means)["_LARGE"] = vars(shared_mean)["_ALIGNMENT"] = 1
    return run_cases(world, CASES, store)


@functools.cache
def results(ranks: int, store: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = sg.launch(lambda: run_all(store), devices=f"cpu:{ranks}", timeout_s=30)
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_case(ranks: int, name: str) -> None:
    check(results(ranks)[name])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("gloo") / "store")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_case_over_a_process_group(store: str, name: str) -> None:
    """The exchanges run on a thread of their own, while backward goes on."""
    check(results(3, store)[name])
    assert results(3, store)[name] == results(3)[name], "other bits than in shared memory"
