"""Stopped anywhere and resumed on any number of workers, training ends with the bits of a run without a break."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from samegrad.callbacks import EpochReport, SaveReport
from samegrad.errors import CallMismatch, ConfigurationError, OutputError
from samegrad.recipe import Recipe
from samegrad.storing.sealing import sealed
from samegrad.trainer import Saving, Trainer, keeper, saving
from samegrad.trainer.checkpoint import Snapshot, write_checkpoint
from samegrad.trainer.checkpoint_files import checkpoints
from samegrad.trainer.checkpoint_record import latest, read_record
from samegrad.workers import context, launch

Update = Literal["replicated", "owner"]
RECIPE = Recipe(batch_size=16)
EPOCHS = 3
STEPS = 6  # of an epoch of 91 examples, the last of which has 11


class Net(nn.Module):
    """Batch normalisation, dropout, a tied weight, and buffers that count, one of them not in the state_dict."""

    unsaved: Tensor

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, width), nn.GroupNorm(2, width), nn.Dropout(0.3), nn.ReLU())
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(width, 4)
        self.tied = self.head
        self.register_buffer("unsaved", torch.zeros(()), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        self.unsaved += X.mean()
        H = self.norm(X.view(len(X), 1, 3, 4)).flatten(1)
        result: Tensor = self.head(self.body(H)) + 0.01 * self.unsaved
        return result


def amsgrad(parameters: Any) -> torch.optim.Optimizer:
    halves = list(parameters)
    groups: list[dict[str, Any]] = [{"params": halves[:2]}, {"params": halves[2:], "lr": 0.003, "betas": (0.8, 0.99)}]
    return torch.optim.AdamW(groups, lr=0.01, amsgrad=True)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "amsgrad": amsgrad,
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),  # which has state before the first step
}


def data(examples: int = 91) -> TensorDataset:
    generator = torch.Generator().manual_seed(examples)
    return TensorDataset(
        torch.randn(examples, 12, generator=generator), torch.randint(4, (examples,), generator=generator)
    )


def make(optimizer: str = "momentum", update: Update = "replicated", seed: int = 1, **changed: Any) -> Trainer:
    torch.manual_seed(seed)
    recipe = changed.pop("recipe", RECIPE)
    trainer = Trainer(Net(**changed), nn.functional.cross_entropy, OPTIMIZERS[optimizer], recipe, update=update)
    trainer.remember("schedule", torch.optim.lr_scheduler.MultiStepLR(trainer.optimizer, [4, 9], 0.5))
    return trainer


def go_on(trainer: Trainer, stop_after: int | None = None, folder: Path | None = None, **saved: Any) -> dict[str, Any]:
    """Trains to the end, or so many steps; returns the result, the losses of the steps and of the epochs."""
    losses: list[str] = []
    schedule: Any = trainer._keeper.remembered["schedule"]

    def on_step(report: Any) -> None:
        losses.append(report.loss.hex())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch wants to see optimizer.step before, by its own count
            schedule.step()
        if stop_after is not None and trainer.position.steps == stop_after - 1:
            trainer.stop()  # asked after a step, agreed in the next

    kept = None if folder is None else Saving(folder, **saved)
    reports = trainer.fit(data(), EPOCHS - trainer.epoch, validate=data(20), saving=kept, on_step=on_step)
    found = {
        "fingerprint": trainer.fingerprint(),
        "unsaved": float(dict(trainer.model.named_buffers())["unsaved"]).hex(),
        "losses": losses,
        "epochs": [(report.epoch, report.examples, report.train_loss.hex(), report.metrics) for report in reports],
        "lr": [group["lr"] for group in trainer.optimizer.param_groups],
    }
    assert set(trainer.world.group.gather(repr(found).encode(), "x")) == {repr(found).encode()}, "the ranks disagree"
    return found


@functools.cache
def uninterrupted(optimizer: str) -> dict[str, Any]:
    return go_on(make(optimizer))


def check_rest(rest: dict[str, Any], optimizer: str, done: int) -> None:
    """`rest` is what follows after `done` steps of the run without a break."""
    whole = uninterrupted(optimizer)
    assert rest["losses"] == whole["losses"][done:]
    assert rest["epochs"] == whole["epochs"][done // STEPS if done % STEPS else (done - 1) // STEPS :]
    assert {**rest, "losses": 0, "epochs": 0} == {**whole, "losses": 0, "epochs": 0}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("done", [2, STEPS, STEPS + 1, 2 * STEPS + 5])
def test_resumed_at_any_step_it_ends_as_without_a_break(optimizer: str, done: int, tmp_path: Path) -> None:
    stopped = make(optimizer)
    begun = go_on(stopped, done, tmp_path)
    assert (stopped.stopped, stopped.position.steps) == (True, done)
    assert begun["losses"] == uninterrupted(optimizer)["losses"][:done]
    resumed = make(optimizer, seed=2)
    resumed.resume(tmp_path)
    assert resumed.position == stopped.position
    assert resumed.fingerprint() == stopped.fingerprint()
    check_rest(go_on(resumed), optimizer, done)
    assert not resumed.stopped


@pytest.mark.dist
@pytest.mark.parametrize(
    "optimizer",
    [name if name == "adamw" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS],
)
def test_stopped_on_4_workers_and_resumed_on_others(optimizer: str, tmp_path: Path) -> None:
    done = STEPS + 2
    ways: list[tuple[Update, Update, int]] = [("owner", "replicated", 3), ("replicated", "owner", 8)]
    for first, second, workers in ways:
        folder = tmp_path / first

        def begin(update: Update = first, folder: Path = folder) -> int:
            trainer = make(optimizer, update)
            go_on(trainer, done, folder)
            return trainer.position.steps

        def finish(update: Update = second, folder: Path = folder) -> dict[str, Any]:
            trainer = make(optimizer, update, seed=2)
            trainer.resume(folder)
            return go_on(trainer)

        assert launch(begin, devices="cpu:4", timeout_s=60) == done
        check_rest(launch(finish, devices=f"cpu:{workers}", timeout_s=60), optimizer, done)
        check_rest(finish("replicated"), optimizer, done)  # and in this process


class Recorded(Dataset[Any]):
    """Notes which examples are fetched."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 91

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        return data()[index]


