"""Messages that lie still: who may read what and when, and what is said of a rank that does not come."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from samegrad.executors.host_messages import Outgoing, Receiver, Sender, Watch
from samegrad.memory import open_offered

RANKS = [2, 5]


def ends(watch: Watch, *values: list[float]) -> tuple[list[torch.Tensor], Sender, Receiver]:
    """Cells of rank 2 that hold `values`, listed for rank 5, and both ends of the messages."""
    outgoing = Outgoing(RANKS, {5: len(values)}, [4 * len(each) for each in values])
    cells = [outgoing.empty(len(each), torch.float32) for each in values]
    for cell, each in zip(cells, values, strict=True):
        cell.copy_(torch.tensor(each))
        outgoing.list_cell(5, cell)
    fd = open_offered(os.getpid(), outgoing.offer())
    receiver = Receiver(fd, RANKS, 5, 2, watch)
    os.close(fd)
    outgoing.close()
    return cells, outgoing.sender(5, watch), receiver


def patient(is_vain: Callable[[], bool] = lambda: False, timeout_s: float = 20.0) -> Watch:
    return Watch(timeout_s, is_vain, 0.0)


def test_cells_are_read_where_they_are_in_the_order_of_the_list() -> None:
    cells, _, receiver = ends(patient(), [1.0, 2.0], [], [3.0])
    read = [receiver.cell(torch.empty(len(cell))) for cell in cells]
    assert [each.tolist() for each in read] == [[1.0, 2.0], [], [3.0]]
    cells[0][1] = 7.0
    assert read[0].tolist() == [1.0, 7.0]
    assert all(cell.data_ptr() % 64 == 0 for cell in cells)
    with pytest.raises(StopIteration):
        receiver.cell(torch.empty(1))


def test_each_end_waits_for_the_other_message_by_message() -> None:
    watch = patient(timeout_s=0.0)
    _, sender, receiver = ends(watch, [1.0])
    for number in (1, 2, 3):
        with pytest.raises(RuntimeError, match="timed out after 0 s, waiting for the memory of rank 2"):
            receiver.wait()
        assert sender.offer() == number
        receiver.wait()
        with pytest.raises(RuntimeError, match="timed out after 0 s, waiting for the memory of rank 5"):
            sender.wait(number)
        receiver.has_read()
        sender.wait(number)
        sender.wait(1)


def test_several_messages_may_be_on_their_way() -> None:
    _, sender, receiver = ends(patient(timeout_s=0.0), [1.0])
    first, second = sender.offer(), sender.offer()
    receiver.wait()
    receiver.has_read()
    receiver.wait()
    sender.wait(first)
    with pytest.raises(RuntimeError, match="timed out"):
        sender.wait(second)


def test_a_wait_that_is_vain_is_given_up() -> None:
    answers = iter([False, False, True])
    _, _, receiver = ends(patient(lambda: next(answers)), [1.0])
    with pytest.raises(RuntimeError, match="given up, waiting for the memory of rank 2"):
        receiver.wait()
    assert not list(answers)


def test_what_came_before_the_end_is_taken() -> None:
    def is_vain() -> bool:
        sender.offer()
        return True

    _, sender, receiver = ends(patient(is_vain), [1.0])
    receiver.wait()
