"""The facts about this machine that leases need: its clocks, and its processes."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from msgspec import Struct


class Holder(Struct, frozen=True):
    """A process. ``boot_id``: identifies this boot of the kernel and the process namespace, in
    which a process number means one process at a time; ``pid_start``: when the process began, in
    the kernel's ticks since boot."""

    host: str
    boot_id: str
    pid: int
    pid_start: int


NO_HOLDER: Final = Holder("", "", 0, 0)


class Machine:
    """The clocks and the processes of the machine that a lease is on."""

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def elapsed_s(self) -> float:
        """Seconds that never jump, and that are counted while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def pause(self, pause_s: float) -> None:
        """Wait ``pause_s`` seconds."""
        time.sleep(pause_s)

    def holder(self) -> Holder:
        """This process."""
        return self.holder_of(os.getpid())

    def holder_of(self, pid: int) -> Holder:
        """Process ``pid`` of this machine."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        # Containers of one host share the boot id, and with host networking the host name, but not
        # process numbers.
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        return Holder(socket.gethostname(), f"{boot_id}/{namespace}", pid, _start_ticks(pid) or 0)

    def is_gone(self, holder: Holder) -> bool:
        """Whether the process ``holder`` of this boot is gone."""
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # a process of another user, which may be hidden from this one
        return _start_ticks(holder.pid) != holder.pid_start


HERE = Machine()


def _start_ticks(pid: int) -> int | None:
    """When the process began: field 22 of ``/proc/<pid>/stat``; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # the name before it may contain anything
    return None if state in "ZX" else int(rest[18])
