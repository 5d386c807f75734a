"""The sum of shard gradients has the same bits for any number of ranks, and those of the obvious way to compute it.

The obvious way: the gradient of each shard alone, by `torch.autograd.grad`, added by `local_tree_sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from samegrad.errors import TrainingError
from samegrad.executors import Group, SoloGroup, local_tree_sum
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.gradients import GradientSum, GradientTwice
from samegrad.parallel.parameters import owners
from samegrad.shards import Node, leaves_of, shares, subtrees
from samegrad.testing import run_ranks

LEAVES = 8
Loss = Callable[[nn.Module, int, int], Tensor]
"""Takes the model, the step and the shard; returns the weighted loss of the shard."""
Gradients = list[bytes | None]


def bits(gradient: Tensor | None) -> bytes | None:
    return None if gradient is None else bytes(gradient.contiguous().reshape(-1).view(torch.uint8).tolist())


def inputs(step: int, shard: int, *shape: int) -> Tensor:
    """Of mixed size, so that another order of additions gives other bits."""
    generator = torch.Generator().manual_seed(100 * step + shard)
    return torch.randn(shape, generator=generator) * 10.0 ** (shard % 5 - 2)


def compute(
    group: Group,
    cut: Sequence[range],
    model: nn.Module,
    loss: Loss,
    steps: int = 1,
    absent: Sequence[int] = (),
    own: Sequence[int] | None = None,
    twice: list[int] | None = None,
) -> list[Gradients]:
    """The gradients after each step as one rank sees them, computed by `GradientSum` the way that a step does it.

    twice: collects the step whenever the rank's shards had to be run again.
    """
    leaves = cut[-1].stop
    gradients = GradientSum(list(model.named_parameters()), group, cut, leaves, own)
    present = {node for part in cut for node in subtrees(part, leaves) if set(leaves_of(node, leaves)) - set(absent)}
    found = []
    for step in range(steps):
        for _ in range(2):
            try:
                gradients.begin()
                for shard in cut[group.rank]:
                    gradients.enter(shard)
                    if shard not in absent:
                        torch.autograd.backward(loss(model, step, shard))
                    gradients.leave(shard, shard in absent)
                gradients.finish(group.gather(gradients.record(), "x"), present)
                break
            except GradientTwice:
                assert twice is not None
                twice.append(step)
        found.append([bits(parameter.grad) for parameter in model.parameters()])
    return found


def expected(
    model: nn.Module, loss: Loss, leaves: int = LEAVES, steps: int = 1, absent: Sequence[int] = ()
) -> list[Gradients]:
    """The same in the obvious way."""
    found = []
    for step in range(steps):
        parts: list[list[tuple[Node, Tensor]]] = [[] for _ in model.parameters()]
        for shard in range(leaves):
            if shard not in absent:
                value = loss(model, step, shard)
                trained = [place for place, parameter in enumerate(model.parameters()) if parameter.requires_grad]
                wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
                for place, gradient in zip(trained, torch.autograd.grad(value, wanted, allow_unused=True), strict=True):
                    if gradient is not None:
                        parts[place].append((Node(0, shard), gradient))
        found.append([bits(local_tree_sum(part, leaves)) if part else None for part in parts])
    return found


def on_ranks(
    cut: Sequence[range],
    make: Callable[[], nn.Module],
    loss: Loss,
    steps: int = 1,
    absent: Sequence[int] = (),
    twice: list[int] | None = None,
) -> list[list[Gradients]]:
    """What each rank of `cut` finds."""
    return run_ranks(len(cut), lambda group: compute(group, cut, make(), loss, steps, absent, twice=twice))


def check(
    make: Callable[[], nn.Module], loss: Loss, steps: int = 1, absent: Sequence[int] = (), leaves: int = LEAVES
) -> list[Gradients]:
    """Compares several numbers of ranks with the obvious way; returns the gradients."""
    wanted = expected(make(), loss, leaves, steps, absent)
    assert compute(SoloGroup(), [range(leaves)], make(), loss, steps, absent) == wanted
    for ranks in (2, 3, 5):
        assert on_ranks(shares(leaves, ranks), make, loss, steps, absent) == [wanted] * ranks, ranks
    return wanted


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Builds the model once and copies it, since ranks that are threads share a generator."""
    torch.manual_seed(0)
    state = make().state_dict()

    def build() -> nn.Module:
        model = make()
        model.load_state_dict(state)
        return model

    return build


def square(output: Tensor) -> Tensor:
    return (output**2).mean()


def channels_last_conv() -> nn.Conv2d:
    layer = nn.Conv2d(3, 5, 2)
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return layer


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))


def mean_square(model: nn.Module, step: int, shard: int) -> Tensor:
    return square(model(inputs(step, shard, 3, 4))) * 0.125


