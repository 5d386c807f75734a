"""What ranks do differently is the same clear error on all of them, in time."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samegrad as sg
from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout, SamegradError

pytestmark = pytest.mark.dist

Faulty = Callable[[int], object]
"""What a rank does."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def wrap(module: nn.Module, **options: Any) -> Any:
    return sg.DistributedDataParallel(module, **{"bucket_cap_mb": 1e-5, **options})


def learn(wrapped: Any) -> None:
    wrapped(torch.ones(2, 4)).mean().backward()


def other_shape(rank: int) -> None:
    wrap(nn.Linear(4, 2 + rank))


def other_name(rank: int) -> None:
    wrap(nn.ModuleDict({f"layer{rank}": nn.Linear(4, 2)}))


def other_order(rank: int) -> None:
    module = nn.Module()
    for name in "ab"[:: 1 - 2 * rank]:
        module.add_module(name, nn.Linear(4, 2))
    wrap(module)


def other_dtype(rank: int) -> None:
    wrap(nn.Linear(4, 2).to(torch.float64 if rank else torch.float32))


def other_buckets(rank: int) -> None:
    wrap(model(), bucket_cap_mb=1 + rank)


def frozen_on_one_rank(rank: int) -> None:
    module = model()
    wrapped = wrap(module)
    module[2].bias.requires_grad_(rank == 0)
    learn(wrapped)


def one_more_forward(rank: int) -> None:
    wrapped = wrap(model())
    losses = [wrapped(torch.ones(2, 4)).mean() for _ in range(1 + rank)]
    losses[-1].backward()


def no_backward_in_step_2(rank: int) -> None:
    wrapped = wrap(model())
    for step in range(4):
        loss = wrapped(torch.ones(2, 4)).mean()
        if (rank, step) != (1, 2):
            loss.backward()


def eval_on_one_rank(rank: int) -> None:
    wrapped = wrap(model())
    wrapped.train(rank == 0)
    learn(wrapped)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        raise KeyError("out of memory, say")


class Breakable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = model()
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.parts[:2](x)
        return self.parts[2](Failing.apply(x) if self.fails else x)  # type: ignore[no-any-return, no-untyped-call]


def backward_breaks_off(rank: int) -> None:
    module = Breakable()
    wrapped = wrap(module)
    learn(wrapped)
    module.fails = rank == 1
    if rank == 1:
        with pytest.raises(KeyError):
            learn(wrapped)
    learn(wrapped)


class First(nn.Linear):
    pass


class Second(nn.Linear):
    pass


def backwards_of_two_models_in_another_order(rank: int) -> None:
    first, second = wrap(First(4, 2)), wrap(Second(4, 2))
    losses = [each(torch.ones(2, 4)).mean() for each in (first, second)]
    for loss in losses[:: 1 - 2 * rank]:
        loss.backward()


def one_wrapper_too_many(rank: int) -> None:
    first, second = wrap(First(4, 2)), wrap(First(4, 2))
    learn(second if rank else first)


EXPECTED: dict[Faulty, tuple[str, list[str]]] = {
    other_shape: ("ConfigurationError", ["weight [2, 4]", "weight [3, 4]", "rank 0", "rank 1"]),
    other_name: ("ConfigurationError", ["layer0.weight", "layer1.weight"]),
    other_order: ("ConfigurationError", ["parameter a.weight", "parameter b.weight"]),
    other_dtype: ("ConfigurationError", ["float32", "float64"]),
    other_buckets: ("ConfigurationError", ["bucket_bytes", "1048576", "2097152"]),
    frozen_on_one_rank: ("ConfigurationError", ["2.bias", "rank 1 has nothing", "what is trained"]),
    one_more_forward: ("TrainingError", ["rank 0 has called forward 1 times", "rank 1 2 times"]),
    no_backward_in_step_2: ("TrainingError", ["backward 2", "rank 0 has called forward 3 times", "rank 1 4 times"]),
    eval_on_one_rank: ("TrainingError", ["training mode on rank 0", "eval mode on rank 1"]),
    backwards_of_two_models_in_another_order: (
        "CallMismatch",
        ["rank 0 is at 'backward 0 of First: ", "rank 1 is at 'backward 0 of Second: ", "same calls in the same order"],
    ),
    one_wrapper_too_many: ("CallMismatch", ["backward 0 of First 2: ", "backward 0 of First 3: "]),
    backward_breaks_off: ("TrainingError", ["backward 1", "on rank 1, backward was broken off"]),
}


