"""Folders of runs, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records(count: int, **changed: Any) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of so many epochs."""
    return [
        {
            "epoch": epoch,
            "train_loss": 2 / epoch,
            "test_loss": 2.5 / epoch,
            "test_accuracy": 1 - 0.5 / epoch,
            "seconds": 2.0,
            "samples_per_second": 500.0,
            **changed,
        }
        for epoch in range(1, count + 1)
    ]


def report(count: int, **changed: Any) -> dict[str, Any]:
    """A report.json that fits `records(count)`."""
    last = records(count)[-1]
    return {
        **{name: last[name] for name in ("train_loss", "test_loss", "test_accuracy")},
        "fingerprint": "ab" * 32,
        "epochs": count,
        "seconds_per_epoch": 2.0,
        "samples_per_second": 500.0,
        "model": "lenet",
        "data": "sample-digits",
        "batch_size": 32,
        "shards": 8,
        "optimizer": "sgd",
        "lr": 0.2,
        "seed": 0,
        "threads": 1,
        "devices": ["cpu", "cpu"],
        "torch_version": "2.13.0",
        "platform": "Linux",
        "command": "samegrad train --model lenet",
        **changed,
    }


def make(folder: Path, lines: list[dict[str, Any]] | None, document: dict[str, Any] | None = None) -> Path:
    """`folder` with what is given of metrics.jsonl and report.json."""
    folder.mkdir(parents=True, exist_ok=True)
    if lines is not None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    if document is not None:
        (folder / "report.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
