"""Starts or joins a Ray, and leaves it: in one thread, and without a trace.

Before a cluster is joined, its address is checked, which takes seconds. Ray itself takes more than
ten minutes to detect that nothing listens there, and logs each try. A Ray that dsort starts listens
on loopback only and requires a token."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import psutil
from msgspec import Struct, field

from dsort.errors import (
    SpecError,
    SpecProblem,
    WorkerLostError,
)
from dsort.log_lines import logger_of
from dsort.runtime.ray.directory import make_ray_directory, ray_files
from dsort.runtime.ray.watchdog import begin_watchdog, end_watchdog
from dsort.stop_flag import StopFlag, run_into_future

BEGIN_SECONDS_MAX = 180
JOIN_TRIES_MAX = 3  # Ray's own limit is 20
END_SECONDS_MAX = 5
TICK_S = 0.1

OBJECT_STORE_BYTES = 80 << 20  # hardly more than Ray's minimum, as few bytes pass through it

_OWN_TOKEN = secrets.token_hex(32)
"""One token for all Rays of this process, because Ray reads it once."""

_SERVERS = frozenset({"gcs_server", "raylet"})

log = logger_of("runtime")


class GivenRay:
    """A Ray to which this process was already connected: it is ready, and is left unchanged."""

    is_own: ClassVar[bool] = False
    """Whether dsort starts this Ray, which then ends with the job."""

    def wait(self, stop: StopFlag, *, seconds_max: float) -> Exception | None:
        """Wait until Ray is ready. Return None, or the error that prevents the use of Ray;
        ``TimeoutError`` if it is not ready in time. Raises ``JobStoppedError``."""
        return None

    def where(self) -> str:
        """The addresses, in words, on which a Ray that dsort started listens; "" for any other
        Ray."""
        return ""

    def close(self) -> None:
        """Leave Ray; end it and remove its files if it was started here. May be called twice."""


class RaySession(GivenRay):
    """The use of a Ray that is joined: from ``begin`` (``ray.init``) to ``end`` (``ray.shutdown``),
    in one thread.

    The kernel ends Ray's processes as soon as the *thread* that started them ends, so this thread
    lasts as long as these processes. In the main thread, ``ray.init`` would also replace the
    handler of SIGTERM. The thread is a daemon, because it may wait for minutes, in code that cannot
    be interrupted, for a cluster that does not answer.
    """

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begun: Future[object] = Future()
        self._over = threading.Event()
        self._took_sigterm_back = False

        def session() -> None:
            run_into_future(self._begun, begin)
            self._over.wait()
            end()

        self._thread = threading.Thread(target=session, name="dsort-ray", daemon=True)
        self._thread.start()

    def wait(self, stop: StopFlag, *, seconds_max: float = BEGIN_SECONDS_MAX) -> Exception | None:
        end_s = time.monotonic() + seconds_max
        if not self._begun.done():
            log.debug("the coordinator waits for Ray, up to %.0f s", seconds_max)
        while not self._begun.done():
            stop.raise_if_requested()
            if time.monotonic() > end_s:
                return TimeoutError(f"no answer in {seconds_max:.0f} seconds")
            wait([self._begun], timeout=TICK_S)
        self._take_sigterm_back()
        stop.raise_if_requested()
        error = self._begun.exception()
        assert error is None or isinstance(error, Exception)
        return error

    def close(self) -> None:
        self._over.set()
        if self._begun.done():
            self._thread.join(END_SECONDS_MAX)

    def _take_sigterm_back(self) -> None:
        """Remove Ray's handler for SIGTERM. Ray's handler would print a stack, as if the process
        had crashed, and call Python's handler only then."""
        if self._took_sigterm_back or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:  # set from Python, or the default
            # The handler stays; this call puts Python's own C handler back in front of it.
            signal.signal(signal.SIGTERM, handler)
        self._took_sigterm_back = True


class OwnRay(RaySession):
    """A Ray that is started here. It is ended with the session, and its files in ``directory`` are
    removed: by ``watchdog`` if this process dies."""

    is_own = True

    def __init__(
        self,
        begin: Callable[[], object],
        end: Callable[[], object],
        directory: Path,
        watchdog: subprocess.Popen[bytes],
    ) -> None:
        self.directory = directory
        self._watchdog = watchdog
        super().__init__(begin, end)

    def where(self) -> str:
        found = listening_words(listeners(_processes(self.directory)))
        return f"Ray of its own, locked with a token, listens on {found}"

    def close(self) -> None:
        # A Ray that is still starting cannot be ended: its processes are not all known yet.
        wait([self._begun], timeout=BEGIN_SECONDS_MAX)
        processes = _processes(self.directory)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                # Ray would ask each helper to end, and wait for a second. Killing it loses nothing.
                if process.name() not in _SERVERS and process.ppid() == os.getpid():
                    process.kill()
        self._over.set()
        self._thread.join(END_SECONDS_MAX)
        for process in psutil.wait_procs(processes, timeout=END_SECONDS_MAX)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        end_watchdog(self._watchdog)


