from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from samegrad.errors import ConfigurationError
from samegrad.models import MODELS, build, lenet, mlp, resnet18
from samegrad.models.resnet import ResidualBlock
from samegrad.models.weights import normal_weights


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def conv(inputs: int, outputs: int, size: int, bias: bool) -> int:
    return outputs * inputs * size**2 + outputs * bias


def linear(inputs: int, outputs: int) -> int:
    return outputs * inputs + outputs


def block(inputs: int, outputs: int) -> int:
    shortcut = conv(inputs, outputs, 1, bias=False) if inputs != outputs else 0
    return conv(inputs, outputs, 3, bias=False) + conv(outputs, outputs, 3, bias=False) + 2 * 2 * outputs + shortcut


COUNTS = {
    "lenet": lambda c: conv(1, 20, 3, bias=True) + conv(20, 50, 5, bias=True) + linear(800, 128) + linear(128, c),
    "resnet18": lambda c: (
        conv(1, 64, 3, bias=False)
        + 2 * 64
        + sum(block(i, o) + block(o, o) for i, o in ((64, 64), (64, 128), (128, 256), (256, 512)))
        + linear(512, c)
    ),
    "mlp": lambda c: linear(784, 512) + linear(512, 256) + linear(256, c),
}


@pytest.mark.parametrize("classes", [1, 10, 37])
@pytest.mark.parametrize("name", MODELS)
def test_shape_and_number_of_parameters(name: str, classes: int) -> None:
    model = build(name, classes)
    assert parameter_count(model) == COUNTS[name](classes)
    model.eval()
    with torch.no_grad():
        for n in (0, 1, 3):
            scores = model(torch.rand(n, 1, 28, 28))
            assert scores.shape == (n, classes)
            assert scores.dtype == torch.float32


@pytest.mark.parametrize("name", MODELS)
def test_the_global_generator_fixes_the_weights(name: str) -> None:
    torch.manual_seed(7)
    first = build(name).state_dict()
    second = build(name).state_dict()
    torch.manual_seed(7)
    again = build(name).state_dict()
    assert list(first) == list(again)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = build(name)
    loss = nn.functional.cross_entropy(model(torch.rand(4, 1, 28, 28)), torch.arange(4))
    torch.autograd.backward(loss)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", ["lenet", "resnet18"])
def test_normal_weights_and_zero_biases(name: str) -> None:
    torch.manual_seed(0)
    for key, module in build(name).named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            w = module.weight.detach()
            n = w.numel()
            assert abs(w.mean()) < 5 * 0.01 / math.sqrt(n), key
            assert abs(w.std() / 0.01 - 1) < 5 / math.sqrt(2 * n), key
            assert module.bias is None or not module.bias.any(), key
        elif isinstance(module, nn.BatchNorm2d):
            state = {key: value.unique().tolist() for key, value in module.state_dict().items()}
            assert state == {
                "weight": [1],
                "bias": [0],
                "running_mean": [0],
                "running_var": [1],
                "num_batches_tracked": [0],
            }
            assert (module.eps, module.momentum) == (1e-5, 0.1)


def test_lenet_layer_by_layer() -> None:
    model = lenet()
    assert [key for key, _ in model.named_parameters()] == [
        f"{layer}.{kind}" for layer in ("conv1", "conv2", "linear1", "linear2") for kind in ("weight", "bias")
    ]
    x, shapes = torch.rand(2, 1, 28, 28), []
    for layer in model:
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert [shape for i, shape in enumerate(shapes) if i == 0 or shape != shapes[i - 1]] == [
        (20, 26, 26),
        (20, 13, 13),
        (50, 9, 9),
        (50, 4, 4),
        (800,),
        (128,),
        (10,),
    ]


def test_lenet_as_a_function_of_a_list_of_parameters() -> None:
    model = lenet()
    W1, b1, W2, b2, W3, b3, W4, b4 = model.parameters()
    F, X = nn.functional, torch.rand(3, 1, 28, 28)
    h = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, W2, b2)), 2).flatten(1)
    assert torch.equal(model(X), F.linear(F.relu(F.linear(h, W3, b3)), W4, b4))


