"""Data-parallel training from its parts: LeNet with its parameters in a plain list, on a plain list of devices.

    python examples/from_scratch.py                                   # 5,000 real digits, the CPU as two devices
    python examples/from_scratch.py --devices cuda:0,cuda:1 --data fashion-mnist --data-dir DIR

Each step cuts the minibatch over the devices, computes loss and gradients on each device's own copy of the parameters,
adds the gradients up, and applies the same update everywhere, so that the copies stay identical.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import samegrad as sg
from samegrad.data.images import LabelledImages


def new_parameters() -> list[Tensor]:
    """Weights from N(0, 0.01^2) and zero biases of two convolutions and two linear layers."""
    shapes = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,)]
    return [torch.randn(shape) * 0.01 if len(shape) > 1 else torch.zeros(shape) for shape in shapes]


def lenet(X: Tensor, parameters: list[Tensor]) -> Tensor:
    """Scores (n, 10) of the images X (n, 1, 28, 28)."""
    W1, b1, W2, b2, W3, b3, W4, b4 = parameters
    h1 = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h2 = F.avg_pool2d(F.relu(F.conv2d(h1, W2, b2)), 2)
    h3 = F.relu(F.linear(h2.flatten(1), W3, b3))
    return F.linear(h3, W4, b4)


def train_minibatch(X: Tensor, y: Tensor, replicas: list[list[Tensor]], devices: list[torch.device], lr: float) -> None:
    """One step of minibatch gradient descent; every replica ends with the same parameters."""
    X_parts, y_parts = sg.split_batch(X, y, devices)
    for replica, X_part, y_part in zip(replicas, X_parts, y_parts, strict=True):
        F.cross_entropy(lenet(X_part, replica), y_part, reduction="sum").backward()
    for copies in zip(*replicas, strict=True):
        gradients = [copy.grad for copy in copies if copy.grad is not None]
        sg.allreduce(gradients)
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.data -= lr * gradient / len(X)
            copy.grad = None


def count_correct(images: LabelledImages, replicas: list[list[Tensor]], devices: list[torch.device]) -> int:
    """How many images are classified correctly, counted on all devices, each image once."""
    correct = 0
    with torch.no_grad():
        for indices in torch.arange(len(images)).split(1000):
            parts = zip(*sg.split_batch(*images.batch(indices), devices), replicas, strict=True)
            correct += sum(int((lenet(X, replica).argmax(1) == y).sum()) for X, y, replica in parts)
    return correct


def train(
    data: str, data_dir: Path | None, device_names: str, epochs: int, batch_size: int = 256, lr: float = 0.2
) -> float:
    """Trains and returns the accuracy on the test images."""
    torch.manual_seed(0)
    images = sg.data.load(data, data_dir)
    devices = sg.devices(device_names)
    parameters = new_parameters()
    replicas = [sg.replicate_parameters(parameters, device) for device in devices]
    accuracy = 0.0
    for epoch in range(epochs):
        for indices in torch.randperm(len(images.train)).split(batch_size):
            train_minibatch(*images.train.batch(indices), replicas, devices, lr)
        accuracy = count_correct(images.test, replicas, devices) / len(images.test)
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="sample-digits", choices=list(sg.data.DATA))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    train(options.data, options.data_dir, options.devices, options.epochs)