def start_ray(
    init: Callable[..., object], shutdown: Callable[[], object], cpus: int, gpus: int = 0
) -> OwnRay:
    """Begin to start a Ray on this machine. Other machines cannot reach it, and other users of this
    machine cannot join it. ``init`` makes it listen on loopback."""
    directory = make_ray_directory()
    log.debug("a Ray with %d CPUs is started in %s", cpus, directory)
    try:
        watchdog = begin_watchdog(directory)
    except OSError:
        shutil.rmtree(directory)
        raise
    # Without the first entry, a Ray that is started inside another Ray's job would look for that
    # job's files. The new Ray requires a token even if the environment turns tokens off: otherwise
    # every process that reaches one of its ports could run code.
    ours = {
        "RAY_JOB_CONFIG_JSON_ENV_VAR": None,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", _OWN_TOKEN),
    }

    def begin() -> None:
        with _environment(ours):
            init(
                address="local",  # overrides RAY_ADDRESS
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _temp_dir=str(ray_files(directory)),
                # The monitor counts the page cache of mapped inputs as used, and kills workers.
                _system_config={"memory_monitor_refresh_ms": 0},
            )
        check_loopback(listeners(_processes(directory)))

    return OwnRay(begin, shutdown, directory, watchdog)


def join_ray(
    init: Callable[..., object], shutdown: Callable[[], object], address: str
) -> RaySession:
    """Begin to join a cluster. All nodes need the same packages as this machine; a dsort that runs
    from a source tree is sent to them."""
    package = Path(__file__).resolve().parents[2]
    installed = package.parent.name in ("site-packages", "dist-packages")

    log.debug("the Ray cluster at %s is joined", address)

    def begin() -> None:
        check_listener(address)
        with _environment({"RAY_gcs_server_port_wait_time_s": str(JOIN_TRIES_MAX)}):
            init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env=None if installed else {"py_modules": [str(package)]},
            )

    return RaySession(begin, shutdown)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: remove them) for as long as the body runs."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _processes(directory: Path) -> list[psutil.Process]:
    """The processes of the Ray in ``directory``: children of this process, and all below them."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(str(directory) in argument for argument in child.cmdline()):
                found += [child, *child.children(recursive=True)]
    return found


ANSWER_SECONDS_MAX = 5
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FORM = re.compile(
    r"(?:ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>[0-9]{1,5})", re.ASCII
)
_FORMS_HINT = "auto, HOST:PORT or ray://HOST:PORT; without an address Ray is started here: --ray"
PORT_HINT = (
    "HOST:PORT takes the port of the head (6379, unless it was set), "
    "ray://HOST:PORT that of its client server (10001)"
)

# RFC 9113, section 3.4: the first bytes of a client of HTTP/2, here with an empty SETTINGS frame. A
# server begins with its own SETTINGS, whatever the request.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_TYPE_AT, _SETTINGS = 3, 4


def check_form(address: str) -> None:
    """``SpecError`` if ``address`` has no valid form."""
    if address != "auto" and not _places(address):
        raise SpecError(
            [SpecProblem("--ray-address", f"{address!r} is no address of Ray", _FORMS_HINT)]
        )


def check_listener(address: str) -> None:
    """``WorkerLostError`` unless a server at ``address`` uses HTTP/2, as all of Ray's servers do.

    ``auto`` is checked only if ``RAY_ADDRESS`` is set, as otherwise only Ray can resolve it.
    """
    address = _resolved(address)
    for place in _places(address) if os.environ.get("RAY_USE_TLS", "0") == "0" else ():
        try:
            with socket.create_connection(place, timeout=ANSWER_SECONDS_MAX) as connection:
                connection.sendall(_PREFACE)
                heard = connection.recv(_FRAME_TYPE_AT + 1)
        except OSError as error:
            raise WorkerLostError(
                f"no Ray cluster answers at {address}: {error.strerror or error}", hint=PORT_HINT
            ) from error
        if heard[_FRAME_TYPE_AT:] != bytes([_SETTINGS]):
            raise WorkerLostError(f"the server at {address} is no Ray cluster", hint=PORT_HINT)


def is_only_on_loopback(address: str, here: str) -> bool:
    """Whether ``address`` is on loopback, and its port is closed at ``here``, the address that Ray
    uses in place of loopback."""
    for host, port in _places(_resolved(address)):
        if host in LOOPBACK:
            try:
                socket.create_connection((here, port), timeout=ANSWER_SECONDS_MAX).close()
            except OSError:
                return True
    return False


def _resolved(address: str) -> str:
    return os.environ.get("RAY_ADDRESS", "") if address == "auto" else address


def _places(address: str) -> list[tuple[str, int]]:
    """The host and the port of ``address``; none if it has no valid form."""
    form = _FORM.fullmatch(address)
    if not form or not 0 < int(form["port"]) < 2**16:
        return []
    return [(form["host"].strip("[]"), int(form["port"]))]


Listener = tuple[str, int]
"""Address and port."""


def listeners(processes: Iterable[psutil.Process]) -> list[Listener]:
    """All addresses and ports on which ``processes`` accept connections, sorted."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((each.laddr.ip, each.laddr.port))
    return sorted(found)


