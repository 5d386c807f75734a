"""Transfers between cells that there are not: an error that names them, whatever the number."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from samegrad.errors import ConfigurationError, ScheduleError
from samegrad.schedules import Cut, Options, Round, build, pipelined, verify
from samegrad.schedules.ir import Schedule


def with_rows(rows: np.ndarray) -> Schedule:
    return dataclasses.replace(build("one-device", 2), rounds=[Round(rows)])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([-1, 0, 0, 0, 0, 1], "the source -1; expected 0 to 1"),
        ([2, 0, 0, 0, 0, 1], "the source 2; expected 0 to 1"),
        ([1, 0, 5, 0, 0, 1], "the target 5; expected 0 to 1"),
        ([1, -1, 0, 0, 0, 1], "the source slot -1; expected 0 to 1048575"),
        ([1, 0, 0, 2**31 - 1, 0, 1], "the target slot 2147483647; expected"),
        ([1, 0, 0, 0, -1, 1], "the chunk -1; expected 0 to 0"),
        ([1, 0, 0, 0, 7, 1], "the chunk 7; expected 0 to 0"),
        ([1, 0, 0, 0, 0, 2], "the operation 2; expected 0 to 1"),
        ([1, 0, 0, 0, 0, -1], "the operation -1; expected 0 to 1"),
    ],
)
def test_cells_that_there_are_not(row: list[int], problem: str) -> None:
    rows = np.array([[1, 0, 0, 0, 0, 1], row], np.int32)
    with pytest.raises(ScheduleError, match=f"one-device, round 0: transfer 1 has {problem}"):
        verify(with_rows(rows))


@pytest.mark.parametrize("rows", [np.zeros((1, 5), np.int32), np.zeros(6, np.int32), np.zeros((1, 6), np.float32)])
def test_arrays_of_another_kind(rows: np.ndarray) -> None:
    with pytest.raises(ScheduleError, match="round 0: expected rows of 6 whole numbers; got an array of"):
        verify(with_rows(rows))


def test_absurd_numbers_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"at most 1048576 of 4 chunks each; got 1000000000"):
        pipelined(build("ring", 4), 10**9)
    with pytest.raises(ConfigurationError, match=r"1 to 9007199254740992; got \(1000000000000"):
        dataclasses.replace(build("ring", 3), weights=(10**30, 1, 1))
    with pytest.raises(ConfigurationError, match="at most 4194304; got 4194305"):
        dataclasses.replace(build("one-device", 3), chunks=(1 << 22) + 1)
    with pytest.raises(ConfigurationError, match="cannot be proved in a reasonable time"):
        build("ring", 1 << 18)


def test_unequal_groups_that_have_no_small_common_multiple() -> None:
    with pytest.raises(ConfigurationError, match=r"groups of 1 x 129, 1 x 128 would cut the buffer into 33024 chunks"):
        build("hierarchical", 257)
    assert build("hierarchical", 513).ranks == 513  # 3 groups of 171
    assert build("hierarchical", 9).chunks == build("hierarchical", 9, options=Options(groups=((3, 3, 3),))).chunks
    assert Cut.equal(257).ranks == 257
