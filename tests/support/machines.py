"""A machine whose clock and processes a test sets, for leases."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.internals import Holder, Machine

BEGIN_S = 1_800_000_000.0


class FakeMachine(Machine):
    """Time passes in ``pause`` and ``pass_time`` only. ``gone``: processes that are over."""

    def __init__(self, host: str = "node-1", boot_id: str = "boot-1", pid: int = 100) -> None:
        self.me = Holder(host, boot_id, pid, 7)
        self.time_s = BEGIN_S
        self.gone: set[Holder] = set()
        self.on_pause: Callable[[], None] = lambda: None

    def beside(self, host: str = "node-1", boot_id: str = "boot-1", pid: int = 200) -> FakeMachine:
        """Another process, on this machine or another, whose clock shows the same time."""
        other = FakeMachine(host, boot_id, pid)
        other.time_s = self.time_s
        return other

    def pass_time(self, passed_s: float) -> None:
        self.time_s += passed_s

    def now_s(self) -> float:
        return self.time_s

    def elapsed_s(self) -> float:
        return self.time_s - BEGIN_S

    def pause(self, pause_s: float) -> None:
        self.time_s += pause_s
        self.on_pause()

    def holder(self) -> Holder:
        return self.me

    def is_gone(self, holder: Holder) -> bool:
        return holder in self.gone