def test_dense_gradients() -> None:
    check(seeded(mlp), mean_square, steps=3)


@pytest.mark.parametrize("leaves", [5, 6, 7, 9, 13])
def test_any_number_of_shards(leaves: int) -> None:
    check(seeded(mlp), mean_square, leaves=leaves)


@pytest.mark.parametrize("absent", [[0], [7], [1, 2], [0, 1, 2, 3], [0, 2, 4, 6], list(range(7)), list(range(1, 8))])
def test_absent_shards_are_left_out(absent: list[int]) -> None:
    check(seeded(mlp), mean_square, steps=2, absent=absent)


def test_any_cut_of_the_shards() -> None:
    make = seeded(mlp)
    wanted = expected(make(), mean_square)
    for bounds in ((0, 1, 8), (0, 7, 8), (0, 3, 8), (0, 1, 2, 8), (0, 3, 5, 8), (0, 1, 7, 8)):
        cut = [range(a, b) for a, b in pairwise(bounds)]
        assert on_ranks(cut, make, mean_square) == [wanted] * len(cut), bounds


# Parameters that not every shard uses


class Heads(nn.Module):
    """A trunk and three heads; `forward` takes which head to use."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        scores: Tensor = self.heads[head](self.trunk(x))
        return scores


def test_a_head_that_some_shards_use_gets_the_sum_over_those() -> None:
    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        return square(model(inputs(step, shard, 2, 4), (shard + step) % 3))

    (first, *_) = check(seeded(Heads), loss, steps=3)
    assert None not in first


def test_a_head_that_no_shard_uses_has_no_gradient() -> None:
    """None, not zero: momentum and weight decay must not move it. It may be used in a later step."""

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        return square(model(inputs(step, shard, 2, 4), step))

    names = [name for name, _ in Heads().named_parameters()]
    for step, found in enumerate(check(seeded(Heads), loss, steps=3)):
        unused = {name for name, gradient in zip(names, found, strict=True) if gradient is None}
        assert unused == {f"heads.{head}.{kind}" for head in range(3) if head != step for kind in ("weight", "bias")}


def test_an_output_that_the_loss_does_not_use_leaves_no_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        a, _ = model(inputs(step, shard, 2, 4))
        return square(a)

    ((*a, weight, bias),) = check(seeded(Two), loss)
    assert weight is bias is None
    assert None not in a


def test_a_gradient_of_minus_zero_keeps_its_sign() -> None:
    """A shard that does not use a parameter adds nothing, not zero."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        scale = model.get_parameter("scale")
        return (scale * -0.0).sum() if shard in (2, 5) else scale[:0].sum() * 0 + torch.zeros((), requires_grad=True)

    make = seeded(Scale)
    used = check(make, lambda model, step, shard: (model.get_parameter("scale") * -0.0).sum())
    assert used == [[bits(torch.full((3,), -0.0))]]
    check(make, loss)


def test_frozen_and_unfrozen_again() -> None:
    """A frozen parameter has no gradient; it takes part again from the step in which it is unfrozen."""

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        model.get_submodule("0").requires_grad_(step not in (1, 2))
        return mean_square(model, step, shard)

    found = check(seeded(mlp), loss, steps=4)
    assert [gradients[0] is None for gradients in found] == [False, True, True, False]
    assert all(gradients[2] is not None for gradients in found)


def test_frozen_from_the_start() -> None:
    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        model.get_submodule("0").requires_grad_(step >= 2)
        return mean_square(model, step, shard)

    found = check(seeded(mlp), loss, steps=3)
    assert [gradients[0] is None for gradients in found] == [True, True, False]


# Parameters used several times


