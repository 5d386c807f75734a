"""Ctrl-C and SIGTERM while a script trains and saves: as processes of their own."""

from __future__ import annotations

import os
import signal

import pytest
from tests.workers.processes import Scripts

from samegrad.trainer.checkpoint_record import latest, read_record

pytestmark = pytest.mark.dist

SCRIPT = """\
import sys, threading
import samegrad as sg, torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

def train():
    torch.manual_seed(0)
    trainer = sg.Trainer(
        torch.nn.Linear(4, 2),
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        sg.Recipe(batch_size=8, shards=2),
    )

    def tell(report):
        if report.step == 2 and trainer.world.rank == 0:
            print("at work", flush=True)
            print("unwritten")
            HANGS and threading.Event().wait()

    try:
        trainer.fit(TensorDataset(torch.randn(80_000, 4), torch.arange(80_000) % 2), 99, saving=SAVING, on_step=tell)
    finally:
        trainer.world.rank == 0 and print("stopped", trainer.stopped, flush=True)

LAUNCH
print("not reached")
"""
CALLS = {"process": "train()", "launch": "sg.launch(train, devices='cpu:2')"}


def script(call: str, saving: str = "sg.Saving('out')", hangs: bool = False) -> str:
    return SCRIPT.replace("LAUNCH", CALLS[call]).replace("SAVING", saving).replace("HANGS", str(hangs))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_and_ends(call: str, number: signal.Signals, torch_scripts: Scripts) -> None:
    with torch_scripts.start(script(call)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        assert process.stderr is not None
        os.killpg(process.pid, number)  # as terminals and batch systems do
        stdout, stderr = process.stdout.read(), process.stderr.read()
    assert process.returncode == -number, stderr  # for a shell: 130, 143
    if (call, number) == ("process", signal.SIGTERM):
        assert stdout == "unwritten\n"  # until then
    else:
        assert stdout == "unwritten\nstopped True\n"
    assert f"{number.name}: stopping after the next step, and saving; once more to end at once, without\n" in stderr
    assert f"{number.name}: saved to out. To go on, with the same result: trainer.resume('out')\n" in stderr
    assert stderr.count("Traceback") == (number is signal.SIGINT)
    assert read_record(latest(torch_scripts.folder / "out"))["position"]["steps"] > 2


@pytest.mark.slow
@pytest.mark.parametrize(("call", "number"), [("process", signal.SIGINT), ("launch", signal.SIGTERM)])
def test_the_second_signal_ends_at_once(call: str, number: signal.Signals, torch_scripts: Scripts) -> None:
    with torch_scripts.start(script(call, hangs=True)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        assert "stopping after the next step" in process.stderr.readline()
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == -number
    assert list((torch_scripts.folder / "out").glob("checkpoint*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_training_that_does_not_save_ends_at_once(call: str, torch_scripts: Scripts) -> None:
    with torch_scripts.start(script(call, saving="None", hangs=True)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "and saving" not in stderr


def test_handlers_of_the_caller_are_left_alone(torch_scripts: Scripts) -> None:
    handlers = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(5))\n"
    )
    with torch_scripts.start(script("process").replace("def train", f"{handlers}\ndef train")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        while process.stdout.readline() != "mine\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith("stopped False\n")
        assert process.stderr.read() == ""
    assert process.returncode == 5
