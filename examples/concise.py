"""The concise way: a ResNet-18 on all devices of this machine, with any loss and any optimizer of torch.

One epoch, which takes a minute or two on two CPU cores and is only the start of learning.

python examples/concise.py
"""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F

import samegrad as sg


def train(data: str = "sample-digits", epochs: int = 1, batch_size: int = 256, lr: float = 0.1) -> tuple[float, str]:
    """Runs on every device; returns the accuracy and the fingerprint, which do not depend on how many there are."""
    digits = sg.data.load(data)
    trainer = sg.Trainer(
        sg.models.resnet18(classes=10),
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        sg.Recipe(batch_size=batch_size),
    )
    trainer.fit(digits.train, epochs=epochs)
    return trainer.evaluate(digits.test)["accuracy"], trainer.fingerprint()


if __name__ == "__main__":
    accuracy, fingerprint = sg.launch(train, devices=sys.argv[1] if len(sys.argv) > 1 else "auto")
    print(f"test accuracy {accuracy:.3f}, fingerprint {fingerprint}")
