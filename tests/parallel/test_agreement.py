"""Whether the models of the ranks are the same is noticed, named and mended."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import samegrad as sg
from samegrad.errors import ConfigurationError, ModelsDiffer
from samegrad.parallel.agreement import AgreementCheck

pytestmark = pytest.mark.dist


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def spoil(net: nn.Module, name: str) -> None:
    """Changes one bit: the sign of a number."""
    net.state_dict()[name].view(-1)[-1] *= -1


def says(call: Callable[[], object]) -> tuple[str, str, int]:
    with pytest.raises(ModelsDiffer) as caught:
        call()
    return str(caught.value), caught.value.tensor, caught.value.rank


def compared() -> list[tuple[str, str, int]]:
    """On each of three ranks."""
    rank, found = sg.current_world().rank, []
    net = model()
    assert sg.check_agreement(net) == []
    if rank == 2:
        spoil(net, "2.weight")
    if rank > 0:
        spoil(net, "1.running_var")
    found.append(says(lambda: sg.check_agreement(net)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert sg.check_agreement(net, repair=True) == ["parameter 2.weight", "buffer 1.running_var"]
    assert [str(each.message)[:40] for each in warned] == ["now: the models of the ranks differ: par"] * (rank == 0)
    assert sg.check_agreement(net) == []
    assert sg.fingerprint(net) == sg.fingerprint(model())
    return found


def wrapped() -> list[tuple[str, str, int]]:
    """On each of three ranks: a loop of one's own, compared at each second step; rank 1 changes a weight after two."""
    rank = sg.current_world().rank
    net = sg.DistributedDataParallel(model(), check_every=2)
    X = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank))
    for step in range(3):
        net(X).square().mean().backward()
        if step == 1 and rank == 1:
            spoil(net, "0.weight")
    return [says(lambda: net(X).square().mean().backward())]


def trained() -> list[tuple[str, str, int]]:
    """On each of three ranks: a Trainer, and somebody who changes a weight on rank 0 after the fifth step."""
    rank = sg.current_world().rank

    def learn(repair: bool) -> nn.Module:
        net = model()

        def on_step(step: sg.StepReport) -> None:
            if step.steps_done == 5 and rank == 0:
                spoil(net, "0.weight")

        trainer = sg.Trainer(
            net,
            F.cross_entropy,
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            sg.Recipe(batch_size=24, shards=3),
            check_every=3,
            repair=repair,
        )
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(240, 4, generator=generator), torch.randint(2, (240,), generator=generator))
        trainer.fit(data, on_step=on_step)
        return net

    found = [says(lambda: learn(repair=False))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert sg.check_agreement(learn(repair=True)) == []
    return found


def everything() -> list[tuple[str, str, int]]:
    return [*compared(), *wrapped(), *trained()]


def test_a_model_that_differs_is_named_and_mended() -> None:
    plain, own_loop, trainer = sg.launch(everything, devices="cpu:3", timeout_s=60)
    assert plain[1:] == ("parameter 2.weight", 2)
    assert plain[0].startswith(
        "now: the models of the ranks differ: parameter 2.weight of rank 2 is not that of rank 0, and 1 more differ. "
    )
    assert own_loop[1:] == ("parameter 0.weight", 1)
    assert own_loop[0].startswith("after step 4: the models of the ranks differ: parameter 0.weight of rank 1 is not")
    assert trainer[1:] == ("parameter 0.weight", 1)
    assert trainer[0].startswith("after step 6: ")
    assert "parameter 0.weight of ranks 1, 2 is not that of rank 0" in trainer[0]


def test_alone_there_is_nothing_to_compare() -> None:
    assert sg.check_agreement(model(), repair=True) == []


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_an_interval_is_a_number_of_steps(every: object) -> None:
    with pytest.raises(ConfigurationError, match=r"check_every must be a number of steps, at least 1; got "):
        AgreementCheck(every)  # type: ignore[arg-type]
