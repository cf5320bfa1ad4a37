"""What ``dsort serve`` was started with: one frozen value that everything in the service reads."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsort.errors import StorageError
from dsort.options import RunOptions
from dsort.storage.network_policy import FetchPolicy

__all__ = [
    "BODY_BYTES_MAX",
    "OBJECT_BYTES_MAX",
    "ServiceConfig",
    "database_url_of",
    "replica_name",
    "scratch_dir_of",
    "state_dir_of",
]

BODY_BYTES_MAX = 1 << 20
OBJECT_BYTES_MAX = 64 << 30
JOBS_RUNNING_MAX = 1
PLANS_RUNNING_MAX = 2
QUEUED_PER_OWNER_MAX = 1_000
REQUESTS_PER_MINUTE_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Everything that the operator of a service decides.

    ``run``: how each job is run, as for ``dsort start``; its ``root`` is the data root of the
    service, and ``run.fetch`` and ``run.overwrite`` stay None. ``allow``: what jobs may read and
    write besides that, as patterns of URIs: ``s3://team-*``, ``file:///data/*``; ``*`` is any text.
    ``ekm_allow_hosts``: hosts that external key maps may be fetched from, as patterns.
    ``webhook_allow_hosts``: the same of webhooks. ``reactions``: fields of ``Config`` for specs
    that do not have them, as AIStore's cluster configuration has them.
    """

    run: RunOptions
    state_dir: Path  # of this replica: logs, the embedded database
    database_url: str
    replica: str  # a name for this replica, the same after a restart
    host: str = "127.0.0.1"
    port: int = 8080
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    insecure: bool = False  # whether another address than loopback may be served without TLS
    no_auth: bool = False
    metrics_open: bool = False  # whether /metrics needs no token
    allow: tuple[str, ...] = ()
    ekm_allow_hosts: tuple[str, ...] = ()
    ekm_allow_private: bool = False
    webhook_allow_hosts: tuple[str, ...] = ()
    webhook_allow_private: bool = False
    reactions: Mapping[str, str] = field(default_factory=dict)
    jobs_running_max: int = JOBS_RUNNING_MAX  # of this replica
    plans_running_max: int = PLANS_RUNNING_MAX  # of this replica
    running_per_owner_max: int | None = None  # over all replicas
    queued_per_owner_max: int | None = QUEUED_PER_OWNER_MAX
    hand_over: bool = False  # whether running jobs go back into the queue when the service ends
    job_time_max_s: float | None = None  # of a job, from when it was taken from the queue
    body_bytes_max: int = BODY_BYTES_MAX
    object_bytes_max: int = OBJECT_BYTES_MAX  # that a request writes; 0: no request writes any
    log_level: str = "info"  # of the service and of its jobs
    requests_per_minute_max: int = REQUESTS_PER_MINUTE_MAX  # of one token, or one address without

    @property
    def webhook_policy(self) -> FetchPolicy:
        """Which servers webhooks may be on."""
        return FetchPolicy(hosts=self.webhook_allow_hosts, allow_private=self.webhook_allow_private)

    @property
    def scratch_dir(self) -> Path | None:
        """Where jobs have their scratch: never beside their outputs, for whose bucket that is, may
        write there. None: in the temporary directory, on a cluster that is not ours."""
        if self.run.scratch is not None or self.run.ray_address is not None:
            return self.run.scratch
        return scratch_dir_of(self.state_dir)

    @property
    def tls(self) -> bool:
        """Whether the service speaks HTTPS itself."""
        return self.ssl_certfile is not None


def state_dir_of(given: Path | None) -> Path:
    """The state directory: the given one, else ``dsort`` where a user's programs keep their state
    (XDG Base Directory Specification)."""
    if given is not None:
        return given.absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "dsort"


def scratch_dir_of(state_dir: Path) -> Path:
    """Where a service's jobs have their scratch, if nobody has said."""
    return state_dir.absolute() / "scratch"


def database_url_of(given: str | None, state_dir: Path) -> str:
    """The given URL, else that of the embedded database in the state directory."""
    return given or f"sqlite:///{state_dir / 'service.db'}"


def replica_name(state_dir: Path) -> str:
    """The name of the replica that has this state directory; made when it is first asked for."""
    file = state_dir / "replica"
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), file.open("x", encoding="ascii") as new:
            new.write(f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}\n")
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StorageError(
            f"the state directory {state_dir} cannot be used: {error.strerror}",
            hint="name another one with --state-dir",
        ) from None
