"""What is measured of GPUs, and what is said where there is none."""

from __future__ import annotations

import pytest
import torch
from tests.probing.test_probe import TINY

from samegrad.errors import DeviceUnavailable
from samegrad.probing.gpu import gpu

HAS_GPU = torch.cuda.is_available()


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_it_is_said() -> None:
    with pytest.raises(DeviceUnavailable, match="there is no GPU that torch finds"), gpu(TINY):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs CUDA")
def test_every_task_gives_a_figure() -> None:
    with gpu(TINY) as tasks:
        values = {(task.name, task.x): task.run() for task in tasks}
    assert all(spread.lowest > 0 for spread in values.values())
    assert values["gpu0: launch a kernel", None].median < values["gpu0: launch a kernel and wait for it", None].median
    assert values["gpu0: memory", None].median > values["gpu0: copy to the GPU, pinned", None].median