def test_no_example_is_seen_twice_and_none_is_left_out(tmp_path: Path) -> None:
    whole, parts = Recorded(), Recorded()
    make().fit(whole, 1)
    trainer = make()
    trainer.fit(parts, 1, saving=Saving(tmp_path), on_step=lambda report: trainer.stop() if report.step == 1 else None)
    assert trainer.stopped
    assert len(parts.seen) == trainer.position.example == 48
    resumed = make()
    resumed.resume(tmp_path)
    resumed.fit(parts, 1)
    assert parts.seen == whole.seen
    assert set(Counter(parts.seen).values()) == {1}
    assert len(parts.seen) == 91


def test_saved_by_steps_or_epochs_and_told_of(tmp_path: Path) -> None:
    reports: list[SaveReport] = []
    order: list[str] = []
    make().fit(
        data(),
        2,
        saving=Saving(tmp_path / "steps", every=5, keep=3),
        on_step=lambda report: order.append("step"),
        on_epoch=lambda report: order.append("epoch"),
        on_save=reports.append,
    )
    assert [report.steps for report in reports] == [5, 10, 12]
    assert [report.path for report in reports] == checkpoints(tmp_path / "steps")
    assert all(report.nbytes > 0 and report.write_seconds > 0 for report in reports)
    assert order == [*["step"] * STEPS, "epoch"] * 2
    reports.clear()
    make().fit(data(), 3, saving=Saving(tmp_path / "epochs", every="epoch", keep=1), on_save=reports.append)
    assert [report.steps for report in reports] == [6, 12, 18]
    assert [path.stem for path in checkpoints(tmp_path / "epochs")] == ["checkpoint-00000018"]


def test_a_loop_of_ones_own_is_saved_and_resumed(tmp_path: Path) -> None:
    X, y = data().tensors
    batches = [(X[i : i + 16], y[i : i + 16]) for i in range(0, 80, 16)]

    def run(trainer: Trainer) -> list[float]:
        return [trainer.step(*batch) for batch in batches[trainer.position.step :]]

    whole = make()
    losses = run(whole)
    trainer = make()
    for batch in batches[:2]:
        trainer.step(*batch)
    trainer.save(tmp_path, wait=False)
    resumed = make(seed=2)
    trainer.save(tmp_path)  # waits for the one before
    resumed.resume(tmp_path)
    assert resumed.position.example == 32
    assert run(resumed) == losses[2:]
    assert resumed.fingerprint() == whole.fingerprint()


