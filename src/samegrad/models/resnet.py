"""ResNet-18 for small images: the first convolution keeps the resolution and there is no max-pool.

    input   (n, channels, h, w)                    at 28x28
    stem    3x3 conv, batch norm, ReLU   ->  64 channels, 28x28
    stage1  two residual blocks          ->  64 channels, 28x28
    stage2  the first block halves       -> 128 channels, 14x14
    stage3  the first block halves       -> 256 channels,  7x7
    stage4  the first block halves       -> 512 channels,  4x4
    mean over the positions, linear      -> classes

A residual block is conv, batch norm, ReLU, conv, batch norm; its input is added before the last ReLU, through a 1x1
convolution where the block changes the shape. He et al., "Deep Residual Learning for Image Recognition", 2016.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from samegrad.errors import ConfigurationError
from samegrad.models.weights import normal_weights

__all__ = ["ResNet18", "ResidualBlock", "resnet18"]


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    # Batch normalisation follows and subtracts the mean, so a bias would have no effect and a gradient of only noise.
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class ResidualBlock(nn.Module):
    """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride), rounded up; keeps the shape if it need not change."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The network as drawn above, with PyTorch's default initialisation; `resnet18` draws its weights."""

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, 64)
        self.bn1 = nn.BatchNorm2d(64)
        self.stage1 = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 64))
        self.stage2 = nn.Sequential(ResidualBlock(64, 128, stride=2), ResidualBlock(128, 128))
        self.stage3 = nn.Sequential(ResidualBlock(128, 256, stride=2), ResidualBlock(256, 256))
        self.stage4 = nn.Sequential(ResidualBlock(256, 512, stride=2), ResidualBlock(512, 512))
        self.linear = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) float32 -> (n, classes) scores, not normalised."""
        x = relu(self.bn1(self.conv1(x)))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        # A mean, not an adaptive pooling layer: that one's gradient has no deterministic kernel on CUDA in general.
        scores: Tensor = self.linear(x.mean(dim=(2, 3)))
        return scores


def resnet18(classes: int = 10, channels: int = 1) -> ResNet18:
    """A new network: (n, channels, h, w) float32 -> (n, classes) scores, not normalised; meant for 28x28 or 32x32.

    Weights of convolutions and of the linear layer are drawn from N(0, 0.01^2) with the global torch generator, the
    linear bias is zero, batch normalisation starts at PyTorch's defaults. No convolution has a bias.
    In training mode a batch needs more than one value per channel at the last stage: at 28x28 one image is enough.
    Raises `ConfigurationError` if `classes` or `channels` is below 1.
    """
    if classes < 1 or channels < 1:
        raise ConfigurationError(f"resnet18: classes and channels must be 1 or more, got {classes} and {channels}")
    model = ResNet18(classes, channels)
    normal_weights(model, std=0.01)
    return model
