"""Worker processes of the jobs of a test's process, as forks of one process that has loaded the
modules of workers (``forked``). A worker gets the standard error that the test's process has when
the worker begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

from tests.support import faults
from tests.support.children import FIRST_WORKER
from tests.support.forked import Nursery
from tests.support.internals import local

LOADED = (
    *("tests.support.forked_workers", "dsort.workers.row_sink"),
    *("dsort.workers.row_batches", "numpy.ma", "pyarrow.compute", "pyarrow.parquet"),
)
USUAL = local.BOOTSTRAP


class _Begin:
    """Replaces ``local._begin``."""

    def __init__(self, nursery: Nursery) -> None:
        self.fresh = local._begin
        self._nursery = nursery

    def __call__(self, link: socket.socket) -> subprocess.Popen[bytes] | local.ForkedProcess:
        bootstrap = local.BOOTSTRAP
        fault = faults.fault_of(bootstrap)
        if bootstrap != USUAL and not fault:  # a test sets another program
            return self.fresh(link)
        return self._nursery.begin(
            f"{__name__}:become_worker",
            fault,
            descriptors=[link.fileno(), 2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """The body of a fixture."""
    nursery = Nursery(LOADED, FIRST_WORKER)
    fresh = local._begin
    begins_workers(nursery)
    try:
        yield
    finally:
        local._begin = fresh
        nursery.close()


def begins_workers(nursery: Nursery) -> None:
    """Make ``nursery`` begin the workers of this process's jobs."""
    local._begin = _Begin(nursery)  # type: ignore[assignment]


@contextlib.contextmanager
def fresh_workers() -> Iterator[None]:
    """The body of a fixture: until it ends, workers are fresh interpreters in place of forks."""
    begin = local._begin
    local._begin = getattr(begin, "fresh", begin)
    try:
        yield
    finally:
        local._begin = begin


def become_worker(descriptors: list[int], parent: int, fault: str) -> None:
    """Be a worker, with a fault in it if one is given (see ``faults``)."""
    link, stderr = descriptors
    os.dup2(stderr, 2)
    if fault:
        faults.install(fault)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    above = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, local.LINK + 1)
    local._become_worker(socket.socket(fileno=above), parent, mask)
