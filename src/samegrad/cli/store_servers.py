"""What commands say of the servers of a key-value store: where they are, and the secret that they share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError
from samegrad.trainer.job import TrainJob
from samegrad.workers import place_in_job
from samegrad.workers.settings import Settings

if TYPE_CHECKING:
    from samegrad.kvstore.own_servers import ServerList
    from samegrad.kvstore.roles import Role

__all__ = ["read_secret", "role_of", "servers_of"]

_SHORTEST = 8  # characters


def read_secret(name: str | None) -> str | None:
    """The secret in the file `name`, without the white space around it. Raises ConfigurationError."""
    if name is None:
        return None
    try:
        secret = Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--secret-file {name}: cannot be read: {error}") from None
    if len(secret) < _SHORTEST:
        raise ConfigurationError(
            f"--secret-file {name}: expected a secret of at least {_SHORTEST} characters; got {len(secret)}. Make one "
            f"with: openssl rand -hex 32 > {name}"
        )
    return secret


def role_of(job: TrainJob, devices: str, start_timeout_s: float) -> Role:
    """What this rank does in a job of torchrun whose last `job.servers` ranks serve."""
    from samegrad.kvstore.roles import take_role  # here: it needs torch

    settings = Settings((devices,), job.threads, start_timeout_s=start_timeout_s)
    return take_role(job.servers or 0, read_secret(job.secret_file), settings)


@contextlib.contextmanager
def servers_of(job: TrainJob, devices: str, start_timeout_s: float) -> Iterator[ServerList | None]:
    """The servers of `job`, started if need be, and then ended; None if it has none.

    In a job of torchrun that has `job.servers`, these are its last ranks, and this is one of the others.
    """
    if job.servers is None and job.server_addresses is None:
        yield None
        return
    from samegrad.kvstore.own_servers import ServerList, own_servers  # here: it needs torch

    if job.servers is not None and place_in_job() is not None:
        role = role_of(job, devices, start_timeout_s)
        yield ServerList(tuple(role.addresses()), role.secret)
    elif job.servers is not None:
        if job.secret_file is not None:
            raise ConfigurationError(
                "--secret-file is for --server-addresses, and for --servers in a job of torchrun; --servers alone "
                "makes a new secret each time"
            )
        with own_servers(job.servers) as servers:
            yield servers
    else:
        yield ServerList(job.server_addresses or (), read_secret(job.secret_file), job.tls_ca)
