"""The processes that a test's process has started, without those that all tests of a run share."""

from __future__ import annotations

import contextlib

import psutil

COORDINATORS = "coordinators"
"""The name of the process that begins coordinators."""
FIRST_WORKER = "first-worker"
"""The name of the process that worker processes are forks of."""
FIRST_JOB = "first-job"
"""The name of the process that processes of jobs are forks of."""
COMMANDS = "first-command"
"""The name of the process that command lines are forks of."""
READERS = "first-reader"
"""The name of the process that readers under a meter are forks of."""
PYTESTS = "first-pytest"
"""The name of the process that runs of pytest are forks of."""
SHARDS = "dsort.service.aistore.shard_works"
"""The program that looks into shards for services of the test's process."""
_SHARED = ("weed", "postgres", COORDINATORS, FIRST_WORKER, FIRST_JOB, COMMANDS, PYTESTS, READERS)


def children_here(*, recursive: bool = False) -> list[psutil.Process]:
    """The running processes that this process has started; with ``recursive``, all of their
    descendants, too."""
    found = []
    for child in psutil.Process().children(recursive=recursive):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not _is_shared(child):
                found.append(child)
    return found


def _is_shared(child: psutil.Process) -> bool:
    # Of a zombie, the command line cannot be read.
    is_alive = child.status() != psutil.STATUS_ZOMBIE
    return child.name() in _SHARED or (is_alive and SHARDS in child.cmdline())
