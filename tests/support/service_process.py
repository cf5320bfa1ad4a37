"""The service as users start it: ``dsort serve`` in a process of its own, on a port that it picks.

All processes that a service started (those of its jobs, in sessions of their own) can be found
again, because they have inherited a limit that no other process has.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tests.conftest import is_setting
from tests.support.commands import ROOT
from tests.support.forked import Forked
from tests.support.forked_jobs import begin_service

START_SECONDS_MAX = 180.0
END_SECONDS_MAX = 120.0
POLL_S = 0.02
_PAUSE = threading.Event()  # never set

Found = TypeVar("Found")


def await_that(
    what: Callable[[], Found | None], seconds_max: float = START_SECONDS_MAX, *, why: str = ""
) -> Found:
    """The first result of ``what`` that is neither None nor False."""
    end = time.monotonic() + seconds_max
    while True:
        begun = time.monotonic()
        found = what()
        if found is not None and found is not False:
            return found
        now = time.monotonic()
        assert now < end, why or "it never came to that"
        # ``what`` may look at all processes: it must not take the time of those that it waits for.
        _PAUSE.wait(max(POLL_S, 5 * (now - begun)))


@dataclass
class ServiceProcess:
    """A running ``dsort serve``. ``url``: where it answers, without a slash at its end."""

    url: str
    process: Forked
    log: Path
    mark: str

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """End the service as an operator would. Returns its exit code."""
        self.process.send_signal(signal_number)
        code = self.process.wait(END_SECONDS_MAX)
        assert code is not None
        return code

    def kill(self) -> None:
        """Kill the service as ``kill -9`` does, but no process that it started."""
        self.process.kill()
        self.process.wait(END_SECONDS_MAX)

    def log_text(self) -> str:
        """All text that the service has written to its standard output and error."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def offspring(self) -> list[psutil.Process]:
        """The living processes that the service has started, over all starts with this mark."""
        return [each for each in _marked(self.mark) if each.pid != self.process.pid]

    def suspended(self) -> list[psutil.Process]:
        """The suspended processes among :meth:`offspring`."""
        return [each for each in self.offspring() if _stands_still(each)]


@contextlib.contextmanager
def running_service(
    directory: Path, *args: str, env: Mapping[str, str] | None = None, mark: str = ""
) -> Iterator[ServiceProcess]:
    """``dsort serve ARGS`` in ``directory``, once it accepts requests. In the end the service and
    all processes that it started are killed. With a ``mark``, only the service is killed, because a
    later service may find its jobs; the test that made the mark has to call :func:`end_marked`."""
    own = mark or secrets.token_hex(8)
    number = len(list(directory.glob("service-*.log")))
    log, url_file = directory / f"service-{number}.log", directory / f"service-{number}.url"
    environment = {name: text for name, text in os.environ.items() if not is_setting(name)}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(directory / ".unset")}
    arguments = ["--port", "0", "--url-file", str(url_file), *args]
    with log.open("wb") as output:
        process = begin_service(
            arguments, _limit(own), env={**environment, **(env or {})}, cwd=directory, log=output
        )
    service = ServiceProcess("", process, log, own)
    try:
        service.url = await_that(lambda: _url(service, url_file), why=f"no service, see {log}")
        yield service
    finally:
        process.kill()
        process.wait(END_SECONDS_MAX)
        if not mark:
            end_marked(own)


def end_marked(mark: str) -> None:
    """Kill all processes that services with this mark have started."""
    left = _marked(mark)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, timeout=END_SECONDS_MAX)


def _url(service: ServiceProcess, url_file: Path) -> str | None:
    assert service.process.poll() is None, f"the service ended: {service.log_text()}"
    text = url_file.read_text(encoding="utf-8").strip() if url_file.exists() else ""
    return text.rstrip("/") or None


def _stands_still(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def _limit(mark: str) -> int:
    """The limit that processes with a mark have."""
    return int(mark, 16) >> 2


def _marked(mark: str) -> list[psutil.Process]:
    wanted = re.compile(rf"(?m)^Max realtime timeout +{_limit(mark)} ".encode())
    found = []
    for path in Path("/proc").glob("[0-9]*/limits"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if wanted.search(path.read_bytes()):
                found.append(psutil.Process(int(path.parent.name)))
    return found
