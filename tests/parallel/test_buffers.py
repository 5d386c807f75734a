"""What shards do to buffers: the rule for each kind, the same bits for any number of ranks, and what is kept.

A "shard" here is a function that changes the buffers of a module; the expected values follow the rule word by word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from samegrad.errors import TrainingError
from samegrad.executors import Group, SoloGroup, local_tree_sum
from samegrad.parallel.buffers import ShardBuffers
from samegrad.shards import Node, leaves_of, shares, subtrees
from samegrad.testing import run_ranks

LEAVES = 8
CPU = torch.device("cpu")
Shard = Callable[[nn.Module, int], None]
State = list[tuple[str, bytes]]


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def module_of(**buffers: Tensor) -> nn.Module:
    module = nn.Module()
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer.clone(memory_format=torch.preserve_format))
    return module


def state_of(module: nn.Module) -> State:
    return [(name, bits(buffer)) for name, buffer in module.named_buffers(remove_duplicate=False)]


def fractions_of(absent: Sequence[int]) -> list[float | None]:
    """Unequal parts of the minibatch that add up to one."""
    weights = [0 if shard in absent else shard + 1 for shard in range(LEAVES)]
    return [weight / sum(weights) if weight else None for weight in weights]


def compute(
    group: Group, make: Callable[[], nn.Module], shard_does: Shard, steps: int, absent: Sequence[int]
) -> tuple[nn.Module, State]:
    """The module and its buffers after `steps`, the way that a step goes about it, as one rank sees them."""
    module, cut, fractions = make(), shares(LEAVES, group.size), fractions_of(absent)
    buffers = ShardBuffers(module, group, cut, LEAVES, CPU)
    present = {node for part in cut for node in subtrees(part, LEAVES) if set(leaves_of(node, LEAVES)) - set(absent)}
    first = next(shard for shard, fraction in enumerate(fractions) if fraction is not None)
    for _ in range(steps):
        buffers.begin()
        for shard in cut[group.rank]:
            fraction = fractions[shard]
            if fraction is not None:
                buffers.enter()
                shard_does(module, shard)
            buffers.leave(shard, fraction, shard == first)
        first_rank = next(rank for rank, part in enumerate(cut) if first in part)
        buffers.finish(group.gather(buffers.record(), "x"), present, first_rank)
    return module, state_of(module)


def check(make: Callable[[], nn.Module], shard_does: Shard, steps: int = 2, absent: Sequence[int] = ()) -> nn.Module:
    """Compares the numbers of ranks with each other; returns the module."""
    module, wanted = compute(SoloGroup(), make, shard_does, steps, absent)
    for ranks in (2, 3, 5, 8):
        for rank, (_, found) in enumerate(
            run_ranks(ranks, lambda group: compute(group, make, shard_does, steps, absent))
        ):
            assert found == wanted, (ranks, rank)
    return module


def mean_along_the_tree(values: Sequence[Tensor], absent: Sequence[int] = ()) -> Tensor:
    """The rule for floating buffers, on what each shard made of one."""
    parts = [
        (Node(0, shard), values[shard] * fraction)
        for shard, fraction in enumerate(fractions_of(absent))
        if fraction is not None
    ]
    return local_tree_sum(parts, LEAVES)


# The rule


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_a_floating_buffer_becomes_the_weighted_mean_over_the_shards(dtype: torch.dtype) -> None:
    start = torch.linspace(-1, 3, 7).to(dtype)

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("average").mul_(0.9).add_(10.0 ** (shard - 3))

    module = check(lambda: module_of(average=start), shard_does, steps=1)
    expected = mean_along_the_tree([(start * 0.9).add_(10.0 ** (shard - 3)) for shard in range(LEAVES)])
    assert bits(module.get_buffer("average")) == bits(expected)


@pytest.mark.parametrize("absent", [[0], [7], [0, 1, 2], [1, 3, 5, 7], list(range(7)), list(range(1, 8))])
def test_absent_shards_do_not_count(absent: list[int]) -> None:
    start = torch.linspace(-1, 3, 7)

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("average").add_(shard)
        module.get_buffer("first").fill_(shard)

    def make() -> nn.Module:
        return module_of(average=start, first=torch.tensor(99))

    module = check(make, shard_does, steps=1, absent=absent)
    expected = mean_along_the_tree([start + shard for shard in range(LEAVES)], absent)
    assert bits(module.get_buffer("average")) == bits(expected)
    assert module.get_buffer("first").item() == min(set(range(LEAVES)) - set(absent))


def test_integer_and_boolean_buffers_become_what_the_first_shard_made_of_them() -> None:
    """A mask, a counter, a table of bytes, an empty one."""

    def make() -> nn.Module:
        return module_of(
            mask=torch.tensor([True, False, True]),
            counter=torch.tensor(5),
            table=torch.arange(6, dtype=torch.uint8).view(2, 3),
            empty=torch.empty(0, dtype=torch.int32),
        )

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("mask")[shard % 3] ^= True
        module.get_buffer("counter").add_(1 if shard == 0 else 100)
        module.get_buffer("table").fill_(shard)

    module = check(make, shard_does, steps=3)
    assert module.get_buffer("mask").tolist() == [False, False, True]  # switched three times
    assert module.get_buffer("counter").item() == 8
    assert module.get_buffer("table").tolist() == [[0, 0, 0], [0, 0, 0]]


def test_every_shard_starts_from_the_buffers_of_the_start_of_the_step() -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        assert module.get_buffer("seen").tolist() == [0.0] * LEAVES
        module.get_buffer("seen")[shard] = 1.0

    check(lambda: module_of(seen=torch.zeros(LEAVES)), shard_does, steps=1)


def test_batch_norm_counts_a_step_once_and_averages_what_shards_see() -> None:
    def make() -> nn.Module:
        return nn.BatchNorm1d(3)

    def shard_does(module: nn.Module, shard: int) -> None:
        module(torch.randn(4, 3, generator=torch.Generator().manual_seed(shard)))

    module = check(make, shard_does, steps=3)
    assert module.get_buffer("num_batches_tracked").item() == 3


# What nobody changed


CONSTANTS = {
    "mask": torch.full((4, 4), float("-inf")).triu(1),
    "table with NaN": torch.tensor([0.1, float("nan"), 0.3, -0.0]),
    "third": torch.tensor([1 / 3, 0.1, 0.7]),
    "half": torch.tensor([0.1, 0.3], dtype=torch.bfloat16),
    "wave": torch.tensor([complex(0.1, float("nan"))]),
    "scalar": torch.tensor(float("nan")),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7),
    "switch": torch.tensor(True),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_keeps_its_bits(name: str) -> None:
    """A mean of equal numbers need not be that number, and one that is not finite must not spread."""

    def make() -> nn.Module:
        return module_of(constant=CONSTANTS[name], other=torch.zeros(2))

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("other").add_(shard)

    module = check(make, shard_does, steps=3)
    assert bits(module.get_buffer("constant")) == bits(CONSTANTS[name])
    assert module.get_buffer("other").all()


def test_the_mean_of_equal_numbers_can_be_another_number() -> None:
    """So the check above can fail."""
    constant = CONSTANTS["third"]
    assert bits(mean_along_the_tree([constant] * LEAVES)) != bits(constant)


def test_a_buffer_that_one_shard_changed_is_a_mean_on_all_ranks() -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        if shard == 6:
            module.get_buffer("rare").fill_(0.5)

    start = torch.tensor([1 / 3, 0.1, 0.7])
    module = check(lambda: module_of(rare=start), shard_does, steps=1)
    values = [torch.full((3,), 0.5) if shard == 6 else start for shard in range(LEAVES)]
    assert bits(module.get_buffer("rare")) == bits(mean_along_the_tree(values))


# Buffers that are replaced, shared, without memory of their own


def test_a_buffer_may_be_replaced_instead_of_changed() -> None:
    """`self.average = 0.9 * self.average + ...`, with or without a graph behind it."""
    weight = torch.ones(3, requires_grad=True)

    def shard_does(module: nn.Module, shard: int) -> None:
        average = module.get_buffer("average")
        assert not average.requires_grad
        module.average = 0.9 * average + shard * weight
        module.count = module.get_buffer("count") + 1

    module = check(lambda: module_of(average=torch.zeros(3), count=torch.tensor(0)), shard_does, steps=1)
    expected = mean_along_the_tree([torch.zeros(3) * 0.9 + shard * torch.ones(3) for shard in range(LEAVES)])
    assert bits(module.get_buffer("average")) == bits(expected)
    assert module.get_buffer("count").item() == 1
    check(lambda: module_of(average=torch.zeros(3), count=torch.tensor(0)), shard_does, steps=3)


def test_a_buffer_keeps_its_identity_over_steps() -> None:
    """Whoever holds on to it (an optimizer, an exporter) sees the new values."""
    module = module_of(average=torch.zeros(3))
    average = module.get_buffer("average")

    def shard_does(module: nn.Module, shard: int) -> None:
        module.average = module.get_buffer("average") + 1

    compute(SoloGroup(), lambda: module, shard_does, 2, ())
    assert module.get_buffer("average") is average
    assert average.tolist() == pytest.approx([2.0] * 3)


def shared_module() -> nn.Module:
    """One buffer that two modules hold."""
    module = nn.ModuleDict({"a": module_of(), "b": module_of()})
    buffer = torch.zeros(2)
    module["a"].register_buffer("shared", buffer)
    module["b"].register_buffer("shared", buffer)
    return module


def test_a_shared_buffer_that_is_changed_stays_one() -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("b.shared").add_(shard + 1)

    module = check(shared_module, shard_does)
    assert module.get_buffer("a.shared") is module.get_buffer("b.shared")
    assert module.get_buffer("a.shared")[0] > 0


def test_a_shared_buffer_that_one_holder_replaces_is_the_same_on_all_ranks() -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        owner = module.get_submodule("b")
        owner.shared = module.get_buffer("b.shared") + shard + 1

    module = check(shared_module, shard_does)
    assert module.get_buffer("b.shared")[0] > 0


def test_a_module_in_two_places_has_its_buffers_once() -> None:
    def make() -> nn.Module:
        part = module_of(count=torch.tensor(0.0))
        return nn.ModuleDict({"a": part, "b": part})

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("a.count").add_(1)

    assert check(make, shard_does).get_buffer("b.count").item() == pytest.approx(2.0)


def test_buffers_that_are_not_saved_follow_the_rule_too() -> None:
    def make() -> nn.Module:
        module = nn.Module()
        module.register_buffer("average", torch.zeros(2), persistent=False)
        module.register_buffer("nothing", None)
        return module

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("average").add_(shard)

    check(make, shard_does)


def test_buffers_of_other_strides() -> None:
    def make() -> nn.Module:
        return module_of(image=torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))

    def shard_does(module: nn.Module, shard: int) -> None:
        module.get_buffer("image").add_(shard)

    strides = make().get_buffer("image").stride()
    assert check(make, shard_does).get_buffer("image").stride() == strides


def test_a_module_without_buffers() -> None:
    check(lambda: nn.Linear(2, 2), lambda module, shard: None)


# What cannot be


@pytest.mark.parametrize(
    ("made", "text"), [(torch.zeros(3), r"\[3\] torch.float32"), (torch.zeros(2).double(), r"\[2\] torch.float64")]
)
def test_a_buffer_that_changes_its_kind_is_refused_by_name(made: Tensor, text: str) -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        if shard == 5:
            module.get_submodule("inner").cache = made

    with pytest.raises(TrainingError, match=rf"buffer inner\.cache was \[2\] torch.float32 .* shard 5 made it {text}"):
        compute(SoloGroup(), lambda: nn.ModuleDict({"inner": module_of(cache=torch.zeros(2))}), shard_does, 1, ())


def test_a_buffer_that_goes_away_is_refused_by_name() -> None:
    def shard_does(module: nn.Module, shard: int) -> None:
        module._buffers["cache"] = None

    with pytest.raises(TrainingError, match="buffer cache was removed"):
        compute(SoloGroup(), lambda: module_of(cache=torch.zeros(2)), shard_does, 1, ())
