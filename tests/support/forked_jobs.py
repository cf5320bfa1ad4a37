"""Processes of a service's jobs as forks of one process that has loaded what they load
(``forked``), for services in a test's process. The workers of such a job are forks, too."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import IO, Any

import dsort.service.hosting.process as hosting_process
from tests.support import forked_workers
from tests.support.children import FIRST_JOB, FIRST_WORKER
from tests.support.forked import Forked, Nursery, become_command

__all__ = ["become_job", "forked_jobs"]

LOADED = (
    *("tests.support.forked_jobs", "dsort.service.hosting.job_main", "dsort.job.tables"),
    *forked_workers.LOADED,
)


@contextlib.contextmanager
def forked_jobs() -> Iterator[None]:
    """Meanwhile, jobs of services in this process are forks."""
    fresh = hosting_process.subprocess
    hosting_process.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=_begin, DEVNULL=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        hosting_process.subprocess = fresh  # type: ignore[assignment]


def _begin(command: list[str], *, env: Mapping[str, str], stdout: IO[bytes], **rest: Any) -> Forked:
    """What stands for ``subprocess.Popen`` where a job begins."""
    assert command[3] == hosting_process.MODULE
    return Nursery.called(FIRST_JOB, LOADED).begin(
        f"{__name__}:become_job", command[4:], descriptors=[stdout.fileno()] * 2, env=env
    )


def become_job(descriptors: list[int], parent: int, arguments: list[str]) -> None:
    """Be the process of an attempt at a job."""
    nursery = Nursery.here(FIRST_WORKER)
    forked_workers.begins_workers(nursery)
    become_command(descriptors, nursery.descriptor)
    os.umask(0o022)
    from dsort.service.hosting.job_main import main

    raise SystemExit(main(arguments))
