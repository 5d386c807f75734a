"""What commands say of the servers of a key-value store: where they are, and the secret that they share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError
from samegrad.trainer.job import TrainJob

if TYPE_CHECKING:
    from samegrad.kvstore.own_servers import ServerList

__all__ = ["read_secret", "servers_of"]

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


@contextlib.contextmanager
def servers_of(job: TrainJob) -> Iterator[ServerList | None]:
    """The servers of `job`, started if need be, and then ended; None if it has none."""
    if job.servers is None and job.server_addresses is None:
        yield None
        return
    from samegrad.kvstore.own_servers import ServerList, own_servers  # here: it needs torch

    if job.servers is not None:
        with own_servers(job.servers) as servers:
            yield servers
    else:
        yield ServerList(job.server_addresses or (), read_secret(job.secret_file))
