"""Who is missing after an exchange has failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from samegrad.errors import GroupError, PeerFailed, PeerTimeout
from samegrad.executors import roll_call
from samegrad.executors.roll_call import RollCall

BROKEN = RuntimeError("[pair.cc:537] Read error [10.0.0.1]:5: Connection reset. This is typically caused by bugs\nmore")


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ({1}, r"no answer from rank 1 \(on [^)]+\): killed"),
        ({0, 3}, r"no answer from ranks 0 \(on [^)]+\), 3 \(on [^)]+\): killed"),
        (set[int](), r"\. All ranks answer still"),
    ],
)
def test_ranks_that_do_not_answer_are_named(gone: set[int], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_WAIT_S", 0.3)
    store = HashStore()
    there = [rank for rank in range(4) if rank not in gone]
    with ThreadPoolExecutor(4) as pool:
        calls = [RollCall(store, rank, 4) for rank in range(4)]
        errors = list(pool.map(lambda rank: calls[rank].explain(BROKEN, "bucket 3"), there))
    for rank, error in zip(there, errors, strict=True):
        assert type(error) is PeerFailed
        assert error.rank == min(gone, default=-1)
        where = rf"rank {rank} of 4, on \S+, at 'bucket 3': the exchange "
        start = where + r".* failed \(\[pair.cc:537\] Read error .* Connection reset.\)"
        with pytest.raises(GroupError, match=start + ".*" + said):
            raise error


def test_ranks_that_were_at_different_things_are_named_with_them() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        calls = [RollCall(store, rank, 2) for rank in range(2)]
        errors = list(pool.map(lambda rank: calls[rank].explain(BROKEN, f"bucket of model {rank}"), range(2)))
    for error in errors:
        assert "All ranks answer still: rank 0 at 'bucket of model 0', rank 1 at 'bucket of model 1'. " in str(error)
        assert "same calls in the same order" in str(error)


def test_a_deadline_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_WAIT_S", 0.0)
    error = RollCall(HashStore(), 0, 2).explain(RuntimeError("Timed out waiting 1000ms for recv operation"), "x")
    assert type(error) is PeerTimeout
    assert error.rank == 1


def test_without_the_store_rank_0_is_suspected() -> None:
    class Gone:
        def __init__(self) -> None:
            self.is_there = True

        def set(self, *_: object) -> None:
            if not self.is_there:
                raise RuntimeError("Broken pipe")

    store = Gone()
    call = RollCall(store, 1, 2)
    store.is_there = False
    error = call.explain(BROKEN, "x")
    assert error.rank == 0
    assert "the store in which the ranks meet is gone" in str(error)
