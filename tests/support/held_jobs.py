"""Jobs of a service that halt until a test lets them continue, for tests that watch, stop or wait
for a running job."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.fault_points import PointFault, arm, disarm
from tests.support.service_process import ServiceProcess, await_that


@contextlib.contextmanager
def holding(faults: Path, service: ServiceProcess | None = None) -> Iterator[None]:
    """The next job of a service with ``points_environment(faults)`` stops before it creates its
    first output shard. At the end of the block, jobs of ``service`` continue, because a halted job
    would block other tests."""
    arm(faults, PointFault("create:start", 1, "stop"))
    try:
        yield
    finally:
        disarm(faults)
        if service is not None:
            let_go(service.suspended())


def held_workers(service: ServiceProcess) -> list[psutil.Process]:
    """The worker that is held, once it is."""
    return await_that(lambda: service.suspended() or None, why="no job came to a halt")


def let_go(workers: list[psutil.Process]) -> None:
    """Let the job continue."""
    for each in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGCONT)
