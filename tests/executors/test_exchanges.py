"""What exchanges of every executor refuse, and what the one of a single process does with all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.executors.conformance import DTYPES, bits, numbers
from tests.schedules.cuts import cuts_of
from torch import Tensor

from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout
from samegrad.executors import Group, SoloGroup
from samegrad.executors.cells import run_on_tensors
from samegrad.executors.device_staging import DeviceGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.schedules import ALGORITHMS, build, build_for
from samegrad.testing import run_ranks

SIZES = [(torch.float32, 10)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_process_plays_all_ranks(name: str) -> None:
    sizes = [(dtype, 5 + place) for place, dtype in enumerate(DTYPES)]
    for ranks in range(1, 10):
        for cut in cuts_of(ranks, ALGORITHMS[name].helpers)[:3]:
            schedule = build_for(name, cut)
            exchange = SoloGroup().prepare(schedule, sizes, "x")
            held: list[list[Tensor]] = []
            position = 0
            for nodes in cut.nodes:
                held.append([])
                for _ in nodes:
                    for flat, slot in enumerate(exchange.slot(position)):
                        slot.copy_(numbers(*sizes[flat], seed=10 * position + flat))
                    held[-1].append(exchange.slot(position)[1].clone())
                    position += 1
            run_on_tensors(schedule, held)
            assert bits(exchange.start().wait()[1]) == bits(held[0][0])


def misuse(group: Group) -> None:
    """On each rank: an exchange in the wrong order of calls; it is of use until it is closed."""
    exchange = group.prepare(build("sharded", group.size), SIZES, "my sum")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: exchange.start(), "my sum: the exchange was started already; wait for it first"),
        (lambda: exchange.slot(0), "my sum: the exchange is closed; prepare a new one"),
        (lambda: exchange.start(), "my sum: the exchange is closed"),
    ]
    exchange.slot(0)[0].fill_(1.0)
    work = exchange.start()
    with pytest.raises(ConfigurationError, match=calls[0][1]):
        calls[0][0]()
    assert work.wait()[0].tolist() == [float(group.size)] * 10
    with pytest.raises(ConfigurationError, match="my sum: the exchange was not started"):
        work.wait()
    with pytest.raises(IndexError):
        exchange.slot(1)
    exchange.close()
    exchange.close()
    for call, problem in calls[1:]:
        with pytest.raises(ConfigurationError, match=problem):
            call()


def test_the_order_of_calls_is_checked() -> None:
    misuse(SoloGroup())
    run_ranks(2, misuse)
    run_ranks(2, lambda group: misuse(DeviceGroup(group, torch.device("cpu"))))


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda group: group.prepare(build("ring", 3), SIZES, "x"), "ring is a schedule for 3 ranks, .* group has 2"),
        (lambda group: group.prepare(build("ring", 2, collective="all-gather"), SIZES, "x"), "for all-gather"),
        (lambda group: group.prepare(build("ring", 2), [(torch.float32, -1)], "x"), "-1 x float32 cannot be added up"),
        (lambda group: group.prepare(build("ring", 2), [(torch.bool, 4)], "x"), "4 x bool cannot be added up"),
        (lambda group: group.prepare(build("ring", 2), [(torch.uint16, 4)], "x"), "4 x uint16 cannot be added up"),
        (lambda group: group.prepare(build("ring", 2), SIZES, "x", [torch.empty(11)]), r"of 10 x float32; got \[11\]"),
        (lambda group: group.prepare(build("ring", 2), SIZES, "x", [torch.empty(2, 5)]), r"got \[2, 5\] torch.float32"),
        (lambda group: group.prepare(build("ring", 2), SIZES, "x", []), "got none"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(prepare: Callable[[Group], object], problem: str) -> None:
    def run(group: SharedMemoryGroup) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            prepare(group)
        group.gather(b"", "x")  # the group is still of use

    run_ranks(2, run)


@pytest.mark.parametrize("name", ["one-shot", "sharded", "ring", "binomial-tree"])
def test_a_rank_that_does_not_start_is_named(name: str) -> None:
    """In every algorithm the others wait for it, directly or not; they name it, and not each other."""

    def run(group: SharedMemoryGroup) -> None:
        exchange = group.prepare(build(name, 4), SIZES, "x")
        exchange.slot(0)[0].zero_()
        if group.rank == 2:
            return
        with pytest.raises((PeerFailed, PeerTimeout)) as caught:
            exchange.start().wait()
        assert caught.value.rank == 2

    run_ranks(4, run, timeout_s=5)


def test_more_exchanges_than_tickets_are_kept_may_be_started_first() -> None:
    def run(group: SharedMemoryGroup) -> None:
        exchanges = [group.prepare(build("ring", 3), SIZES, f"bucket {number}") for number in range(20)]
        for _ in range(3):
            for number, exchange in enumerate(exchanges):
                exchange.slot(0)[0].fill_(float(number))
                exchange.start()
            for number, exchange in enumerate(exchanges):
                assert exchange.wait()[0].tolist() == [3.0 * number] * 10

    run_ranks(3, run)


def keep_results(group: Group) -> None:
    """A result stays until the exchange starts again, though the next contributions are written already."""
    exchange = group.prepare(build("sharded", group.size), SIZES, "my sum")
    expected = 0.0
    for step in range(5):
        exchange.slot(0)[0].fill_(float(group.rank + step))
        (total,) = exchange.start().wait()
        expected = float(sum(rank + step for rank in range(group.size)))
        assert total.tolist() == [expected] * 10
        exchange.slot(0)[0].fill_(-1.0)
        group.gather(b"", "all have written")
        assert total.tolist() == [expected] * 10
    exchange.close()


def test_a_result_is_kept_while_the_next_contributions_are_written() -> None:
    run_ranks(3, keep_results)
