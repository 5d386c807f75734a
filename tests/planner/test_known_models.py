"""The table of models against the models themselves."""

from __future__ import annotations

import pytest

from samegrad import models
from samegrad.errors import ConfigurationError
from samegrad.planner import KNOWN_MODELS, Workload


def test_the_names_are_those_of_the_models() -> None:
    assert list(KNOWN_MODELS) == list(models.MODELS)


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_names_and_sizes_are_those_of_the_model(name: str) -> None:
    known = Workload.known(name, 0.1, 0.2, 256)
    real = Workload.of(models.build(name), 0.1, 0.2, 256)
    assert [(each.name, each.nbytes) for each in known.gradients] == [
        (each.name, each.nbytes) for each in real.gradients
    ]
    assert known.gradients[-1].ready == 1


def test_large_layers_of_lenet_are_ready_early() -> None:
    ready = {each.name: each.ready for each in Workload.known("lenet", 0.1, 0.2, 256).gradients}
    assert ready["linear1.weight"] < 0.1 < ready["conv2.weight"] < ready["conv1.weight"] == 1


@pytest.mark.parametrize(("name", "hint"), [("resnet8", "did you mean 'resnet18'"), ("x", "The known ones are lenet")])
def test_an_unknown_name_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        Workload.known(name, 0.1, 0.2, 256)
