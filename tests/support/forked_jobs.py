"""Services and processes of their jobs as forks of one process that has loaded their modules
(``forked``). The jobs of a forked service are forks, too, and so are the workers of a forked
job."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import dsort.service.hosting.process as hosting_process
from tests.support import forked_workers
from tests.support.children import FIRST_JOB, FIRST_WORKER
from tests.support.forked import Forked, Nursery, become_command

RLIMIT_RTTIME = 15
"""A limit for processes with real-time scheduling, which no process of the tests has: it serves as
a mark that descendants inherit."""

LOADED = (
    *("tests.support.forked_jobs", "dsort.service.hosting.job_main", "dsort.job.setup.tables"),
    *("dsort.__main__", "dsort.cli.serve", "dsort.service.server", "dsort.service.config"),
    *forked_workers.LOADED,
)


@contextlib.contextmanager
def forked_jobs() -> Iterator[None]:
    """In this block, jobs of services in this process are forks."""
    fresh = hosting_process.subprocess
    _begins_jobs(lambda: Nursery.called(FIRST_JOB, LOADED))
    try:
        yield
    finally:
        hosting_process.subprocess = fresh


def begin_service(
    arguments: list[str], mark: int, *, env: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> Forked:
    """Begin ``dsort serve ARGUMENTS``. ``mark``: a limit that its descendants inherit."""
    return Nursery.called(FIRST_JOB, LOADED).begin(
        *(f"{__name__}:become_service", arguments, mark),
        descriptors=[log.fileno()] * 2,
        env=env,
        cwd=cwd,
    )


def become_service(
    descriptors: list[int], parent: int, arguments: list[str], mark: int
) -> NoReturn:
    """Be ``python -m dsort serve``."""
    _, most = resource.getrlimit(RLIMIT_RTTIME)
    resource.setrlimit(RLIMIT_RTTIME, (mark, most))
    nursery = Nursery.here(FIRST_JOB)
    _begins_jobs(lambda: nursery)
    become_command(descriptors, nursery.descriptor)
    from dsort.__main__ import main

    sys.argv = [main.__code__.co_filename, "serve", *arguments]
    raise SystemExit(main())


def _begins_jobs(nursery: Callable[[], Nursery]) -> None:
    """Make the nursery that ``nursery`` returns begin the jobs of this process."""

    def begin(
        command: list[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes],
        umask: int = -1,
        **more: Any,
    ) -> Forked | subprocess.Popen[bytes]:
        if command[3] != hosting_process.MODULE:  # Ray's head
            return subprocess.Popen(command, env=env, stdout=stdout, umask=umask, **more)
        become, output = f"{__name__}:become_job", [stdout.fileno()] * 2
        inherited = _umask() if umask < 0 else umask
        return nursery().begin(become, command[4:], inherited, descriptors=output, env=env)

    stand_in: Any = SimpleNamespace(Popen=begin, DEVNULL=subprocess.DEVNULL)
    hosting_process.subprocess = stand_in


def _umask() -> int:
    """The umask of this process, which its threads share: to ask ``os.umask`` would change it."""
    found = re.search(r"(?m)^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1], 8)


def become_job(descriptors: list[int], parent: int, arguments: list[str], umask: int) -> NoReturn:
    """Be the process of an attempt at a job."""
    os.umask(umask)
    nursery = Nursery.here(FIRST_WORKER)
    forked_workers.begins_workers(nursery)
    become_command(descriptors, nursery.descriptor)
    from dsort.service.hosting.job_main import main

    raise SystemExit(main(arguments))
