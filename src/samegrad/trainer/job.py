"""What `samegrad train` does, as a record, and the function that does it in every worker.

This module does not need torch, so that the command line can make and check the record and hand the function to the
workers; the function imports the rest where it runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samegrad.data import DATA
from samegrad.errors import ConfigurationError
from samegrad.recipe import Mode, Precision, Recipe
from samegrad.storing.packing import unpack
from samegrad.trainer.checkpoint_record import find_checkpoint, read_record
from samegrad.trainer.learning_rate import RATE_RULES, RateRule, scaled_rate

if TYPE_CHECKING:
    from samegrad.kvstore.own_servers import ServerList
    from samegrad.topology.graph import Topology

__all__ = [
    "AUTO",
    "LEARNING_RATES",
    "MODEL_NAMES",
    "MOST_SERVERS",
    "PRELOAD",
    "REMEMBERED",
    "UPDATES",
    "SaveEvery",
    "TrainJob",
    "Update",
    "remembered_job",
    "resumed_job",
    "run_train_job",
    "topology_of",
]

Update = Literal["auto", "replicated", "owner"]
SaveEvery = int | Literal["epoch"] | None

UPDATES: tuple[Update, ...] = ("auto", "replicated", "owner")
"""How parameters are updated; "auto" is "owner" for several CPU workers of one host, else "replicated"."""

MODEL_NAMES = ("lenet", "resnet18", "mlp")
"""The names of `samegrad.models.MODELS`, which needs torch; a test compares the two."""

LEARNING_RATES: Mapping[str, float] = {"sgd": 0.2, "momentum": 0.02, "adamw": 0.001}
"""Optimizer on the command line -> learning rate if none is given. "momentum" is SGD with momentum 0.9."""

PRELOAD = ("samegrad.trainer.run",)
"""What to import before workers are forked for `run_train_job`; it brings in torch, but no compiler, see `start_up`."""


AUTO = "auto"
"""As a strategy, the trainer chooses; as shares, it measures."""

MOST_SERVERS = 64
"""How many servers `samegrad train` starts at most."""

REMEMBERED = "job"
"""The name under which a checkpoint holds the job."""

_LASTING = (
    *("model", "data", "data_dir", "batch_size", "shards", "lr", "optimizer", "epochs", "seed", "threads"),
    *("lr_rule", "base_batch_size", "warmup_epochs"),
    *("save_every", "keep", "tensorboard"),
    *("precision", "compile"),
    *("strategy", "inexact", "consistency", "staleness"),
)


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One training run; its fields are plain JSON values, checked when it is made.

    batch_size, shards, seed, threads, precision, compile, consistency, staleness: those of the `recipe`, which is exact
        unless `inexact`.
    lr: None means that of `LEARNING_RATES`.
    lr_rule, base_batch_size: see `scaled_rate`. warmup_epochs: over how many epochs the rate grows from `lr` to the
        scaled one; may be a fraction.
    data_dir: a folder with the files of the data set; None where it is not read from files, or for the default folder.
    strategy: how the devices' gradients are added up, one of `samegrad.strategy.STRATEGIES`, or a `Strategy` as JSON
        text; "auto" leaves it to the trainer.
    topology: what joins the devices, for the choice of a strategy, as TOML; None to measure it.
    shares: how fast each device is, in the order of the devices; "auto" to measure it; None for equal ones.
    out: the folder for metrics and checkpoints; None to write nothing.
    loader_workers: processes that read for each device, see `samegrad.trainer.loading.Loading`.
    save_every, keep: see `samegrad.trainer.saving.Saving`. tensorboard: whether to write events, into a folder of
        `out`. resume: the checkpoint to go on from, or its folder. trace: the file for a timeline.
    check_every: after how many steps the models of all devices are compared; None for never.
    servers, server_addresses: how many servers the command starts to add gradients up, or those that there are;
        secret_file: what these share with the workers; tls_ca: who has signed their certificates, if they have any. The
        strategy is "servers" then.
    """

    model: str = "lenet"
    data: str = "sample-digits"
    data_dir: str | None = None
    batch_size: int = 32
    shards: int = 8
    lr: float | None = None
    lr_rule: RateRule = "none"
    base_batch_size: int = 256
    warmup_epochs: float = 0.0
    optimizer: str = "sgd"
    epochs: int = 15
    seed: int = 0
    threads: int = 1
    precision: Precision = "fp32"
    compile: bool = False
    inexact: bool = False
    consistency: Mode = "sync"
    staleness: int = 0
    strategy: str = AUTO
    topology: str | None = None
    shares: tuple[float, ...] | Literal["auto"] | None = None
    update: Update = "auto"
    loader_workers: int = 0
    out: str | None = None
    save_every: SaveEvery = None
    keep: int = 2
    tensorboard: bool = False
    resume: str | None = None
    trace: str | None = None
    check_every: int | None = None
    servers: int | None = None
    server_addresses: tuple[str, ...] | None = None
    secret_file: str | None = None
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        choices = (("model", MODEL_NAMES), ("data", DATA), ("optimizer", LEARNING_RATES), ("update", UPDATES))
        for name, known in (*choices, ("lr_rule", RATE_RULES)):
            if getattr(self, name) not in known:
                option, value = name.replace("_", "-"), getattr(self, name)
                raise ConfigurationError(f"--{option}: expected one of {', '.join(known)}; got {value!r}")
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ConfigurationError(f"--epochs: expected a whole number of at least 1; got {self.epochs!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigurationError(f"--lr: expected a positive number; got {self.lr!r}")
        if self.resume is None:  # else it was checked when the run was begun
            self._check_scaling()
        if self.resume is None:
            self.check_strategy()
        self._check_servers()
        if self.loader_workers < 0:
            raise ConfigurationError(
                f"--loader-workers: expected a whole number of at least 0; got {self.loader_workers!r}"
            )
        if self.keep < 1:
            raise ConfigurationError(f"--keep: expected a whole number of at least 1; got {self.keep!r}")
        if self.save_every is not None and self.out is None:
            raise ConfigurationError("--save-every needs a folder to save into: give --out DIR")
        if self.tensorboard and self.out is None:
            raise ConfigurationError("--tensorboard needs a folder to write into: give --out DIR")
        if self.out == "":
            raise ConfigurationError("--out: expected the name of a folder; got an empty name")
        _ = self.recipe

    def _check_servers(self) -> None:
        if self.consistency != "sync":
            self._check_consistency()
        if self.tls_ca is not None and self.server_addresses is None:
            raise ConfigurationError("--tls-ca is for --server-addresses; give these as well, or leave it out")
        if self.servers is None and self.server_addresses is None:
            if self.secret_file is not None:
                raise ConfigurationError("--secret-file is for --server-addresses; give these as well, or leave it out")
            return
        option = "--servers" if self.server_addresses is None else "--server-addresses"
        if self.servers is not None and self.server_addresses is not None:
            raise ConfigurationError(
                "--servers starts servers, --server-addresses names those that there are; give one"
            )
        if self.servers is not None and not 1 <= self.servers <= MOST_SERVERS:
            raise ConfigurationError(f"--servers: expected a number from 1 to {MOST_SERVERS}; got {self.servers!r}")
        if self.strategy not in (AUTO, "servers"):
            raise ConfigurationError(f"{option} is for --strategy servers; got --strategy {self.strategy[:40]}")
        if self.update == "owner":
            raise ConfigurationError(f"{option} needs --update replicated, or auto; got owner")

    def _check_consistency(self) -> None:
        wrong = {
            "--warmup-epochs; leave it out": self.warmup_epochs > 0,
            "--shares: a minibatch goes to whoever is free; leave it out": self.shares is not None,
            "--check-every: models differ within an epoch; leave it out": self.check_every is not None,
            "--save-every N: models differ within an epoch; say --save-every epoch": isinstance(self.save_every, int),
            "a run without servers; give --servers or --server-addresses": self.resume is None
            and self.servers is None
            and self.server_addresses is None,
        }
        for what, is_so in wrong.items():
            if is_so:
                raise ConfigurationError(f"--consistency {self.consistency} contradicts {what}")

    def check_strategy(self) -> None:
        """Raises ConfigurationError for a strategy that there is not, or that the recipe does not allow, or beside a
        topology to choose by; of a job that is resumed, to be called when all of it is known."""
        if self.topology is not None and self.strategy != AUTO:
            raise ConfigurationError(
                f"--topology is for choosing a strategy; with --strategy {self.strategy[:80]} there is nothing to "
                f"choose. Leave one of both out"
            )
        if self.strategy != AUTO:
            from samegrad.strategy import Strategy  # which needs numpy: a tenth of a second

            Strategy.of(self.strategy).check(exact=not self.inexact)

    @property
    def recipe(self) -> Recipe:
        """All that determines the result, besides model, data and optimizer."""
        return Recipe(
            batch_size=self.batch_size,
            shards=self.shards,
            seed=self.seed,
            threads=self.threads,
            precision=self.precision,
            compile=self.compile,
            exact=not self.inexact,
            consistency=self.consistency,
            staleness=self.staleness,
        )

    @property
    def learning_rate(self) -> float:
        """`lr`, or the one that suits the optimizer."""
        return LEARNING_RATES[self.optimizer] if self.lr is None else self.lr

    @property
    def scaled_rate(self) -> float:
        """The learning rate of the optimizer: `learning_rate`, scaled by `lr_rule`."""
        return scaled_rate(self.learning_rate, self.batch_size, self.base_batch_size, self.lr_rule)

    def _check_scaling(self) -> None:
        if not isinstance(self.base_batch_size, int) or self.base_batch_size < 1:
            raise ConfigurationError(
                f"--base-batch-size: expected a whole number of at least 1; got {self.base_batch_size!r}"
            )
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise ConfigurationError(
                f"--warmup-epochs: expected a number from 0 to {self.epochs}, the epochs of the run; got "
                f"{self.warmup_epochs:g}"
            )
        if self.lr_rule == "none" and (self.warmup_epochs > 0 or self.base_batch_size != 256):
            option = "--warmup-epochs" if self.warmup_epochs > 0 else "--base-batch-size"
            raise ConfigurationError(
                f"{option} has a part only where a rule scales the learning rate; got --lr-rule none. Give --lr-rule "
                f"linear or sqrt as well, or leave {option} out"
            )

    def lasting(self) -> dict[str, Any]:
        """The fields that a checkpoint of this job holds: all but those which may be others when it is resumed."""
        return {name: getattr(self, name) for name in _LASTING}


def topology_of(text: str) -> Topology:
    """The topology of a job. Raises TopologyError."""
    from samegrad.topology.files import from_toml

    return from_toml(text, "--topology")


def resumed_job(place: str) -> tuple[TrainJob, Path]:
    """The job of the checkpoint `place` (or the newest one in that folder), as far as it holds it, and its folder.

    Raises OutputError if there is no such checkpoint, ConfigurationError if `samegrad train` has not written it or if
    nothing is left to do.
    """
    path = find_checkpoint(place)
    record = read_record(path)
    if REMEMBERED not in record["remembered"]:
        raise ConfigurationError(
            f"--resume {place}: the checkpoint was written by a script, not by samegrad train; resume it there with "
            f"Trainer.resume"
        )
    job = remembered_job(record, path)
    if record["position"]["epoch"] >= job.epochs:
        raise ConfigurationError(
            f"--resume {place}: all {job.epochs} epochs are done; nothing is left to do. "
            f"A run cannot be made longer: begin a new one with more --epochs"
        )
    return job, path.parent


def remembered_job(record: Mapping[str, Any], path: Path) -> TrainJob:
    """The job that `samegrad train` has put into the checkpoint `record`, read from `path`, to be taken up there.

    Raises ConfigurationError for one that this version does not know.
    """
    from samegrad import __version__

    try:
        fields = unpack(record["remembered"][REMEMBERED])
        unknown = sorted(set(fields) - set(_LASTING))
        if not unknown:
            return TrainJob(**fields, out=str(path.parent), resume=str(path))
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{path}: expected a job of samegrad train; got one with other values ({type(error).__name__}: {error})"
        ) from error
    raise ConfigurationError(
        f"{path}: expected a job with the fields of this samegrad ({__version__}); it also has "
        f"{', '.join(unknown)}, written by samegrad {record['samegrad_version']}. Use that version of samegrad"
    )


def run_train_job(job: TrainJob, servers: ServerList | None = None) -> dict[str, Any]:
    """Trains as `job` says; called in every worker of a launch alike. Returns the report, plain JSON values.

    servers: those of `job`, once they run.

    Rank 0 hands records to `samegrad.workers.report` meanwhile; each has an "event": see `samegrad.trainer.run`.
    """
    from samegrad.trainer.run import run

    return run(job, servers)
