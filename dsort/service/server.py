"""Runs the service: its socket, uvicorn, the first messages, and the end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dsort.errors import SpecError, StorageError
from dsort.log_lines import LineFormatter, log_to_stderr
from dsort.service.api.app import create_app, is_loopback
from dsort.service.config import ServiceConfig, host_problems
from dsort.service.service import NO_GUEST, Guest, Service

BACKLOG = 2048
SHUTDOWN_S_MAX = 10
KEEP_ALIVE_S = 65
PROBE_AFTER_S, PROBE_EACH_S, PROBES_MAX = 60, 15, 4
"""TCP probes a silent connection, and ends it two minutes after its client has disappeared.
Otherwise the connection would hold a file descriptor, and perhaps the token's turn to write an
object."""
CONNECTIONS_MAX = 4096
"""Each connection holds a file descriptor. Further clients get 503. The proxy in front limits the
time that a body takes."""
HEAD_S_MAX = 30.0


class HeadTimer(H11Protocol):
    """uvicorn's HTTP/1.1, which limits the head of a request to 64 KiB, and closes connections that
    are idle after an answer. Here the head of a request also has to arrive within ``HEAD_S_MAX``
    seconds, counted from the connection, or from the first byte after an answer."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._closing = self.loop.call_later(HEAD_S_MAX, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._closing is None:
            self._closing = self.loop.call_later(HEAD_S_MAX, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class _Server(uvicorn.Server):
    """A server that ends its event streams when it stops, because they would not end otherwise."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.feed.end()
        self._service.dispatcher.rest()
        super().handle_exit(sig, frame)


def run_service(
    config: ServiceConfig,
    *,
    say: Callable[[str], None],
    guest: Guest | None = None,
    url_file: Path | None = None,
    access_log: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C, with the routes of ``guest`` beside the service's own. ``say``
    is called with messages for the user.

    ``SpecError``: the configuration is not safe, or wrong; ``StorageError``: the address, the state
    directory or the database cannot be used.
    """
    _refuse_unsafe(config)
    with (
        _log_to_stderr(config.log_level),
        _sigterm_like_ctrl_c(),
        _alone(config.state_dir),
        _socket(config) as listening,
        Service(config, guest or NO_GUEST) as service,
    ):
        _refuse_without_tokens(config, service, say)
        url = _url(config, listening)
        service.start()
        server = _Server(
            uvicorn.Config(
                create_app(service),
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                log_config=None,
                http=HeadTimer,
                limit_concurrency=CONNECTIONS_MAX,
                # The service has no WebSockets, to which the limits of requests would not apply.
                ws="none",
                access_log=access_log,
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S_MAX,
            ),
            service,
            ready=lambda: _tell_ready(config, url, url_file, say),
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it ends
            server.run(sockets=[listening])
        running = sum(row.replica == config.replica for row in service.store.running())
    if handed := service.dispatcher.handed_over:
        jobs = "1 job waits" if handed == 1 else f"{handed} jobs wait"
        say(f"stopped; {jobs} in the queue for the next `dsort serve`")
    elif running:
        jobs = "1 job runs on" if running == 1 else f"{running} jobs run on"
        say(f"stopped; {jobs}, and the next `dsort serve` finds them again")


def _refuse_unsafe(config: ServiceConfig) -> None:
    if config.no_auth and not is_loopback(config.host):
        raise SpecError(
            f"--no-auth lets every client that reaches {config.host} run jobs",
            hint="listen on 127.0.0.1, or make tokens: `dsort token add NAME --role admin`",
        )
    if not (config.tls or config.insecure or is_loopback(config.host)):
        raise SpecError(
            f"on {config.host} without TLS, others on the network can read tokens",
            hint="give --ssl-certfile and --ssl-keyfile; or --insecure, where a proxy in front has "
            "TLS or all programs on the network are trusted",
        )
    if not config.run.root.is_dir():
        raise SpecError(
            f"the data root {config.run.root} is no directory",
            hint="make the directory, or name another with --root",
        )
    problems = host_problems("webhook_allow_host", config.webhook_allow_hosts)
    if problems:
        raise SpecError(problems)
    if (config.ssl_certfile is None) != (config.ssl_keyfile is None):
        raise SpecError("--ssl-certfile needs --ssl-keyfile, and the reverse")


def _refuse_without_tokens(
    config: ServiceConfig, service: Service, say: Callable[[str], None]
) -> None:
    if config.no_auth:
        return
    if service.tokens.any():
        return
    hint = "`dsort token add NAME --role admin` makes one"
    if not is_loopback(config.host):
        raise SpecError(f"there is no token yet, and {config.host} is not loopback", hint=hint)
    say(f"there is no token yet, and every request needs one: {hint} (or start with --no-auth)")


@contextlib.contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt``. Once uvicorn has ended, it raises the signal again,
    which would otherwise end this process before the service is closed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Ensure that no other service uses this state directory, because two services of one name
    would take each other's jobs."""
    # The file stays: a lock on a file that has lost its name keeps no other service out.
    with (state_dir / "lock").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"another service runs with the state directory {state_dir}",
                hint="give each its own --state-dir; replicas share a PostgreSQL: --database",
            ) from None
        yield


@contextlib.contextmanager
def _socket(config: ServiceConfig) -> Iterator[socket.socket]:
    """The listening socket. The socket is bound before the threads start, so that the number of
    port 0 is known for the first message, and an address in use is reported at once."""
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        # Named TCP, or asyncio leaves Nagle's algorithm on: 40 ms for each answer.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise StorageError(f"cannot listen on {config.host}: {error.strerror or error}") from None
    with listening:
        # Else a restart would wait a minute for the closed connections of the service before.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EACH_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)
        try:
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError as error:
            raise StorageError(
                f"cannot listen on {config.host}:{config.port}: {error.strerror}",
                hint="another program may use this port; choose a port with --port",
            ) from None
        yield listening


def _url(config: ServiceConfig, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.tls else 'http'}://{shown}:{port}"


def _tell_ready(
    config: ServiceConfig, url: str, url_file: Path | None, say: Callable[[str], None]
) -> None:
    say(f"dsort serves {url}")
    say(f"  data root  {config.run.root}")
    say(f"  state      {config.state_dir}")
    if config.no_auth:
        say("  no tokens: every client that reaches this address may do everything")
    elif config.ssl_certfile is None and not is_loopback(config.host):
        say("  no TLS: others on the network can read tokens, unless a proxy in front has TLS")
    if url_file is not None:
        # By a rename, because scripts wait for the file and read it at once.
        beside = url_file.with_name(f".{url_file.name}.{os.getpid()}")
        beside.write_text(f"{url}\n", encoding="utf-8")
        beside.replace(url_file)


@contextlib.contextmanager
def _log_to_stderr(level: str) -> Iterator[None]:
    """Log lines of the service and warnings of uvicorn; requests only if configured."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    with log_to_stderr(level, "warning", LineFormatter()):
        yield
