"""Which machine this is, which processes are on it, and whether its memory ran out."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from dsort.runtime.machine import Holder, Machine

__all__ = ["Host", "offer_to_oom_killer", "oom_kills"]

OOM_SCORE = 500
"""Above all that was not offered itself, whose score is 0: the service among them."""

_VMSTAT = Path("/proc/vmstat")


class Host:
    """This machine, as the rows of jobs name it.

    ``name``: the same for all who see the same processes under the same numbers, and different
    after the machine was started again (host name, boot, namespace of process numbers).
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        here = self._machine.holder()
        self._hostname, self._boot_id = here.host, here.boot_id
        self.name: str = f"{here.host}/{here.boot_id}"

    def this_process(self) -> tuple[int, float]:
        """Number and start (ticks since boot) of this process."""
        here = self._machine.holder()
        return here.pid, float(here.pid_start)

    def is_alive(self, pid: int, started: float | None) -> bool:
        """Whether that process is there. One that has ended and that nobody has waited for is not;
        neither is another one that has its number now. ``started``: None where it is not known."""
        if started is None:
            return Path(f"/proc/{pid}").exists()
        holder = Holder(self._hostname, self._boot_id, pid, int(started))
        return not self._machine.is_gone(holder)

    def start_of(self, pid: int) -> float | None:
        """When a process of this machine began; None if it is not there."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return float(text.rpartition(")")[2].split()[19])
        return None


def offer_to_oom_killer() -> None:
    """Have the kernel take this process and its children, when memory runs out, before others."""
    with contextlib.suppress(OSError):  # a container may not allow it: then nobody is preferred
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def oom_kills() -> int | None:
    """How many processes the kernel has killed on this machine because memory, its own or a
    control group's, ran out; None if it does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^oom_kill (\d+)$", _VMSTAT.read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None
