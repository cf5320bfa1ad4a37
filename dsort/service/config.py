"""The configuration with which ``dsort serve`` was started: one frozen value that the whole service
reads."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from dsort.errors import StorageError
from dsort.options import RunOptions
from dsort.storage.network_policy import FetchPolicy

BODY_BYTES_MAX = 1 << 20
OBJECT_BYTES_MAX = 64 << 30
JOBS_RUNNING_MAX = 1
PLANS_RUNNING_MAX = 2
QUEUED_PER_OWNER_MAX = 1_000
REQUESTS_PER_MINUTE_MAX = 60_000


class ServiceConfig(Struct, frozen=True, kw_only=True):
    """All settings of a service that its operator decides.

    ``run``: how each job is run, as for ``dsort start``; its ``root`` is the data root of the
    service, and ``run.fetch`` and ``run.overwrite`` stay None. ``allow``: what jobs may read and
    write besides that, as patterns of URIs: ``s3://team-*``, ``file:///data/*``; ``*`` is any text.
    ``ekm_allow_hosts``: hosts that external key maps may be fetched from, as patterns.
    ``webhook_allow_hosts``: hosts that webhooks may be on, likewise. ``reactions``: fields of
    ``Config`` for specs that do not set them, with the names that they have there.
    """

    run: RunOptions
    state_dir: Path  # of this replica: logs, the embedded database
    database_url: str
    replica: str  # a name for this replica, the same after a restart
    host: str = "127.0.0.1"
    port: int = 8080
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    insecure: bool = False  # whether addresses other than loopback may be served without TLS
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
    # In seconds, of a job, from when it was taken from the queue.
    job_time_max_s: float | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    # Of an object that a request writes; 0: no request may write any.
    object_bytes_max: int = OBJECT_BYTES_MAX
    log_level: str = "info"  # of the service and of its jobs
    # Of one token, or of one address without a token.
    requests_per_minute_max: int = REQUESTS_PER_MINUTE_MAX

    @property
    def webhook_policy(self) -> FetchPolicy:
        """The policy for the servers that webhooks may be on."""
        return FetchPolicy(hosts=self.webhook_allow_hosts, allow_private=self.webhook_allow_private)

    @property
    def scratch_dir(self) -> Path | None:
        """The directory for the scratch of jobs: never beside their outputs, because others may
        write to an output bucket. None: in the temporary directory, on a cluster that is not
        ours."""
        if self.run.scratch is not None or self.run.ray_address is not None:
            return self.run.scratch
        return scratch_dir_of(self.state_dir)

    @property
    def tls(self) -> bool:
        """Whether the service itself serves HTTPS."""
        return self.ssl_certfile is not None


def state_dir_of(given: Path | None) -> Path:
    """The state directory: ``given``, else ``dsort`` in the user's directory for state (XDG Base
    Directory Specification)."""
    if given is not None:
        return given.absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "dsort"


def scratch_dir_of(state_dir: Path) -> Path:
    """The directory for the scratch of a service's jobs, if none is configured."""
    return state_dir.absolute() / "scratch"


def database_url_of(given: str | None, state_dir: Path) -> str:
    """``given``, else the URL of the embedded database in the state directory."""
    return given or f"sqlite:///{state_dir / 'service.db'}"


def replica_name(state_dir: Path) -> str:
    """The name of the replica that has this state directory; made on the first call."""
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
