"""The command line without any process: options, help, errors and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from samegrad import __version__
from samegrad.cli import main, training
from samegrad.cli.app import app
from samegrad.errors import NonFiniteLoss, WorkerFailed

# A new option changes this list, and so gets a second look.
TRAIN_OPTIONS = [
    *("--model", "--data", "--data-dir"),
    *(
        "--batch-size",
        "--shards",
        "--lr",
        "--lr-rule",
        "--base-batch-size",
        "--warmup-epochs",
        "--optimizer",
        "--epochs",
        "--seed",
        "--threads",
        "--precision",
        "--compile",
    ),
    *("--inexact", "--consistency", "--staleness", "--devices", "--shares", "--strategy", "--topology"),
    *("--servers", "--server-addresses", "--secret-file", "--tls-ca", "--update", "--loader-workers"),
    *("--out", "--tensorboard", "--save-every", "--keep", "--resume", "--check-every", "--trace", "--json", "--debug"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, without colours and boxes."""
    with pytest.raises(SystemExit) as info:
        main(list(arguments))
    out, err = (" ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", text).split()) for text in capsys.readouterr())
    code = info.value.code
    assert isinstance(code, int)
    return code, out, err


def never(*_: Any) -> None:
    raise AssertionError("something was started")


def test_the_options_are_those_and_help_explains_each(capsys: pytest.CaptureFixture[str]) -> None:
    commands: Any = typer.main.get_command(app)
    assert list(commands.commands) == [
        "train",
        "plan",
        "schedule",
        "topology",
        "simulate",
        "show",
        "export",
        "probe",
        "serve",
        "store",
        "bench",
    ]
    parameters = commands.commands["train"].params
    assert [name for parameter in parameters for name in parameter.opts] == TRAIN_OPTIONS
    code, out, err = run(capsys, "train", "--help")
    assert (code, err) == (0, "")
    assert all(f" {name} " in out for name in TRAIN_OPTIONS)
    assert "<bool>" not in out
    assert "Example: samegrad train --data" in out
    assert all(len(parameter.help) > 20 and parameter.help.endswith(".") for parameter in parameters)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_command_there_is_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "Commands train " in out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"samegrad {__version__}", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lent"], "'--model': 'lent' is not one of lenet, resnet18, mlp"),
        (["--data", "mnist"], "'--data': 'mnist' is not one of sample-digits, fashion-mnist, synthetic"),
        (["--optimizer", "adam"], "'--optimizer': 'adam' is not one of sgd, momentum, adamw"),
        (["--precision", "half"], "'--precision': 'half' is not one of fp32, bf16, fp16"),
        (["--update", "x"], "'--update': 'x' is not one of auto, replicated, owner"),
        (["--shares", "2;1"], "'--shares': '2;1' is neither auto nor equal, nor a list of numbers such as 2,1"),
        (["--lr", "-1"], "'--lr': -1.0 is not a positive number"),
        (["--lr", "nan"], "'--lr': nan is not a positive number"),
        (["--lr-rule", "cube"], "'--lr-rule': 'cube' is not one of none, linear, sqrt"),
        (["--base-batch-size", "0"], "'--base-batch-size'"),
        (["--warmup-epochs", "-1"], "'--warmup-epochs'"),
        (["--warmup-epochs", "nan"], "'--warmup-epochs'"),
        (["--epochs", "0"], "'--epochs'"),
        (["--loader-workers", "-1"], "'--loader-workers'"),
        (["--save-every", "0"], "'--save-every': '0' is neither a number of steps of at least 1 nor epoch"),
        (["--save-every", "often"], "'--save-every': 'often' is neither"),
        (["--keep", "0"], "'--keep'"),
        (["--batch-size", "many"], "'--batch-size'"),
        (["--epoch", "3"], "--epochs"),
    ],
)
def test_what_cannot_be_understood_has_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "launch", never)
    code, out, err = run(capsys, "train", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "4"], "a minibatch of 4 examples cannot be cut into 8 shards"),
        (["--devices", "9"], "9 devices cannot share 8 shards: a device needs at least one"),
        (["--devices", "cpu:9"], "--shards 9"),
        (["--devices", "tpu"], "'tpu' is not known"),
        (["--devices", "0"], "'0' asks for no "),
        (["--devices", "cpu:2", "--shares", "1,2,3"], "shares need 2 positive numbers"),
        (["--devices", "cpu:2", "--shares", "1,-2"], "shares need 2 positive numbers"),
        (["--save-every", "epoch"], "--save-every needs a folder to save into: give --out DIR"),
        (["--warmup-epochs", "1"], "--warmup-epochs has a part only where a rule scales the learning rate"),
        (["--lr-rule", "sqrt", "--warmup-epochs", "16"], "--warmup-epochs: expected a number from 0 to 15, the epochs"),
        (["--tensorboard"], "--tensorboard needs a folder to write into: give --out DIR"),
        (["--resume", "/nowhere"], "/nowhere: expected a folder with a checkpoint"),
    ],
)
def test_what_cannot_work_has_exit_code_1_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "launch", never)
    code, out, err = run(capsys, "train", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err


def test_a_folder_that_cannot_be_written_is_found_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(training, "launch", never)
    code, _, err = run(capsys, "train", "--out", str(tmp_path / "file" / "out"))
    assert code == 1
    assert "expected a folder that files can be written to" in err


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (NonFiniteLoss("the loss is nan"), "error: the loss is nan"),
        (
            WorkerFailed("rank 1 raised KeyError\nIts traceback: ..."),
            "error: rank 1 raised KeyError Its traceback: ...",
        ),
        (KeyError("x"), "error: unexpected KeyError: 'x' This is a fault of samegrad; see samegrad --debug ..."),
    ],
)
def test_a_traceback_is_shown_with_debug_only(
    error: Exception, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(training, "launch", fail)
    assert run(capsys, "train") == (1, "", shown)
    for arguments in (["--debug", "train"], ["train", "--debug"]):
        code, _, err = run(capsys, *arguments)
        assert code == 1
        assert err.startswith("Traceback")
        assert type(error).__name__ in err


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "launch", interrupt)
    assert run(capsys, "train") == (130, "", "interrupted: all workers have ended")


@pytest.mark.parametrize("options", [["--version"], ["--help"]])
def test_standard_output_that_cannot_be_written_is_an_error(options: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "samegrad", *options], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: standard output could not be written: No space left on device\n",
    )


def test_python_m_samegrad_is_the_same_command() -> None:
    run = subprocess.run([sys.executable, "-m", "samegrad", "--version"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, f"samegrad {__version__}\n")
