"""The command line that does a job again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

from samegrad.trainer.job import TrainJob

__all__ = ["command_line"]

_ALWAYS = ("model", "data", "batch_size", "shards", "lr", "optimizer", "epochs", "seed")
_NEVER = (
    "topology",
    "out",
    "save_every",
    "keep",
    "tensorboard",
    "resume",
    "trace",
    "check_every",
    "server_addresses",
    "secret_file",
    "tls_ca",
)  # do not say what is computed, nor how


def command_line(job: TrainJob, devices: Sequence[str]) -> str:
    """The `samegrad train` that gives the result of `job` again, on `devices`; what matters is said, default or not."""
    words = ["samegrad", "train"]
    for field in fields(job):
        value = job.learning_rate if field.name == "lr" else getattr(job, field.name)
        if field.name in _NEVER or (field.name not in _ALWAYS and value == field.default):
            continue
        option = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return shlex.join([*words, "--devices", _spec(devices)])


def _spec(devices: Sequence[str]) -> str:
    """The devices as `--devices` takes them: "cpu:2", "cuda:0,cuda:1", "cuda:0,cpu:2"."""
    parts: list[tuple[str, int]] = []
    for name in devices:
        if name == "cpu" and parts and parts[-1][0] == "cpu":
            parts[-1] = ("cpu", parts[-1][1] + 1)
        else:
            parts.append((name, 1))
    return ",".join(f"cpu:{count}" if name == "cpu" else name for name, count in parts)
