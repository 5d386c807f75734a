"""The end of ranks that another launcher has started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.workers.jobs import start_ranks, wait_for

pytestmark = pytest.mark.dist

# Prints whether threads of Gloo run: after an exchange, and when the process group has been destroyed.
SCRIPT = """\
import os, sys
from pathlib import Path
del os.memfd_create
import torch, samegrad as sg
from samegrad.workers import join

def gloo_runs():
    return any("gloo" in path.read_text() for path in Path("/proc/self/task").glob("*/comm"))

if "own" in sys.argv:
    torch.distributed.init_process_group("gloo")
sg.current_world().group.gather(b"here", "test")
import torch.distributed.nn.functional  # as torch.optim does: it takes hold of the group
found = [gloo_runs()]
if "destroyed" in sys.argv:
    torch.distributed.destroy_process_group()
join().on_exit.append(lambda: print(str([*found, gloo_runs()]).lower(), flush=True))
"""


@pytest.mark.parametrize(
    "how",
    [
        [],
        pytest.param(["destroyed"], marks=pytest.mark.slow),
        pytest.param(["own", "destroyed"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_no_thread_of_gloo_is_left_to_meet_the_end_of_python(how: list[str], tmp_path: Path) -> None:
    """Of a process group of ours or the user's `own`, which the user may have `destroyed`."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with start_ranks(script, 2, *how) as processes:
        ended = wait_for(processes)
    assert [one.code for one in ended] == [0, 0], ended
    assert [json.loads(one.out) for one in ended] == [[True, False]] * 2


def test_what_fails_at_the_end_of_a_rank_is_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from samegrad.workers import join\njoin().on_exit.append(lambda: 1 // 0)\nprint('said', end='')\n",
        encoding="utf-8",
    )
    with start_ranks(script, 1) as processes:
        (ended,) = wait_for(processes)
    assert (ended.code, ended.out) == (1, "said")
    assert ended.err.count("ZeroDivisionError") == 1
