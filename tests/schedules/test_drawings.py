"""What the algorithms look like for four ranks, literally; the same drawings open their files."""

from __future__ import annotations

import sys
import textwrap

import pytest

from samegrad.errors import ConfigurationError
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build
from samegrad.schedules.ir import Collective
from samegrad.schedules.options import Options
from samegrad.schedules.render import grid

OPTIONS = {
    "hierarchical": Options(groups=((2, 2),), ways=("sharded", "binomial-tree")),
    "rings": Options(orders=((0, 1, 2, 3), (0, 2, 1, 3))),
}
HELPERS = {"servers": 2}

GRIDS = {
    "one-device": """
        round  rank 0      rank 1    rank 2    rank 3
        0      =c0@2 < r1
               =c0@3 < r2
               =c0@4 < r3
        1      +c0 < @2
               +c0@3 < @4
        2      +c0 < @3
        3                  =c0 < r0  =c0 < r0  =c0 < r0
    """,
    "one-shot": """
        round  rank 0      rank 1      rank 2      rank 3
        0      =c0@2 < r1  =c0@1 < r0  =c0@1 < r0  =c0@1 < r0
               =c0@3 < r2  =c0@3 < r2  =c0@2 < r1  =c0@2 < r1
               =c0@4 < r3  =c0@4 < r3  =c0@4 < r3  =c0@3 < r2
        1      +c0 < @2    +c0 < @1    +c0@1 < @2  +c0@1 < @2
               +c0@3 < @4  +c0@3 < @4  +c0 < @4    +c0 < @3
        2      +c0 < @3    +c0 < @3    +c0 < @1    +c0 < @1
    """,
    "host": """
        round  rank 0    rank 1    rank 2    rank 3    rank 4
        0                                              =c0 < r0
                                                       =c0@1 < r1
                                                       =c0@2 < r2
                                                       =c0@3 < r3
        1                                              +c0 < @1
                                                       +c0@2 < @3
        2                                              +c0 < @2
        3      =c0 < r4  =c0 < r4  =c0 < r4  =c0 < r4
    """,
    "sharded": """
        round  rank 0      rank 1      rank 2      rank 3
        0      =c0@2 < r1  =c1@1 < r0  =c2@1 < r0  =c3@1 < r0
               =c0@3 < r2  =c1@3 < r2  =c2@2 < r1  =c3@2 < r1
               =c0@4 < r3  =c1@4 < r3  =c2@4 < r3  =c3@3 < r2
        1      +c0 < @2    +c1 < @1    +c2@1 < @2  +c3@1 < @2
               +c0@3 < @4  +c1@3 < @4  +c2 < @4    +c3 < @3
        2      +c0 < @3    +c1 < @3    +c2 < @1    +c3 < @1
        3      =c1 < r1    =c0 < r0    =c0 < r0    =c0 < r0
               =c2 < r2    =c2 < r2    =c1 < r1    =c1 < r1
               =c3 < r3    =c3 < r3    =c3 < r3    =c2 < r2
    """,
    "halving-doubling": """
        round  rank 0      rank 1      rank 2      rank 3
        0      +c0-1 < r1  +c2-3 < r0  +c0-1 < r3  +c2-3 < r2
        1      +c0 < r2    +c2 < r3    +c1 < r0    +c3 < r1
        2      =c1 < r2    =c3 < r3    =c0 < r0    =c2 < r1
        3      =c2-3 < r1  =c0-1 < r0  =c2-3 < r3  =c0-1 < r2
    """,
    "binomial-tree": """
        round  rank 0    rank 1    rank 2    rank 3
        0      +c0 < r1            +c0 < r3
        1      +c0 < r2
        2                          =c0 < r0
        3                =c0 < r0            =c0 < r2
    """,
    "hierarchical": """
        round  rank 0      rank 1      rank 2      rank 3
        0      =c0@2 < r1  =c1@1 < r0  =c0@2 < r3  =c1@1 < r2
        1      +c0 < @2    +c1 < @1    +c0 < @2    +c1 < @1
        2      +c0 < r2    +c1 < r3
        3                              =c0 < r0    =c1 < r1
        4      =c1 < r1    =c0 < r0    =c1 < r3    =c0 < r2
    """,
    "servers": """
        round  rank 0    rank 1    rank 2    rank 3    rank 4      rank 5
        0                                              =c0 < r0    =c1 < r0
                                                       =c0@1 < r1  =c1@1 < r1
                                                       =c0@2 < r2  =c1@2 < r2
                                                       =c0@3 < r3  =c1@3 < r3
        1                                              +c0 < @1    +c1 < @1
                                                       +c0@2 < @3  +c1@2 < @3
        2                                              +c0 < @2    +c1 < @2
        3      =c0 < r4  =c0 < r4  =c0 < r4  =c0 < r4
               =c1 < r5  =c1 < r5  =c1 < r5  =c1 < r5
    """,
    "ring": """
        round  rank 0    rank 1    rank 2    rank 3
        0      +c2 < r3  +c3 < r0  +c0 < r1  +c1 < r2
        1      +c1 < r3  +c2 < r0  +c3 < r1  +c0 < r2
        2      +c0 < r3  +c1 < r0  +c2 < r1  +c3 < r2
        3      =c3 < r3  =c0 < r0  =c1 < r1  =c2 < r2
        4      =c2 < r3  =c3 < r0  =c0 < r1  =c1 < r2
        5      =c1 < r3  =c2 < r0  =c3 < r1  =c0 < r2
    """,
    "two-way-ring": """
        round  rank 0    rank 1    rank 2    rank 3
        0      +c2 < r3  +c3 < r0  +c0 < r1  +c1 < r2
               +c5 < r1  +c4 < r2  +c7 < r3  +c6 < r0
        1      +c1 < r3  +c2 < r0  +c3 < r1  +c0 < r2
               +c4 < r1  +c7 < r2  +c6 < r3  +c5 < r0
        2      +c0 < r3  +c1 < r0  +c2 < r1  +c3 < r2
               +c7 < r1  +c6 < r2  +c5 < r3  +c4 < r0
        3      =c3 < r3  =c0 < r0  =c1 < r1  =c2 < r2
               =c6 < r1  =c5 < r2  =c4 < r3  =c7 < r0
        4      =c2 < r3  =c3 < r0  =c0 < r1  =c1 < r2
               =c5 < r1  =c4 < r2  =c7 < r3  =c6 < r0
        5      =c1 < r3  =c2 < r0  =c3 < r1  =c0 < r2
               =c4 < r1  =c7 < r2  =c6 < r3  =c5 < r0
    """,
    "rings": """
        round  rank 0      rank 1    rank 2    rank 3
        0      +c2,6 < r3  +c3 < r0  +c0 < r1  +c1 < r2
                           +c4 < r2  +c7 < r0  +c5 < r1
        1      +c1,5 < r3  +c2 < r0  +c3 < r1  +c0 < r2
                           +c7 < r2  +c6 < r0  +c4 < r1
        2      +c0,4 < r3  +c1 < r0  +c2 < r1  +c3 < r2
                           +c6 < r2  +c5 < r0  +c7 < r1
        3      =c3,7 < r3  =c0 < r0  =c1 < r1  =c2 < r2
                           =c5 < r2  =c4 < r0  =c6 < r1
        4      =c2,6 < r3  =c3 < r0  =c0 < r1  =c1 < r2
                           =c4 < r2  =c7 < r0  =c5 < r1
        5      =c1,5 < r3  =c2 < r0  =c3 < r1  =c0 < r2
                           =c7 < r2  =c6 < r0  =c4 < r1
    """,
    "recursive-doubling": """
        round  rank 0    rank 1    rank 2    rank 3
        0      +c0 < r1  +c0 < r0  +c0 < r3  +c0 < r2
        1      +c0 < r2  +c0 < r3  +c0 < r0  +c0 < r1
    """,
    "double-binary-tree": """
        round  rank 0    rank 1    rank 2    rank 3
        0                +c1 < r0  +c0 < r1
        1                +c1 < r2  +c0 < r3
        2      +c0 < r2                      +c1 < r1
        3                =c1 < r3  =c0 < r0
        4                          =c1 < r1  =c0 < r2
        5      =c1 < r1  =c0 < r2
    """,
}


@pytest.mark.parametrize("name", GRIDS)
def test_drawing(name: str) -> None:
    drawn = grid(build(name, 4, HELPERS.get(name), options=OPTIONS.get(name)))
    assert drawn == textwrap.dedent(GRIDS[name]).strip()


@pytest.mark.parametrize("name", GRIDS)
def test_file_opens_with_the_drawing(name: str) -> None:
    text = sys.modules[algorithm(name).phases.__module__].__doc__
    assert text is not None
    assert textwrap.indent(textwrap.dedent(GRIDS[name]).strip(), " " * 4) in text


@pytest.mark.parametrize("collective", Collective)
def test_whatever_can_be_built_can_be_drawn(collective: Collective) -> None:
    """Also where a rank gets nothing, as in a reduce."""
    for name in ALGORITHMS:
        for ranks in (1, 2, 5):
            try:
                schedule = build(name, ranks, collective=collective)
            except ConfigurationError:
                continue
            assert grid(schedule).startswith("round  rank 0")


def test_every_algorithm_is_drawn() -> None:
    assert set(GRIDS) == set(ALGORITHMS) - {"two-way-rings"}  # which is in the file of rings
