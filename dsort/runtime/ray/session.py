"""How a Ray is started or joined, and left: in one thread, and without a trace."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path

import psutil

from dsort.runtime.answers import settle
from dsort.runtime.ray.address import check_listener
from dsort.runtime.ray.directory import make_ray_directory, ray_files
from dsort.runtime.ray.listeners import check_loopback, listeners, listening_words
from dsort.runtime.ray.watchdog import begin_watchdog, end_watchdog
from dsort.stopping import StopFlag

__all__ = ["RayStay", "join_ray", "start_ray"]

BEGIN_SECONDS_MAX = 180
JOIN_TRIES_MAX = 3  # Ray's own limit is 20
END_SECONDS_MAX = 5
TICK_S = 0.1

OBJECT_STORE_BYTES = 80 << 20  # hardly more than the least that Ray takes: little goes through it

_OWN_TOKEN = secrets.token_hex(32)
"""One for all Rays of this process: Ray reads it once."""

_SERVERS = frozenset({"gcs_server", "raylet"})


class RayStay:
    """The time from ``begin`` (``ray.init``) to ``end`` (``ray.shutdown``), in one thread.

    The kernel ends Ray's processes with the *thread* that started them, so it has to be there as
    long as they are; and in the main thread ``ray.init`` would take SIGTERM over. The thread is a
    daemon: a cluster that does not answer keeps it for minutes, in code that nothing interrupts.

    ``directory``: the files of a Ray that is begun here, and ended and removed with it, by
    ``watchdog`` if this process dies; None: the Ray is somebody else's.
    """

    def __init__(
        self,
        begin: Callable[[], object],
        end: Callable[[], object],
        directory: Path | None,
        watchdog: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.directory = directory
        self._watchdog = watchdog
        self._begun: Future[None] = Future()
        self._over = threading.Event()
        self._took_sigterm_back = False

        def stay() -> None:
            settle(self._begun, begin)
            self._over.wait()
            end()

        self._thread = threading.Thread(target=stay, name="dsort-ray", daemon=True)
        self._thread.start()

    def wait(self, stop: StopFlag, *, seconds_max: float = BEGIN_SECONDS_MAX) -> Exception | None:
        """Wait until Ray is there: what ``begin`` raised, ``TimeoutError``, or None.

        Raises ``JobStoppedError``.
        """
        end_s = time.monotonic() + seconds_max
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

    def where(self) -> str:
        """Where a Ray that was begun here listens, in words; "" of somebody else's."""
        if self.directory is None:
            return ""
        found = listening_words(listeners(_processes(self.directory)))
        return f"Ray of its own, locked with a token, listens on {found}"

    def close(self) -> None:
        """Leave Ray; end it and remove its files if it is ours. May be called twice."""
        if self.directory is None:
            self._over.set()
            if self._begun.done():
                self._thread.join(END_SECONDS_MAX)
            return
        # Half a Ray cannot be ended: what was started so far is known only when it is whole.
        wait([self._begun], timeout=BEGIN_SECONDS_MAX)
        processes = _processes(self.directory)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                # Ray asks each helper to end and gives it a second. Nothing is lost without.
                if process.name() not in _SERVERS and process.ppid() == os.getpid():
                    process.kill()
        self._over.set()
        self._thread.join(END_SECONDS_MAX)
        for process in psutil.wait_procs(processes, timeout=END_SECONDS_MAX)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._watchdog is not None:
            end_watchdog(self._watchdog)

    def _take_sigterm_back(self) -> None:
        """Ray puts a handler before Python's that prints a stack, as if SIGTERM were a crash."""
        if self._took_sigterm_back or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:  # set from Python, or the default
            signal.signal(signal.SIGTERM, handler)
        self._took_sigterm_back = True


def start_ray(init: Callable[..., object], shutdown: Callable[[], object], cpus: int) -> RayStay:
    """Begin to start a Ray of one's own on this machine, which no other machine can reach and no
    other user of this one join. ``init`` has it listen on loopback."""
    directory = make_ray_directory()
    try:
        watchdog = begin_watchdog(directory)
    except OSError:
        shutil.rmtree(directory)
        raise
    # Inside another Ray's job it would look for that job's files. And whoever reaches a port of a
    # Ray without a token has it run what they like, whatever the environment says of that.
    ours = {
        "RAY_JOB_CONFIG_JSON_ENV_VAR": None,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", _OWN_TOKEN),
    }

    def begin() -> None:
        with _environment(ours):
            init(
                address="local",  # whatever RAY_ADDRESS says
                num_cpus=cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _temp_dir=str(ray_files(directory)),
                # It takes the page cache of mapped inputs for memory in use, and kills for it.
                _system_config={"memory_monitor_refresh_ms": 0},
            )
        check_loopback(listeners(_processes(directory)))

    return RayStay(begin, shutdown, directory, watchdog)


def join_ray(init: Callable[..., object], shutdown: Callable[[], object], address: str) -> RayStay:
    """Begin to join a cluster. All nodes have to have what is installed here; a dsort that runs
    from a source tree is taken along."""
    package = Path(__file__).resolve().parents[2]
    installed = package.parent.name in ("site-packages", "dist-packages")

    def begin() -> None:
        check_listener(address)
        with _environment({"RAY_gcs_server_port_wait_time_s": str(JOIN_TRIES_MAX)}):
            init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env=None if installed else {"py_modules": [str(package)]},
            )

    return RayStay(begin, shutdown, None)


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
    """The processes of the Ray in ``directory``: children of this one, and all below them."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(str(directory) in argument for argument in child.cmdline()):
                found += [child, *child.children(recursive=True)]
    return found
