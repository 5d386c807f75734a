"""Short records over Gloo: who has got the last ones may end at once."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from samegrad.executors import notes
from samegrad.executors.notes import gather_notes
from samegrad.workers import context, launch


def last_notes(store: str) -> str:
    """On each of two ranks: gathers twice. Rank 1 ends at once, and rank 0 asks for the next note when it has."""
    worker = context()
    assert worker is not None
    rank = worker.rank
    dist.init_process_group("gloo", store=FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=20))
    assert gather_notes(None, b"%d" % rank, 7) == [b"0", b"1"]
    real = dist.irecv
    if rank == 0:

        def late(*arguments: object) -> object:
            end = time.monotonic() + 20
            while time.monotonic() < end:  # until the connection is closed, and this fails
                real(torch.empty(1), 1, None, 8)
                time.sleep(0.01)
            raise AssertionError("the other rank did not end")

        dist.irecv = late  # type: ignore[assignment]
    assert gather_notes(None, b"%d" % rank, 7) == [b"0", b"1"]
    if rank == 1:
        dist.destroy_process_group()
        return ""
    dist.irecv = real
    with pytest.raises(RuntimeError) as raised:
        gather_notes(None, b"0", 7)
    return str(raised.value)


class Interrupted:
    """Ctrl-C comes while a note is waited for."""

    def wait(self) -> None:
        raise KeyboardInterrupt


def broken_off(store: str) -> str:
    """On each of two ranks: a gather that is broken off, and the next one."""
    worker = context()
    assert worker is not None
    rank = worker.rank
    dist.init_process_group("gloo", store=FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=20))
    gather_notes(None, b"0", 7)
    real = dist.isend
    dist.isend = lambda *_: Interrupted()  # type: ignore[assignment]
    (post,) = notes._posts.values()
    post._coming, kept = [], post._coming
    with pytest.raises(KeyboardInterrupt):
        gather_notes(None, b"1", 7)
    dist.isend, post._coming = real, kept
    with pytest.raises(RuntimeError, match="broken off") as raised:
        gather_notes(None, b"2", 7)
    return str(raised.value)


@pytest.mark.dist
def test_the_notes_of_a_gather_that_was_broken_off_are_not_taken_for_the_next(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert launch(lambda: broken_off(store), devices="cpu:2", timeout_s=30)


@pytest.mark.dist
def test_a_rank_may_end_when_it_has_the_last_notes(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert launch(lambda: last_notes(store), devices="cpu:2", timeout_s=30)
