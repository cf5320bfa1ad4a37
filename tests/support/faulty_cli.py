"""``dsort`` with a fault in its workers, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from tests.support import faults
from tests.support.faults import Fault
from tests.support.forked import Forked
from tests.support.forked_commands import become_dsort, begin_command


def begin_faulty(fault: Fault, arguments: Sequence[str], *, cwd: Path, log: Path) -> Forked:
    """Begin ``dsort ARGUMENTS``. ``log``: a file for its output."""
    with log.open("wb") as said:
        return begin_command(
            f"{__name__}:become_faulty",
            *(json.dumps(asdict(fault)), list(arguments)),
            descriptors=[said.fileno()] * 2,
            cwd=cwd,
            env=os.environ,
        )


def become_faulty(
    descriptors: list[int], parent: int, fault: str, arguments: list[str]
) -> NoReturn:
    """Be ``dsort``; its workers are forks of it, so they have the fault."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under ``nohup``
    faults.install(fault)
    become_dsort(descriptors, parent, arguments)