def test_saves_that_are_not_waited_for_follow_each_other(tmp_path: Path) -> None:
    trainer = make()
    for wait in [False] * 20 + [True]:
        trainer.save(tmp_path, wait=wait)  # the one before gives the folder back in time
    resumed = make(seed=2)
    resumed.resume(tmp_path)
    assert resumed.fingerprint() == trainer.fingerprint()


def test_a_callback_may_save_elsewhere(tmp_path: Path) -> None:
    trainer = make()

    def best(report: EpochReport) -> None:
        trainer.save(tmp_path / "best", keep=1)
        trainer.save(tmp_path / "run")

    trainer.fit(data(), 2, saving=Saving(tmp_path / "run", every=4), on_epoch=best)
    assert latest(tmp_path / "best") == tmp_path / "best" / "checkpoint-00000012.json"
    assert read_record(latest(tmp_path / "best"))["position"]["epoch"] == 2  # the epoch is closed
    assert latest(tmp_path / "run").stem == "checkpoint-00000012"


def test_plain_torch_reads_the_weights(tmp_path: Path) -> None:
    trainer = make()
    trainer.fit(data(), 1, saving=Saving(tmp_path))
    model = Net()
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "checkpoint-00000006.safetensors"))
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_training_goes_on_while_the_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, writing = threading.Event(), threading.Event()
    write = write_checkpoint

    def slow(folder: Path, snapshot: Snapshot, keep: int) -> Path:
        writing.set()
        assert may_write.wait(30)
        return write(folder, snapshot, keep)

    monkeypatch.setattr(saving, "write_checkpoint", slow)
    trainer, steps = make(), []

    def on_step(report: Any) -> None:
        steps.append(report.step)
        if report.step == 5:  # a step after the copy
            assert writing.wait(30)
            assert checkpoints(tmp_path) == []
            may_write.set()

    trainer.fit(data(), 1, saving=Saving(tmp_path, every=5, keep=9), on_step=on_step)
    assert may_write.is_set()
    assert [path.stem[-2:] for path in checkpoints(tmp_path)] == ["05", "06"]


