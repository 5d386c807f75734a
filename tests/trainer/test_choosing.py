"""A Trainer that is told no strategy takes the one that is predicted to be the fastest, alike on all ranks."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samegrad import Recipe, Topology, Trainer, launch
from samegrad.errors import ConfigurationError, GroupError, PeerFailed
from samegrad.executors.host_rates import measure_host
from samegrad.parallel.world import current_world
from samegrad.planner.choosing import Choice
from samegrad.simulator.shared_host import SharedHost, SharedWork
from samegrad.strategy import Strategy
from samegrad.trainer import choosing


def make_trainer(**options: object) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 2))
    return Trainer(model, F.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), Recipe(12, 6), **options)  # type: ignore[arg-type]


def replace_measuring(function: object) -> None:
    """In this worker, which ends with its test."""
    pytest.MonkeyPatch().setattr("samegrad.trainer.choosing.measure_host", function)


def with_cores(number: int) -> None:
    """In this worker, which ends with its test."""
    pytest.MonkeyPatch().setattr("samegrad.trainer.choosing.usable_cores", lambda: number)


def told(choice: Choice) -> list[str]:
    return [str(choice.strategy), choice.reason, str(choice.seconds)]


def train_on_three() -> tuple[list[list[str]], str, int]:
    """The choices of all ranks, the fingerprint after two steps, and how often the memory was measured."""
    counted = 0

    def counting(*arguments: object) -> SharedHost:
        nonlocal counted
        counted += 1
        return measure_host(*arguments)  # type: ignore[arg-type]

    replace_measuring(counting)
    with_cores(3)
    made = [make_trainer() for _ in range(2)]
    group = current_world().group
    choices = [record.decode().split("|") for record in group.gather("|".join(told(made[0].choice)).encode(), "x")]
    assert made[1].choice == made[0].choice
    for _ in range(2):
        made[0].step(torch.ones(12, 40), torch.ones(12, 2))
    return choices, made[0].fingerprint(), counted


@pytest.mark.dist
def test_all_ranks_choose_the_same_once_and_the_result_is_that_of_one() -> None:
    choices, fingerprint, counted = launch(train_on_three, devices="cpu:3")
    assert choices[0] == choices[1] == choices[2]
    assert "in the memory of this host, as measured" in choices[0][1]
    assert counted == 1
    alone = make_trainer()
    for _ in range(2):
        alone.step(torch.ones(12, 40), torch.ones(12, 2))
    assert alone.fingerprint() == fingerprint
    assert alone.choice.reason == "one rank exchanges nothing"


def choose_in_ways() -> list[str]:
    """What is chosen, and why: by slow meetings, on a topology, by owners, where something is asked for, and without
    memory to measure in."""
    found = []

    def say(**options: object) -> None:
        trainer = make_trainer(**options)
        found.append(f"{trainer.choice.strategy.algorithm}: {trainer.choice.reason}")
        choosing._choices.clear()

    def host(meeting_s: float) -> object:
        def measured(_: object, works: Collection[SharedWork], __: float) -> SharedHost:
            times = {each: each.nbytes * 1e-9 for work in works for each in work.together | work.alone}
            return SharedHost(4, 4, 0.0, meeting_s, times, times)

        return measured

    with_cores(4)
    replace_measuring(host(1.0))
    say()
    replace_measuring(host(1e-9))
    say()
    say(topology=Topology.preset("pcie-switch-4"))
    say(topology=Topology.preset("pcie-switch-4"), update="owner")
    say(update="owner")
    say(strategy="binomial-tree")

    def fail(*_: object) -> SharedHost:
        raise GroupError("no memory", 0)

    replace_measuring(fail)
    say()

    def fail_with_peer(*_: object) -> SharedHost:
        raise PeerFailed("gone", 1)

    with_cores(3)
    say()
    with_cores(4)
    replace_measuring(fail_with_peer)
    with pytest.raises(PeerFailed):
        make_trainer()
    with pytest.raises(ConfigurationError, match="pcie-switch-2 has 2 devices, but there are 4 ranks"):
        make_trainer(topology=Topology.preset("pcie-switch-2"))
    return found


@pytest.mark.dist
def test_what_is_chosen_follows_what_was_measured_or_given() -> None:
    slow_meetings, fast_meetings, *others = launch(choose_in_ways, devices="cpu:4")
    assert slow_meetings.startswith("one-shot: predicted to be the fastest of ")
    assert fast_meetings.startswith("sharded: predicted to be the fastest of ")
    assert others[0].startswith("sharded: predicted to be the fastest of ")
    assert " ways on pcie-switch-4: " in others[0]
    assert others[1] == others[0]
    assert others[2] == "sharded: each worker sums up the gradients of the parameters that it updates"
    assert others[3] == "binomial-tree: asked for"
    assert others[4].startswith("sharded: the usual one, since there is too little memory")
    assert others[5].startswith("sharded: the usual one where 4 ranks take turns on fewer cores")


@pytest.mark.dist
def test_exchange_seconds_are_known_for_what_shares_memory() -> None:
    def known() -> list[bool]:
        summing = make_trainer(update="owner").summing
        whole = make_trainer().summing
        return [
            choosing.exchange_seconds(summing, Strategy("sharded")) is not None,
            choosing.exchange_seconds(whole, Strategy("sharded")) is not None,
            choosing.exchange_seconds(whole, Strategy("native")) is None,
        ]

    assert launch(known, devices="cpu:2") == [True, True, True]
    assert choosing.exchange_seconds(make_trainer().summing, Strategy("sharded")) == 0.0
