"""A key-value store with updates: many workers push contributions to many servers and pull what became of them.

What is decided is pure: `placement` (which server holds what), `consistency` (who may read when), `contributions` (sums
along the tree), `updaters`, `job` (what workers must agree on), `slices`, and `state`, which is a server without its
sockets. `keeping` collects the state of a store, `store_files` keeps it on a disk.
`framing` and `messages` say how it is told. Around it: `link`, `tls`, `handshake`, `server`, `desks` and `connection`
over TCP, with a `ring` in shared memory where both are on one host; `local` within a process; `store`, which workers
call; `rendezvous`, where servers are found; `roles`, where the ranks of one job are workers and servers; `exchange`, by
which a Trainer uses it; `own_servers`, which end with who has started them.
"""

from samegrad.kvstore.handles import Handle
from samegrad.kvstore.roles import work_or_serve
from samegrad.kvstore.server import Server
from samegrad.kvstore.store import KVStore
from samegrad.kvstore.tls import client_tls, server_tls
from samegrad.kvstore.updaters import Updater
from samegrad.recipe import MODES, Mode

__all__ = ["MODES", "Handle", "KVStore", "Mode", "Server", "Updater", "client_tls", "server_tls", "work_or_serve"]
