"""The server's state machine: random interleavings, drops and duplicates against sums computed word by word."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from tests.kvstore.test_contributions import node_value, root_value
from torch import Tensor

from samegrad.kvstore.consistency import AHEAD, Consistency
from samegrad.kvstore.job import Job
from samegrad.kvstore.messages import (
    Accepted,
    Barrier,
    Bye,
    Declare,
    Declared,
    Describe,
    Described,
    Failed,
    Fetch,
    Fill,
    Message,
    Passed,
    Ping,
    Pull,
    Push,
    Refused,
    Remove,
    Restore,
    Supply,
    Take,
    Taken,
    Values,
)
from samegrad.kvstore.state import Reply, ServerState
from samegrad.kvstore.updaters import Updater
from samegrad.kvstore.values import cut_payload
from samegrad.shards import Node, shares, subtrees

NUMEL = 5


def declare(state: ServerState, key: str = "w", shape: Sequence[int] = (NUMEL,), dtype: str = "float32") -> list[int]:
    """All workers declare a key of one slice, and worker 0 fills it with zeros; the numbers of the slices."""
    numbers: list[int] = []
    for worker in range(state.job.workers):
        (reply,) = state.handle(worker, Declare(1, key, dtype, list(shape), [[0, NUMEL]]))
        assert isinstance(reply.message, Declared), reply
        numbers = reply.message.slices
    (reply,) = state.handle(0, Fill(2, numbers), [torch.zeros(NUMEL)])
    assert reply.message == Accepted(2)
    return numbers


def push(step: int, node: Node, pull: bool = False, request: int = 0) -> Push:
    return Push(request, [0], [step], node.level, node.number, pull, 0.0)


def gradient(worker: int, step: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(1000 * step + worker))


def refusal(replies: Sequence[Reply]) -> str:
    (reply,) = replies
    assert isinstance(reply.message, Refused), reply
    return f"{reply.message.error}: {reply.message.text}"


# Synchronous


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("leaves", [4, 7, 8])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_pulled_is_the_sum_of_the_step_whatever_comes_when_and_how_often(
    workers: int, leaves: int, seed: int
) -> None:
    """Each worker sends its messages in order; they get lost (and are sent again), or come several times."""
    random_, steps = random.Random(f"{workers} {leaves} {seed}"), 5
    state = ServerState(Job(workers, leaves))
    declare(state)
    cut = shares(leaves, workers)
    expected = {step: root_value([gradient(leaf, step) for leaf in range(leaves)]) for step in range(1, steps + 1)} | {
        0: torch.zeros(NUMEL)
    }
    todo: list[list[tuple[Message, Node | None, int]]] = []
    for worker in range(workers):
        mine: list[tuple[Message, Node | None, int]] = []
        for step in range(1, steps + 1):
            mine += [(push(step, node, request=step), node, step) for node in subtrees(cut[worker], leaves)]
            mine.append((Pull(100 + step, [0], [step], 0.0), None, step))
        todo.append(mine)
    at, got, unheard = [0] * workers, [set[int]() for _ in range(workers)], [0] * workers
    while any(place < len(mine) for place, mine in zip(at, todo, strict=True)):
        worker = random_.choice([w for w in range(workers) if at[w] < len(todo[w])])
        message, node, step = todo[worker][at[worker]]
        is_pull = node is None
        if is_pull and step in got[worker]:
            at[worker] += 1
            continue
        if is_pull and unheard[worker] == step:  # asked already, waits for the others
            continue
        for _ in range(1 if is_pull else random_.choice([0, 1, 1, 1, 2])):  # 0: lost; the next turn sends it again
            values = []
            if node is not None:
                value = node_value([gradient(leaf, step) for leaf in range(leaves)], node)
                assert value is not None
                values = [value]
            for reply in state.handle(worker, message, values):
                if isinstance(reply.message, Values):
                    number = reply.message.request - 100
                    assert torch.equal(reply.values[0], expected[number])
                    got[reply.worker].add(number)
                else:
                    assert reply.message == Accepted(step)
                    at[worker] = max(at[worker], todo[worker].index((message, node, step)) + 1)
        if is_pull:
            unheard[worker] = step
        if random_.random() < 0.2 and step > 1:  # an old one comes late
            old = next(iter(subtrees(cut[worker], leaves)))
            (reply,) = state.handle(worker, push(step - 1, old, request=7), [torch.full((NUMEL,), 1e9)])
            assert reply.message == Accepted(7)
    assert all(numbers == set(range(1, steps + 1)) for numbers in got)


def test_a_push_that_pulls_is_answered_when_the_sum_is_complete() -> None:
    state = ServerState(Job(2))
    declare(state)
    assert state.handle(1, push(1, Node(0, 1), True, 5), [torch.ones(NUMEL)]) == []
    replies = state.handle(0, push(1, Node(0, 0), True, 6), [torch.ones(NUMEL)])
    assert [(reply.worker, reply.message) for reply in replies] == [(1, Values(5)), (0, Values(6))]
    assert all(reply.values[0].tolist() == [2.0] * NUMEL for reply in replies)


def test_the_first_value_can_be_pulled_by_all() -> None:
    state = ServerState(Job(2))
    state.handle(1, Declare(1, "w", "float32", [NUMEL], [[0, NUMEL]]))
    assert state.handle(1, Pull(2, [0], [0], 0.0)) == []
    state.handle(0, Declare(1, "w", "float32", [NUMEL], [[0, NUMEL]]))
    replies = state.handle(0, Fill(3, [0]), [torch.ones(NUMEL)])
    assert [(reply.worker, reply.message) for reply in replies] == [(0, Accepted(3)), (1, Values(2))]


def test_a_value_that_was_given_out_is_not_written_to() -> None:
    for updater in (None, Updater("sum"), Updater("Adam")):
        state = ServerState(Job(1, updater=updater))
        declare(state)
        given = []
        for step in range(1, 4):
            (reply,) = state.handle(0, push(step, Node(0, 0), True), [torch.ones(NUMEL)])
            given.append((reply.values[0], reply.values[0].clone()))
        assert all(torch.equal(value, copy) for value, copy in given)
        assert updater is None or len({copy.tolist()[0] for _, copy in given}) == 3


def test_the_optimizer_steps_once_for_each_step() -> None:
    state = ServerState(Job(3, updater=Updater("SGD", {"lr": 0.5, "momentum": 0.9})))
    declare(state)
    parameter = torch.nn.Parameter(torch.zeros(NUMEL))
    optimizer = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    for step in range(1, 5):
        gradients = [gradient(worker, step) for worker in range(3)]
        for worker in (2, 0, 1):
            state.handle(worker, push(step, Node(0, worker)), [gradients[worker].clone()])
        parameter.grad = root_value(gradients)
        optimizer.step()
    (reply,) = state.handle(0, Pull(1, [0], [4], 0.0))
    assert torch.equal(reply.values[0], parameter.detach())


def test_a_worker_may_run_ahead_a_little() -> None:
    state = ServerState(Job(2))
    declare(state)
    for step in range(1, AHEAD + 1):
        assert state.handle(0, push(step, Node(0, 0)), [torch.ones(NUMEL)])[0].message == Accepted(0)
    assert "at most" in refusal(state.handle(0, push(AHEAD + 1, Node(0, 0)), [torch.ones(NUMEL)]))
    assert state.status()["pending"] == AHEAD


# Uneven ends: what others wait for when workers have left


def test_one_push_more_than_the_others_is_complete_when_they_have_left() -> None:
    state = ServerState(Job(3))
    declare(state)
    for worker in range(3):
        state.handle(worker, push(1, Node(0, worker)), [gradient(worker, 1)])
    assert state.handle(2, push(2, Node(0, 2), True, 9), [gradient(2, 2)]) == []
    assert state.handle(0, Bye()) == []
    (reply,) = state.handle(1, Bye())
    assert (reply.worker, reply.message) == (2, Values(9))
    assert torch.equal(reply.values[0], gradient(2, 2))
    state.handle(2, Bye())
    assert state.is_over
    assert state.failure is None


def test_what_a_worker_pushed_before_it_left_counts() -> None:
    state = ServerState(Job(2, 5))
    declare(state)
    cut, values = shares(5, 2), [gradient(leaf, 1) for leaf in range(5)]
    replies: list[Reply] = []
    for worker in (0, 1):
        for node in subtrees(cut[worker], 5):
            value = node_value(values, node)
            assert value is not None
            state.handle(worker, push(1, node), [value])
    state.handle(0, Bye())
    absent = frozenset(cut[0])
    for node in subtrees(cut[1], 5):
        value = node_value(values, node, absent)
        assert value is not None
        replies = state.handle(1, push(2, node), [value])
    assert replies[-1].message == Accepted(0)
    (reply,) = state.handle(1, Pull(3, [0], [2], 0.0))
    assert torch.equal(reply.values[0], root_value(values, absent))


def test_a_barrier_waits_for_who_is_there() -> None:
    state = ServerState(Job(3))
    assert state.handle(0, Barrier(4)) == []
    assert state.handle(1, Barrier(5)) == []
    replies = state.handle(2, Bye())
    assert [(reply.worker, reply.message) for reply in replies] == [(0, Passed(4)), (1, Passed(5))]
    assert state.handle(0, Barrier(6)) == []


def test_a_worker_may_come_to_several_barriers_before_the_others() -> None:
    state = ServerState(Job(2))
    for request in (1, 2, 3):
        assert state.handle(0, Barrier(request)) == []
    for request in (1, 2):
        replies = state.handle(1, Barrier(10 + request))
        assert [reply.message for reply in replies] == [Passed(request), Passed(10 + request)]
    assert state.handle(1, Bye()) == [Reply(0, Passed(3))]


def test_a_counter_gives_each_number_once() -> None:
    state = ServerState(Job(2))
    asked = [(0, "a"), (1, "a"), (1, "b"), (0, "a")]
    found = [state.handle(worker, Take(3, name))[0] for worker, name in asked]
    assert [reply.worker for reply in found] == [0, 1, 1, 0]
    assert [reply.message for reply in found] == [Taken(3, number) for number in (0, 1, 0, 2)]


# Stale and asynchronous


def test_in_stale_a_barrier_lets_those_go_on_who_wait_for_who_has_come() -> None:
    state = ServerState(Job(2, None, Consistency("stale", 0), Updater("sum")))
    declare(state)
    for step in (1, 2):
        state.handle(0, push(step, Node(0, 0)), [torch.ones(NUMEL)])
    assert state.handle(0, Pull(3, [0], [2], 0.0)) == []
    (reply,) = state.handle(1, Barrier(4, levels=True))
    assert (reply.worker, reply.message) == (0, Values(3))
    passed = state.handle(0, Barrier(5, levels=True))
    assert [each.message for each in passed] == [Passed(5), Passed(4)]
    (reply,) = state.handle(0, Pull(6, [0], [2], 0.0))  # worker 1 counts from here as well
    assert reply.message == Values(6)
    state.handle(0, push(3, Node(0, 0)), [torch.ones(NUMEL)])
    assert state.handle(0, Pull(7, [0], [3], 0.0)) == []


@pytest.mark.parametrize(("mode", "staleness"), [("stale", 0), ("stale", 2), ("async", 0)])
@pytest.mark.parametrize("seed", range(4))
def test_each_push_is_applied_once_and_readers_wait_as_the_mode_says(mode: str, staleness: int, seed: int) -> None:
    workers, steps, random_ = 3, 6, random.Random(f"{mode} {staleness} {seed}")
    consistency = Consistency(mode, staleness)  # type: ignore[arg-type]
    state = ServerState(Job(workers, consistency=consistency, updater=Updater("sum")))
    declare(state)
    clocks, waits, applied = [0] * workers, [False] * workers, 0
    while any(clock < steps for clock in clocks) or any(waits):
        able = [worker for worker in range(workers) if not waits[worker] and clocks[worker] < steps]
        assert able
        worker = random_.choice(able)
        clocks[worker] += 1
        applied, waits[worker] = applied + 1, True
        message = push(clocks[worker], Node(0, worker), True, worker)
        for _ in range(random_.choice([1, 1, 2])):
            for reply in state.handle(worker, message, [torch.ones(NUMEL)]):
                gap = clocks[reply.worker] - min(clocks)
                assert mode == "async" or gap <= staleness
                assert reply.values[0].tolist() == [float(applied)] * NUMEL
                waits[reply.worker] = False
        assert mode != "async" or not waits[worker]
    assert applied == workers * steps


# What is refused


def test_workers_that_disagree_on_a_key_all_hear_of_it() -> None:
    state = ServerState(Job(3))
    state.handle(0, Declare(1, "w", "float32", [2, 3], [[0, 6]]))
    state.handle(1, Declare(1, "w", "float32", [2, 3], [[0, 6]]))
    replies = state.handle(2, Declare(8, "w", "float32", [3, 2], [[0, 6]]))
    text = "worker 0 has float32 of shape [2, 3] in 1 slices here, worker 2 has float32 of shape [3, 2]"
    assert [reply.worker for reply in replies] == [0, 1, 2]
    for reply in replies:
        assert isinstance(reply.message, Failed | Refused)
        assert text in reply.message.text
    assert state.is_over
    assert isinstance(state.handle(0, Ping())[0].message, Failed)


@pytest.mark.parametrize(
    ("worker", "message", "values", "text"),
    [
        (0, Pull(1, [7], [0], 0.0), [], "UnknownKey: there is no slice 7 on this server, which has 1"),
        (0, Push(1, [0, 9], [1, 1], 0, 0, False, 0.0), [], "UnknownKey: there is no slice 9"),
        (0, Push(1, [0], [1], 3, 0, False, 0.0), [torch.zeros(NUMEL)], "is not in the tree over 2 shards"),
        (0, Push(1, [0], [2], 0, 0, False, 0.0), [torch.zeros(NUMEL)], "but its push 1 did not"),
        (0, Push(1, [0], [0], 0, 0, False, 0.0), [torch.zeros(NUMEL)], "push 0 came before its first value"),
        (1, Declare(1, "w", "float32", [NUMEL], [[0, NUMEL]]), [], "was initialised already by worker 1"),
        (1, Declare(1, "v", "bool", [3], [[0, 3]]), [], "dtype 'bool' cannot be added up"),
        (1, Declare(1, "v", "int8", [3], [[2, 4]]), [], "is no slice of 3 elements"),
        (1, Declare(1, "v", "int8", [3], [[1]]), [], "is no slice of 3 elements"),
        (0, Declare(1, "v", "float64", [100], [[0, 100]]), [], "800 bytes on this server are more than the server may"),
        (1, Fill(1, [0]), [torch.zeros(NUMEL)], "its first value comes from worker 0, once"),
        (0, Fill(1, [0]), [torch.zeros(NUMEL)], "its first value comes from worker 0, once"),
        (0, Accepted(1), [], "a server takes no Accepted from a worker"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    worker: int, message: Message, values: list[Tensor], text: str
) -> None:
    state = ServerState(Job(2), memory=100)
    declare(state)
    before, replies = state.status(), list[Reply]()
    assert text in refusal(state.handle(worker, message, values))
    assert state.status() == before
    for other in range(2):
        replies = state.handle(other, push(1, Node(0, other), True), [torch.ones(NUMEL)])
    assert [reply.values[0].tolist() for reply in replies] == [[2.0] * NUMEL] * 2


def test_a_clock_that_runs_back_is_refused() -> None:
    state = ServerState(Job(1))
    declare(state)
    state.handle(0, push(1, Node(0, 0)), [torch.ones(NUMEL)])
    state.handle(0, Pull(1, [0], [1], 0.0))
    assert "clocks never run back" in refusal(state.handle(0, Pull(2, [0], [0], 0.0)))


def test_who_has_left_is_refused() -> None:
    state = ServerState(Job(2))
    declare(state)
    state.handle(1, Bye())
    assert "worker 1 has left the store" in refusal(state.handle(1, push(1, Node(0, 1)), [torch.ones(NUMEL)]))


def test_a_job_fails_once_and_all_others_hear_of_it() -> None:
    state = ServerState(Job(4))
    state.handle(3, Bye())
    replies = state.fail(1, "worker 1 was lost")
    assert [(reply.worker, reply.message) for reply in replies] == [
        (worker, Failed(1, "worker 1 was lost")) for worker in (0, 2)
    ]
    assert state.fail(2, "too late") == []


def test_a_worker_says_who_has_failed() -> None:
    state = ServerState(Job(3))
    replies = state.handle(1, Failed(-1, "ZeroDivisionError: x"))
    assert replies == [Reply(to, Failed(1, "worker 1 has failed: ZeroDivisionError: x")) for to in (0, 2)]
    state = ServerState(Job(3))
    assert state.handle(1, Failed(2, "worker 2 was lost")) == [
        Reply(to, Failed(2, "worker 2 was lost")) for to in (0, 1)
    ]


def test_a_payload_is_cut_into_values_in_place() -> None:
    kinds = [(torch.float32, 3), (torch.int8, 5), (torch.complex64, 1), (torch.float32, 0)]
    payload = torch.arange(16 + 8 + 8, dtype=torch.uint8)
    values = cut_payload(payload, kinds)
    assert [(value.dtype, value.numel()) for value in values] == kinds
    assert values[1].tolist() == [16, 17, 18, 19, 20]
    assert values[0].data_ptr() == payload.data_ptr()
    uniform = cut_payload(payload, [(torch.float32, 2), (torch.float32, 6)])
    assert [value.data_ptr() - payload.data_ptr() for value in uniform] == [0, 8]


# Keeping


def test_a_state_is_taken_up_before_any_push_and_only_as_it_was_given() -> None:
    state = ServerState(Job(1, updater=Updater("SGD", {"lr": 0.1, "momentum": 0.9})))
    declare(state)
    state.handle(0, push(1, Node(0, 0)), [torch.ones(NUMEL)])
    (reply,) = state.handle(0, Describe(1, [0]))
    assert isinstance(reply.message, Described)
    kept = reply.message.state
    name = "updater.state.momentum_buffer"
    assert kept["tensors"] == {name: ["float32", False]}
    (reply,) = state.handle(0, Fetch(2, [0], name))
    assert [value.tolist() for value in reply.values] == [[1.0] * NUMEL]
    assert "keeps no 'x'" in refusal(state.handle(0, Fetch(2, [0], "x")))
    assert "before any push" in refusal(state.handle(0, Restore(3, [0], kept)))
    fresh = ServerState(state.job)
    declare(fresh)
    assert "no 'x' is awaited" in refusal(fresh.handle(0, Supply(4, [0], "x"), [torch.zeros(1)]))
    for wrong in (
        {},
        {**kept, "clocks": [1, 1]},
        {**kept, "clocks": [-1]},
        {**kept, "tensors": {name: ["object", False]}},
        {**kept, "tensors": 3},
    ):
        assert "expected" in refusal(fresh.handle(0, Restore(3, [0], wrong))) or not wrong
    assert "no state" not in str(fresh.handle(0, Restore(3, [0], kept)))
    assert fresh.expected(Supply(4, [0], name)) == [(torch.float32, NUMEL)]
    (reply,) = fresh.handle(0, Supply(4, [0], name), [torch.ones(NUMEL)])
    assert reply.message == Accepted(4)
    (reply,) = fresh.handle(0, Describe(1, [0]))
    assert isinstance(reply.message, Described)
    assert reply.message.state == kept


# Removing


def test_a_key_is_gone_when_nobody_needs_it_whoever_leaves() -> None:
    state = ServerState(Job(3))
    declare(state)
    before = state.status()["bytes"]
    assert before == NUMEL * 4
    assert state.handle(0, Remove(7, "w")) == []
    assert "there is no key 'v' of worker 0" in refusal(state.handle(0, Remove(7, "v")))
    state.handle(2, Bye())
    (first, second) = state.handle(1, Remove(8, "w"))
    assert {first.worker: first.message, second.worker: second.message} == {0: Accepted(7), 1: Accepted(8)}
    assert (state.status()["bytes"], state.status()["keys"], state.status()["slices"]) == (0, 0, 0)
    assert "there is no slice 0" in refusal(state.handle(0, Pull(9, [0], [0], 0.0)))
    (reply,) = state.handle(0, Declare(1, "w", "float32", [NUMEL], [[0, NUMEL]]))
    assert isinstance(reply.message, Declared)
    assert reply.message.slices == [1]  # a number is never given twice


def test_the_last_one_to_leave_lets_a_key_go() -> None:
    state = ServerState(Job(2))
    declare(state)
    assert state.handle(0, Remove(7, "w")) == []
    assert [(reply.worker, reply.message) for reply in state.handle(1, Bye())] == [(0, Accepted(7))]
