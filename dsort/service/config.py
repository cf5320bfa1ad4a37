"""The configuration of ``dsort serve``, a frozen value that the whole service reads; and the policy
of a service for specs that come over the network."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from msgspec import Struct, field

from dsort.errors import SpecError, SpecProblem, StorageError
from dsort.naming.patterns import has_wildcard, wildcard_match
from dsort.options import RunOptions
from dsort.settings import Settings
from dsort.storage.network_policy import FetchPolicy, check_host_pattern
from dsort.storage.ref import BucketRef
from dsort.storage.registry import split_scheme, store_of

BODY_BYTES_MAX = 1 << 20
OBJECT_BYTES_MAX = 64 << 30


class ServiceConfig(Struct, frozen=True, kw_only=True):
    """All settings that the operator of a service decides.

    ``run``: how each job is run, as for ``dsort start``; its ``root`` is the data root of the
    service, and ``run.fetch`` and ``run.overwrite`` stay None. ``allow``: other places that jobs
    may read and write, as patterns of URIs: ``s3://team-*``, ``file:///data/*``; ``*`` is any text.
    ``ekm_allow_hosts``: patterns of hosts from which external key maps may be fetched.
    ``webhook_allow_hosts``: patterns of hosts that webhooks may call. ``reactions``: fields of a
    spec's ``Config`` by name, for specs that do not set these fields.
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
    jobs_running_max: int = 1  # of this replica
    plans_running_max: int = 2  # of this replica
    running_per_owner_max: int | None = None  # over all replicas
    queued_per_owner_max: int | None = 1_000
    hand_over: bool = False  # whether running jobs go back into the queue when the service ends
    # The longest time of a job, in seconds from the moment when it leaves the queue.
    job_time_max_s: float | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    # The most bytes of an object that a request writes; 0: no request may write objects.
    object_bytes_max: int = OBJECT_BYTES_MAX
    log_level: str = "info"  # of the service and of its jobs
    # For each token, and for each address without a token.
    requests_per_minute_max: int = 60_000

    @property
    def webhook_policy(self) -> FetchPolicy:
        """The policy for the servers that webhooks may call."""
        return FetchPolicy(hosts=self.webhook_allow_hosts, allow_private=self.webhook_allow_private)

    @property
    def scratch_dir(self) -> Path | None:
        """The directory for the scratch of jobs: never beside their outputs, because others may
        write to an output bucket. None: the temporary directory of each node, on a cluster that the
        service did not start."""
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
    """The name of the replica that has this state directory. The first call makes the name."""
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


_FILE: Final = "file"