def run_all() -> dict[str, list[str]]:
    world = sg.current_world()
    found = {}
    for faulty in EXPECTED:
        try:
            faulty(world.rank)
            answer = "nothing was raised"
        except SamegradError as error:
            answer = f"{type(error).__name__}: {error}"
        found[faulty.__name__] = [record.decode() for record in world.group.gather(answer.encode(), faulty.__name__)]
    return found


@functools.cache
def results() -> dict[str, list[str]]:
    found: dict[str, list[str]] = sg.launch(run_all, devices="cpu:2", timeout_s=20)
    return found


@pytest.mark.parametrize("faulty", EXPECTED, ids=lambda faulty: faulty.__name__)
def test_ranks_that_differ(faulty: Faulty) -> None:
    answers = results()[faulty.__name__]
    kind, words = EXPECTED[faulty]
    assert answers[0] == answers[1]
    assert answers[0].startswith(kind)
    assert not [word for word in words if word not in answers[0]], answers[0]


def leave_in_the_middle() -> None:
    wrapped = wrap(model())
    for step in range(3):
        if (sg.current_world().rank, step) == (1, 1):
            return
        learn(wrapped)


def test_a_rank_leaves() -> None:
    with pytest.raises(PeerFailed, match=r"rank 0 waits for rank 1 at .*Sequential.* rank 1 has ended"):
        sg.launch(leave_in_the_middle, devices="cpu:2", timeout_s=20)


def stop_in_the_middle() -> None:
    wrapped = wrap(model())
    learn(wrapped)
    if sg.current_world().rank == 1:
        time.sleep(30)
    learn(wrapped)


def test_a_rank_stops() -> None:
    with pytest.raises(
        PeerTimeout, match=r"rank 0 waited 2 s at 'backward 1 of Sequential: bucket 0 from 2.bias on'.* rank 1 was last"
    ):
        sg.launch(stop_in_the_middle, devices="cpu:2", timeout_s=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"process_group": "all"}, "process_group is not supported"),
        ({"mixed_precision": torch.float16}, "mixed_precision is not supported: .* under torch.autocast"),
        ({"delay_all_reduce_named_params": [], "param_to_hook_all_reduce": None}, "delay_all_reduce_named_params is"),
        ({"param_to_hook_all_reduce": nn.Parameter(torch.ones(1))}, "param_to_hook_all_reduce is not supported"),
        ({"device_mesh": "all"}, "device_mesh is not supported: all ranks"),
        ({"bucket_cap_mb_list": [1, 25]}, "bucket_cap_mb_list is not supported: .* Give bucket_cap_mb"),
        ({"device_ids": [0, 1]}, "a rank has one"),
        ({"device_ids": [0]}, r"device_ids is \[0\], but this rank computes on cpu"),
        ({"bucket_cap_mb": 0}, "more than 0"),
        ({"strategy": "none"}, "there is no 'none'"),
    ],
)
def test_arguments_that_cannot_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        wrap(model(), **options)


def test_every_argument_of_torch_is_accepted_or_refused_by_name() -> None:
    """Also those of newer versions: whoever sees this fail decides which."""
    given = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    defaults = {name: each.default for name, each in given.items() if name not in ("self", "module")}
    sg.DistributedDataParallel(model(), **defaults)
    with pytest.raises(TypeError, match="unexpected keyword argument 'buckets'"):
        wrap(model(), buckets=3)


def test_models_that_cannot_be_wrapped() -> None:
    with pytest.raises(ConfigurationError, match=r"expected an nn\.Module"):
        wrap("model")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has no shape yet"):
        wrap(nn.LazyLinear(2))
    with pytest.raises(ConfigurationError, match="weight is on meta, but this rank computes on cpu"):
        wrap(nn.Linear(2, 2, device="meta"))
    wider = nn.Linear(2, 2, dtype=torch.bfloat16)
    wider.bias.grad_dtype = torch.float32
    with pytest.raises(ConfigurationError, match=r"gradients of bias are to be torch\.float32"):
        wrap(wider)
    ignoring = model()
    vars(ignoring)["_ddp_params_and_buffers_to_ignore"] = ["0.bias"]
    with pytest.raises(ConfigurationError, match=r"0\.bias are to be ignored"):
        wrap(ignoring)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_that_cannot_be(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="finite number of at least 0"), wrap(model()).weighted(weight):
        pass


def test_join_averages_over_who_contributes() -> None:
    with pytest.raises(ConfigurationError, match="leave out"), wrap(model()).join(divide_by_initial_world_size=True):
        pass


def test_communication_hooks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="hooks are not supported"):
        wrap(model()).register_comm_hook(None, print)
