"""Rates of arithmetic: how many operations a layer takes, and that torch's threads are put back."""

from __future__ import annotations

import torch
from tests.probing.test_probe import TINY
from torch import nn

from samegrad.probing.arithmetic import ADDITIONS, _operations, arithmetic


def test_operations_of_a_layer() -> None:
    linear, conv = nn.Linear(30, 7), nn.Conv2d(3, 5, 3, padding=1)
    assert _operations(linear, linear(torch.zeros(4, 30))) == 2 * 4 * 30 * 7
    assert _operations(conv, conv(torch.zeros(2, 3, 8, 8))) == 2 * 2 * 5 * 64 * 27


def test_layers_of_the_models_are_found_and_threads_put_back() -> None:
    before = torch.get_num_threads()
    with arithmetic(TINY) as tasks:
        by_name = {task.name: task for task in tasks}
        for name in ("LeNet, second convolution, batch 32", "MLP 784-512-256-10, first layer, batch 32", ADDITIONS):
            assert by_name[name].run().lowest > 0
        assert "product of 16 × 16, fp32, 1 thread" in by_name
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