def check_loopback(found: Iterable[Listener]) -> None:
    """``WorkerLostError`` if another machine can reach one of the listeners."""
    open_to_all = [f"{address}:{port}" for address, port in found if not _is_loopback(address)]
    if open_to_all:
        raise WorkerLostError(
            f"Ray listens on {', '.join(open_to_all)}, where other machines may reach it",
            hint="this version of Ray cannot be limited to this machine: use the version that "
            "dsort was tested with, or run without --ray",
        )


def listening_words(found: Iterable[Listener]) -> str:
    """The addresses and ports in words for a user: ``127.0.0.1 (ports 6379, 10001)``."""
    by_address: dict[str, list[int]] = {}
    for address, port in found:
        by_address.setdefault(str(_plain(address)), []).append(port)
    return "; ".join(
        f"{address} (ports {', '.join(map(str, sorted(set(ports))))})"
        for address, ports in sorted(by_address.items())
    )


def _is_loopback(address: str) -> bool:
    return _plain(address).is_loopback


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


RAY_VERSION_MIN = (2, 56)
"""The first version without a known vulnerability. Before 2.52, Ray had no tokens: it ran code for
every process that reached one of its ports."""


def check_ray_version(found: str = "") -> None:
    """``WorkerLostError`` if Ray is older than ``RAY_VERSION_MIN``. ``found``: the version of Ray;
    "": the installed version."""
    try:
        found = found or version("ray")
    except PackageNotFoundError:
        raise WorkerLostError("Ray is not installed", hint=f"pip install {_required()}") from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if not numbers or tuple(map(int, numbers.groups())) < RAY_VERSION_MIN:
        raise WorkerLostError(
            f"Ray {found} is too old: other users could run code through it",
            hint=f"pip install {_required()}, on all nodes of a cluster; jobs without --ray do "
            "not use Ray",
        )


def _required() -> str:
    return f"'ray>={'.'.join(map(str, RAY_VERSION_MIN))}'"


ROUNDING = 1e-9
"""A tolerance, because parts of a GPU are not exact numbers."""


Node = Mapping[str, Any]
"""A row of ``ray.nodes()``."""

_ONE_OF = re.compile(r"in\((.*)\)")


class Needs(Struct, frozen=True):
    """The ``cpus``, ``gpus`` and custom ``resources`` that a worker takes of its node. ``labels``:
    a label selector of Ray: a value is ``x``, ``!x``, ``in(x, y)`` or ``!in(x, y)``.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        for name, amount in self.resources.items():
            if not amount > 0 or name in ("", "CPU", "GPU", "memory", "object_store_memory"):
                raise SpecError(
                    f"--ray-resources: {name!r}: {amount} is no custom resource of a node",
                    hint="a worker takes CPUs in any case; name another resource that the nodes "
                    "were started with, and how much of it a worker takes",
                )

    def __bool__(self) -> bool:
        return bool(self.resources or self.labels)

    def __str__(self) -> str:
        needed = [f"{self.gpus:g} GPU"] if self.gpus else []
        needed += [f"{amount:g} of {name}" for name, amount in sorted(self.resources.items())]
        needed += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return ", ".join(["one CPU" if self.cpus == 1 else f"{self.cpus:g} CPUs", *needed])

    def workers(self, node: Node) -> int:
        """How many workers ``node`` can host if it has no other work."""
        if not node["Alive"]:
            return 0
        labels = node.get("Labels") or {}
        if not all(_selects(value, labels.get(key)) for key, value in self.labels.items()):
            return 0
        there = node["Resources"]
        wanted = {"CPU": self.cpus, **self.resources}
        if self.gpus:
            wanted["GPU"] = self.gpus
        return int(min(there.get(name, 0) / amount + ROUNDING for name, amount in wanted.items()))

    def hosts(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes among ``nodes`` that can host a worker."""
        return [node for node in nodes if self.workers(node) > 0]


def _selects(wanted: str, value: str | None) -> bool:
    """Whether the selector ``wanted`` accepts a node with the label ``value`` (None: no label)."""
    positive = wanted.removeprefix("!")
    several = _ONE_OF.fullmatch(positive)
    values = [each.strip() for each in several[1].split(",")] if several else [positive]
    return (value in values) == (positive == wanted)