def test_a_failure_of_the_writer_is_raised_by_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise OutputError("the disk is full")

    monkeypatch.setattr(saving, "write_checkpoint", fail)
    X, y = data().tensors
    calls: list[Callable[[Trainer], Any]] = [
        lambda trainer: trainer.step(X, y),
        lambda trainer: trainer.save(tmp_path),
        lambda trainer: trainer.fit(data()),
    ]
    for call in calls:
        trainer = make()
        trainer.save(tmp_path, wait=False)
        while not trainer._keeper._writer._at_work.done():  # type: ignore[union-attr]
            failed.wait(0.001)
        with pytest.raises(OutputError, match="the disk is full"):
            call(trainer)
    trainer = make()
    steps: list[int] = []
    with pytest.raises(OutputError, match="the disk is full"):
        trainer.fit(data(), 9, saving=Saving(tmp_path, every=1), on_step=lambda report: steps.append(report.step))
    assert len(steps) <= 2
    with pytest.raises(KeyError):  # what failed first is what is raised
        trainer.fit(data(), saving=Saving(tmp_path, every=1), on_step=lambda _: dict[str, None]()["nothing"])


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    code = f"""
import sys
from samegrad.files import FolderLock
lock = FolderLock(__import__("pathlib").Path({str(tmp_path)!r}))
print("locked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        for save in (lambda: make().save(tmp_path), lambda: make().fit(data(), saving=Saving(tmp_path))):
            with pytest.raises(OutputError, match="no other run writes to; got one that another run is saving to"):
                save()
        other.kill()
    first, second = make(), make()
    first.save(tmp_path)  # the lock has ended with its process

    def while_the_first_trains(report: Any) -> None:
        with pytest.raises(OutputError, match="no other run writes to"):
            second.save(tmp_path)

    first.fit(data(), saving=Saving(tmp_path), on_step=while_the_first_trains)
    second.resume(tmp_path)
    second.save(tmp_path)


def test_checkpoints_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    make().fit(data(), 2, saving=Saving(tmp_path, every=5, keep=9))
    before = sorted(tmp_path.iterdir())
    other, steps = make(), list[Any]()
    for save in (
        lambda: other.save(tmp_path),
        lambda: other.fit(data(), saving=Saving(tmp_path), on_step=steps.append),
    ):
        with pytest.raises(
            ConfigurationError, match=r"up to step 12, which would be replaced\. .* \(trainer\.resume\("
        ):
            save()
    assert steps == []
    assert sorted(tmp_path.iterdir()) == before
    other.resume(tmp_path / "checkpoint-00000005.json")
    other.save(tmp_path)  # goes on from there; what came later is of a line that is abandoned
    assert [path.stem for path in checkpoints(tmp_path)] == ["checkpoint-00000005"]


@pytest.mark.slow
@pytest.mark.dist
def test_ranks_wait_longer_for_the_disk_than_for_each_other(tmp_path: Path) -> None:
    def train() -> list[str]:
        write = write_checkpoint

        def slow(*arguments: Any) -> Path:
            assert not threading.Event().wait(4.5)  # longer than ranks wait
            return write(*arguments)

        vars(saving)["write_checkpoint"] = slow
        trainer = make()
        trainer.save(tmp_path, wait=False)
        trainer.step(*data().tensors)
        trainer.save(tmp_path)
        return [path.stem for path in checkpoints(tmp_path)]

    assert launch(train, devices="cpu:2", timeout_s=3) == ["checkpoint-00000000", "checkpoint-00000001"]


def test_a_disk_that_does_not_respond_is_given_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    responds = threading.Event()
    monkeypatch.setattr(keeper, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(saving, "write_checkpoint", lambda *_: responds.wait(30))
    trainer = make()
    trainer.save(tmp_path, wait=False)
    with pytest.raises(
        OutputError, match=r"completing the checkpoint before: .* not complete after 0 s; does the disk"
    ):
        trainer.resume(tmp_path)
    responds.set()


def test_what_differs_is_refused_by_name_and_nothing_is_changed(tmp_path: Path) -> None:
    make().save(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"recipe": Recipe(batch_size=8, shards=4)}, "batch_size is 16 there, 8 here; shards is 8 there, 4 here"),
        (
            {"width": 12},
            r"body\.0\.weight is \[10, 12\] float32 there, \[12, 12\] float32 here; body\.0\.bias is .* more",
        ),
        (
            {"optimizer": "amsgrad"},
            r"of the optimizer torch\.optim\.sgd\.SGD with group of .* this one is torch\.optim",
        ),
    ]
    for changed, message in cases:
        trainer = make(**changed, seed=5)
        before = trainer.fingerprint()
        with pytest.raises(ConfigurationError, match=message):
            trainer.resume(tmp_path)
        assert trainer.fingerprint() == before
    other = Trainer(nn.Linear(12, 4).double(), nn.functional.cross_entropy, OPTIMIZERS["momentum"], RECIPE)
    with pytest.raises(ConfigurationError, match=r"weight is missing there, \[4, 12\] float64 here; bias is"):
        other.resume(tmp_path)
    nothing = Trainer(Net(), nn.functional.cross_entropy, OPTIMIZERS["momentum"], RECIPE)
    with pytest.raises(ConfigurationError, match=r"holds the state of schedule besides .*; here nothing is remembered"):
        nothing.resume(tmp_path)


def test_another_data_set_in_the_middle_of_an_epoch_is_refused(tmp_path: Path) -> None:
    go_on(make(), 2, tmp_path)
    trainer = make()
    trainer.resume(tmp_path)
    with pytest.raises(ConfigurationError, match="epoch 0 was begun with a data set of 91 examples; this one has 90"):
        trainer.fit(data(90))


def test_another_version_of_torch_is_warned_of(tmp_path: Path) -> None:
    make().save(tmp_path)
    path = latest(tmp_path)
    path.write_bytes(sealed({**read_record(path), "torch_version": "1.0"}))
    with pytest.warns(UserWarning, match=r"written with torch 1\.0, this is "):
        make().resume(tmp_path)


def test_what_a_checkpoint_cannot_hold_is_named(tmp_path: Path) -> None:
    trainer = make()
    trainer.optimizer.param_groups[0]["mine"] = {"key": {1, 2}}
    with pytest.raises(
        ConfigurationError, match=r"cannot hold optimizer\.param_groups\.0\.mine\.key, .* builtins\.set"
    ):
        trainer.save(tmp_path)


def test_the_state_of_an_optimizer_comes_back_with_its_types(tmp_path: Path) -> None:
    trainer = make("amsgrad")
    trainer.fit(data(), 1, saving=Saving(tmp_path))
    resumed = make("amsgrad", seed=2)
    resumed.resume(tmp_path)
    before, after = trainer.optimizer.state_dict(), resumed.optimizer.state_dict()
    assert repr(before["param_groups"]) == repr(after["param_groups"])
    assert repr(before["state"]) == repr(after["state"])
    half = Trainer(nn.Linear(12, 4).bfloat16(), nn.functional.cross_entropy, OPTIMIZERS["momentum"], RECIPE)
    parameter = half.optimizer.param_groups[0]["params"][0]
    half.optimizer.state[parameter]["master"] = torch.full((4, 12), 1 + 2**-20)  # torch would round it to bfloat16
    half.save(tmp_path / "half")
    half.optimizer.state.clear()
    half.resume(tmp_path / "half")
    assert torch.equal(half.optimizer.state[parameter]["master"], torch.full((4, 12), 1 + 2**-20))


@pytest.mark.parametrize(
    "fields", [{"folder": ""}, {"every": 0}, {"every": "day"}, {"every": True}, {"keep": 0}, {"keep": 1.5}], ids=repr
)
def test_saving_is_checked_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"saving: {next(iter(fields))} must be "):
        Saving(**{"folder": "here", **fields})


@pytest.mark.dist
def test_one_rank_asks_and_all_stop_at_the_same_step(tmp_path: Path) -> None:
    def run() -> list[int]:
        trainer, worker = make(), context()
        assert worker is not None

        def on_step(report: Any) -> None:
            if worker.rank == 2 and report.step == 3:
                trainer.stop()

        trainer.fit(data(), 2, saving=Saving(tmp_path), on_step=on_step)
        return [json.loads(text) for text in trainer.world.group.gather(str(trainer.position.steps).encode(), "x")]

    assert launch(run, devices="cpu:3") == [5, 5, 5]
    assert latest(tmp_path).stem == "checkpoint-00000005"


@pytest.mark.dist
def test_a_checkpoint_that_is_being_written_when_the_function_returns_is_completed(tmp_path: Path) -> None:
    def run() -> None:
        make().save(tmp_path, wait=False)

    launch(run, devices="cpu:2")
    assert latest(tmp_path).stem == "checkpoint-00000000"


@pytest.mark.dist
def test_a_rank_that_saves_while_the_other_trains_is_named(tmp_path: Path) -> None:
    def run() -> None:
        trainer, worker = make(), context()
        assert worker is not None

        def on_step(report: Any) -> None:
            if worker.rank == 1 and report.step == 1:
                raise KeyError("only here")

        try:
            trainer.fit(data(), 1, on_step=on_step)
        except KeyError:
            trainer.save(tmp_path)

    with pytest.raises(CallMismatch, match="rank 1 is at 'saving: locking the folder'"):
        launch(run, devices="cpu:2", timeout_s=60)
    assert checkpoints(tmp_path) == []


@pytest.mark.dist
def test_what_rank_0_finds_out_is_raised_on_all_ranks(tmp_path: Path) -> None:
    def run() -> list[str]:
        trainer = make()
        found: list[str] = []
        for call, place in ((trainer.resume, "nowhere"), (trainer.save, "file")):
            try:
                call(tmp_path / place)
            except OutputError as error:
                found.append(str(error))
        everywhere = [json.loads(text) for text in trainer.world.group.gather(json.dumps(found).encode(), "comparing")]
        assert everywhere == [found] * trainer.world.size
        return found

    (tmp_path / "file").write_bytes(b"")
    nowhere, file = launch(run, devices="cpu:3", timeout_s=60)
    assert "got nothing: it does not exist" in nowhere
    assert "expected a folder that files can be written to; got: File exists" in file


@pytest.mark.dist
def test_optimizers_whose_groups_differ_over_ranks_are_refused() -> None:
    def run() -> None:
        worker = context()
        assert worker is not None
        order = slice(None, None, 1 if worker.rank == 0 else -1)

        def optimizer(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD([{"params": [parameter]} for parameter in list(parameters)[order]], lr=0.1)

        Trainer(nn.Linear(2, 2), nn.functional.mse_loss, optimizer, RECIPE)

    with pytest.raises(ConfigurationError, match=r"rank 0 has optimizer SGD .* of weight where rank 1 has .* of bias"):
        launch(run, devices="cpu:2", timeout_s=60)