class SpecPolicy(Struct, frozen=True, kw_only=True):
    """The places that a spec may name. The constructor raises ``SpecError`` for invalid patterns.

    ``root``: the directory that has the buckets with bare names. ``allow``: other places that may
    be read and written, as patterns of URIs: ``s3://team-*``, ``s3://bucket/train``,
    ``https://data.example``, ``file:///mnt/data``. ``*`` is any text, ``?`` one character. A
    wildcard in the name of a bucket matches only characters of this name; hosts have no wildcards.
    All places below an allowed place are allowed, too. ``ekm_allow_hosts``, ``ekm_allow_private``:
    where external key maps may come from; see :class:`~dsort.storage.network_policy.FetchPolicy`.
    ``denied``: directories below allowed ones that no spec may use, because the service keeps its
    state there. ``settings``: how stores are reached.
    """

    root: Path
    allow: tuple[str, ...] = ()
    ekm_allow_hosts: tuple[str, ...] = ()
    ekm_allow_private: bool = False
    denied: tuple[Path, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        problems = []
        for pattern in self.allow:
            written = split_scheme(pattern)
            if written is None or not (written[0] == _FILE or store_of(written[0])):
                hint = 'e.g. "s3://team-*", "file:///mnt/data" or "https://data.example.com"'
                problems.append(SpecProblem("allow", f'"{pattern}" is no pattern of URIs', hint))
            elif written[0] == _FILE and not written[1].startswith("/"):
                problems.append(SpecProblem("allow", f'"{pattern}" is not absolute'))
            elif _is_web(written[0]) and has_wildcard(written[1].partition("/")[0]):
                hint = "a web server may redirect to any address: name the hosts that you trust"
                problems.append(SpecProblem("allow", f'"{pattern}" names no host', hint))
        problems += host_problems("ekm_allow_host", self.ekm_allow_hosts)
        if os.path.realpath(self.root) in map(os.path.realpath, self.denied):
            hint = "name other directories for state and scratch: --state-dir, --scratch"
            text = "is where the service keeps its state, or the scratch of its jobs"
            problems.append(SpecProblem("root", text, hint))
        if problems:
            raise SpecError(problems)

    def fetch_policy(self) -> FetchPolicy:
        """This policy as a plain value for the process that runs the job (``RunOptions.fetch``)."""
        root = os.path.realpath(self.root)
        roots: list[str] = [root]
        patterns: list[str] = []
        for pattern in self.allow:
            scheme, rest = split_scheme(pattern) or ("", "")
            if scheme != _FILE:
                continue
            path = unquote(rest).removesuffix("/*").rstrip("/") or "/"
            (patterns if has_wildcard(path) else roots).append(_real_pattern(path))
        denied = [os.path.realpath(each) for each in self.denied]
        return FetchPolicy(
            roots=tuple(roots),
            patterns=tuple(patterns),
            base=root,
            # A root inside the state directory is not denied.
            denied=tuple(each for each in denied if not f"{root}/".startswith(f"{each}/")),
            hosts=self.ekm_allow_hosts,
            allow_private=self.ekm_allow_private,
        )

    def allows_store(self, ref: BucketRef) -> bool:
        """Whether one of the patterns allows a bucket that is not a directory."""
        return any(_is_under(pattern, ref) for pattern in self.allow)


def host_problems(field: str, hosts: Iterable[str]) -> list[SpecProblem]:
    """The problems of patterns of web servers; see ``FetchPolicy.hosts``."""
    problems = []
    for host in hosts:
        try:
            check_host_pattern(host)
        except ValueError as error:
            hint = 'e.g. "maps.example.com", "maps.example.com:8443" or "*.example.com:*"'
            problems.append(SpecProblem(field, f'"{host}" {error}', hint))
    return problems


def policy_of(config: ServiceConfig) -> SpecPolicy:
    """The policy of a service: the directories of its state and its scratch are denied, even inside
    an allowed place."""
    run = config.run
    private = (config.state_dir, *filter(None, [run.scratch]))
    return SpecPolicy(
        root=run.root,
        allow=config.allow,
        ekm_allow_hosts=config.ekm_allow_hosts,
        ekm_allow_private=config.ekm_allow_private,
        denied=private,
        settings=run.settings,
    )


def _real_pattern(path: str) -> str:
    """``path`` with the links before its first wildcard resolved."""
    parts = path.split("/")
    literal = next((n for n, part in enumerate(parts) if has_wildcard(part)), len(parts))
    real = os.path.realpath("/".join(parts[:literal]) or "/")
    return "/".join((real.rstrip("/"), *parts[literal:])) or "/"


def _is_web(scheme: str) -> bool:
    return scheme in ("http", "https")


def _is_under(pattern: str, ref: BucketRef) -> bool:
    scheme, rest = split_scheme(pattern) or ("", "")
    if scheme != ref.scheme:
        return False
    bucket, _, prefix = unquote(rest).partition("/")
    ref_bucket, _, ref_prefix = ref.path.partition("/")
    if _is_web(scheme):
        bucket = bucket.lower()
    if not wildcard_match(bucket, ref_bucket):
        return False
    prefix = prefix.rstrip("/")
    return (
        not prefix
        or wildcard_match(prefix, ref_prefix)
        or wildcard_match(f"{prefix}/*", ref_prefix)
    )
