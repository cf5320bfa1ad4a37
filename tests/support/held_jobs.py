"""Jobs of a service that come to a halt, and go on when a test wants them to: something to watch,
to stop, to wait for in vain."""

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
    first output shard. In the end jobs of ``service`` go on, or they would be in others' way."""
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
    """Let the job go on."""
    for each in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGCONT)