def test_tied_weights_get_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.layer = nn.Linear(4, 4)
            self.again = self.layer
            self.decoder = nn.Linear(4, 7, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.again(self.layer(self.embedding(x)))
            scores: Tensor = self.decoder(hidden)
            return scores

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        words = torch.arange(shard, shard + 4) % 7
        return nn.functional.cross_entropy(model(words), words) * 0.125

    (found,) = check(seeded(Tied), loss)
    assert len(found) == 3


class Checkpointed(nn.Module):
    """One layer, used twice, each time in a re-entrant checkpoint: its gradient comes in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layer, x.tanh(), use_reentrant=True)
        return x


def test_gradients_that_come_in_parts_are_put_together_before_they_are_added() -> None:
    """(a + b) + (c + d), with a and b of one shard, is not ((a + b) + c) + d."""
    make = seeded(Checkpointed)

    def in_the_obvious_way() -> list[Gradients]:
        found = []
        for step in range(2):
            parts: list[list[tuple[Node, Tensor]]] = [[] for _ in range(4)]
            for shard in range(LEAVES):
                model = make()
                torch.autograd.backward(mean_square(model, step, shard))
                for place, parameter in enumerate(model.parameters()):
                    assert parameter.grad is not None
                    parts[place].append((Node(0, shard), parameter.grad))
            found.append([bits(local_tree_sum(part, LEAVES)) for part in parts])
        return found

    wanted = in_the_obvious_way()
    twice: list[int] = []
    assert compute(SoloGroup(), [range(LEAVES)], make(), mean_square, steps=2, twice=twice) == wanted
    assert twice == [0]  # found out once, and known from then on
    for ranks in (2, 3, 8):
        again: list[int] = []
        assert on_ranks(shares(LEAVES, ranks), make, mean_square, 2, twice=again) == [wanted] * ranks, ranks
        assert len(again) <= ranks


def test_gradients_that_come_once_are_not_computed_again() -> None:
    """`twice` is None here, so that being told to run again would fail."""

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        return mean_square(model, step, shard) + mean_square(model, step + 1, shard)

    check(seeded(mlp), loss, steps=3)


def test_checkpointing_that_is_not_reentrant() -> None:
    class Plain(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for _ in range(2):
                x = checkpoint(self.layer, x.tanh(), use_reentrant=False)
            return x

    check(seeded(Plain), mean_square, steps=2)


# Kinds of parameters


def test_parameters_of_every_kind() -> None:
    """No dimensions, no elements, two dtypes, complex numbers, other strides."""

    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.empty = nn.Parameter(torch.empty(0, 3))
            self.cube = nn.Parameter(torch.ones(1, 1, 1))
            self.precise = nn.Parameter(torch.ones(5, dtype=torch.float64))
            self.wave = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j, 0.5j]))
            self.conv = channels_last_conv()

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        x = inputs(step, shard, 2, 3, 4, 4)
        image: Tensor = model.get_submodule("conv")(x.contiguous(memory_format=torch.channels_last))
        wave = model.get_parameter("wave")
        rest = (model.get_parameter("precise") ** 2).mean() + model.get_parameter("empty").sum()
        size = (wave * x.flatten()[:3]).conj().abs().square().sum()
        return model.get_parameter("scale") * square(image) + model.get_parameter("cube").sum() * size + rest.float()

    (found,) = check(seeded(Kinds), loss)
    assert None not in found


def test_the_layout_of_a_gradient_is_that_of_its_parameter() -> None:
    def run(group: SharedMemoryGroup) -> None:
        model = channels_last_conv()

        def loss(model: nn.Module, step: int, shard: int) -> Tensor:
            output: Tensor = model(inputs(step, shard, 2, 3, 4, 4))
            return output.mean()

        compute(group, shares(LEAVES, group.size), model, loss)
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()

    run_ranks(3, run)


def test_a_sparse_gradient_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True, padding_idx=0))

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        output: Tensor = model(torch.tensor([shard]))
        return output.sum()

    with pytest.raises(TrainingError, match=r"parameter 0\.weight has a sparse gradient.*sparse=False"):
        compute(SoloGroup(), [range(LEAVES)], model, loss)


def test_without_parameters_there_is_nothing_to_do() -> None:
    def nothing(model: nn.Module, step: int, shard: int) -> Tensor:
        return torch.zeros((), requires_grad=True)

    assert compute(SoloGroup(), [range(LEAVES)], nn.ReLU(), nothing) == [[]]
    assert run_ranks(2, lambda group: compute(group, shares(LEAVES, 2), nn.ReLU(), nothing)) == [[[]], [[]]]


# Who gets what


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_owners_get_the_gradients_of_their_own_parameters(ranks: int) -> None:
    make = seeded(Heads)

    def loss(model: nn.Module, step: int, shard: int) -> Tensor:
        return square(model(inputs(step, shard, 2, 4), step % 2))

    wanted = expected(make(), loss, steps=3)
    owned_by = owners(list(make().parameters()), ranks)
    found = run_ranks(
        ranks,
        lambda group: compute(group, shares(LEAVES, ranks), make(), loss, steps=3, own=owned_by[group.rank]),
    )
    for rank, steps in enumerate(found):
        for gradients, whole in zip(steps, wanted, strict=True):
            assert gradients == [part if place in owned_by[rank] else None for place, part in enumerate(whole)]


def test_what_a_rank_does_to_its_gradients_no_other_rank_sees() -> None:
    """Clipping and unscaling run on every rank; in memory that all map they would act once per rank."""

    def run(group: SharedMemoryGroup) -> None:
        model = make()
        compute(group, shares(LEAVES, group.size), model, mean_square)
        before = [bits(parameter.grad) for parameter in model.parameters()]
        group.gather(b"", "x")
        if group.rank == 0:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(2)
        group.gather(b"", "x")
        after = [bits(parameter.grad) for parameter in model.parameters()]
        assert (after == before) == (group.rank != 0)

    make = seeded(mlp)
    run_ranks(3, run)