def test_resnet18_stages() -> None:
    model = resnet18()
    sizes: dict[str, tuple[int, ...]] = {}
    for name in ("conv1", "stage1", "stage2", "stage3", "stage4"):
        getattr(model, name).register_forward_hook(lambda _m, _i, out, name=name: sizes.update({name: out.shape[1:]}))
    model(torch.rand(1, 1, 28, 28))  # one image is enough in training mode
    assert sizes == {
        "conv1": (64, 28, 28),
        "stage1": (64, 28, 28),
        "stage2": (128, 14, 14),
        "stage3": (256, 7, 7),
        "stage4": (512, 4, 4),
    }
    shortcuts = [key for key in model.state_dict() if "shortcut" in key]
    assert shortcuts == [f"stage{i}.0.shortcut.weight" for i in (2, 3, 4)]


def test_resnet18_takes_other_images() -> None:
    model = resnet18(classes=3, channels=4).eval()
    assert model(torch.rand(2, 4, 32, 17)).shape == (2, 3)
    assert parameter_count(model) == COUNTS["resnet18"](3) + 3 * 64 * 9


def test_a_residual_block_adds_its_input() -> None:
    block = ResidualBlock(3, 3).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(block(x), x.relu())


def test_mlp_layers_and_dropout() -> None:
    model = mlp()
    assert list(model.state_dict()) == [f"linear{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")]
    assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.2, 0.2]
    X = torch.rand(5, 1, 28, 28)
    assert not torch.equal(model(X), model(X))
    model.eval()
    assert torch.equal(model(X), model(X))
    assert torch.equal(model(X), model(X.flatten(1)))
    plain = mlp((6, 4, 2), dropout=0)
    assert [type(m) for m in plain] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert mlp([3, 2])(torch.rand(4, 3)).shape == (4, 2)


def test_mlp_has_the_default_initialisation() -> None:
    torch.manual_seed(3)
    expected = nn.Linear(6, 4), nn.Linear(4, 2)
    torch.manual_seed(3)
    state = mlp((6, 4, 2)).state_dict()
    assert torch.equal(state["linear1.weight"], expected[0].weight)
    assert torch.equal(state["linear2.bias"], expected[1].bias)


def test_normal_weights_of_any_module() -> None:
    linear, norm, conv2d = nn.Linear(50, 40, bias=False), nn.LayerNorm(40), nn.Conv2d(9, 9, 9)
    model = nn.Sequential(linear, norm, nn.ModuleDict({"a": conv2d}))
    normal_weights(model, std=2)
    assert 1.8 < linear.weight.std() < 2.2
    assert torch.equal(norm.weight, torch.ones(40))
    assert conv2d.bias is not None
    assert not conv2d.bias.any()
    normal_weights(model, std=0)
    assert not linear.weight.any()


@pytest.mark.parametrize("std", [-1.0, math.nan])
def test_normal_weights_refuses_a_negative_deviation(std: float) -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        normal_weights(nn.Linear(1, 1), std)


@pytest.mark.parametrize(("name", "nearest"), [("resnet", "resnet18"), ("LeNet", "lenet"), ("mpl", "mlp")])
def test_an_unknown_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown model '{name}'; did you mean '{nearest}'"):
        build(name)


def test_a_name_that_is_near_nothing_gets_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown model 'zzz'.* lenet, resnet18, mlp"):
        build("zzz")


@pytest.mark.parametrize("name", MODELS)
def test_no_classes_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        build(name, 0)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="channels"):
        resnet18(channels=0)
    for sizes in ((), (3,), (3, 0, 2)):
        with pytest.raises(ConfigurationError, match="sizes"):
            mlp(sizes)
    for dropout in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="dropout"):
            mlp(dropout=dropout)
