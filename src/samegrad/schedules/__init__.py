"""Collectives as schedules: data that is proved, drawn, and run. No torch.

    schedule = samegrad.schedules.build("ring", ranks=4)    # proved; print(schedule) draws it

`ir` says what a schedule is, `catalog` has the table of the algorithms, which have a file each; `verify` proves,
`render` and `picture` draw, `compose` makes new ones out of others, `files` writes and reads them.
"""

from __future__ import annotations

from samegrad.schedules.catalog import ALGORITHMS, Algorithm, build, build_for
from samegrad.schedules.compose import co_located, pipelined, relabelled, striped, then
from samegrad.schedules.cut import Cut
from samegrad.schedules.files import from_json, to_json
from samegrad.schedules.ir import Collective, Op, Round, Schedule, Transfer
from samegrad.schedules.options import Options
from samegrad.schedules.verify import Proof, verify

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Collective",
    "Cut",
    "Op",
    "Options",
    "Proof",
    "Round",
    "Schedule",
    "Transfer",
    "build",
    "build_for",
    "co_located",
    "from_json",
    "pipelined",
    "relabelled",
    "striped",
    "then",
    "to_json",
    "verify",
]
