"""This machine as leases see it: its clocks, and which processes run on it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. ``boot_id``: of the kernel and the process namespace, so that a process number
    means one process only; ``pid_start``: when it began, in the kernel's ticks since boot."""

    host: str
    boot_id: str
    pid: int
    pid_start: int


class Machine:
    """What a lease asks of the machine it is on: clocks, and which processes there are."""

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def elapsed_s(self) -> float:
        """Seconds that never jump, and go on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def pause(self, pause_s: float) -> None:
        """Let ``pause_s`` pass."""
        time.sleep(pause_s)

    def holder(self) -> Holder:
        """This process."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers of one host share the boot, and with host networking the name, too; not pids.
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        pid = os.getpid()
        return Holder(socket.gethostname(), f"{boot_id}/{namespace}", pid, _start_ticks(pid) or 0)

    def is_gone(self, holder: Holder) -> bool:
        """Whether no process here is ``holder``, which has the boot id that we have."""
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # somebody else's process, which we may not even see
        ticks = _start_ticks(holder.pid)
        return ticks is None or ticks != holder.pid_start


def _start_ticks(pid: int) -> int | None:
    """When the process began, as in field 22 of ``/proc/<pid>/stat``; None if it is over."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else int(rest[18])
