"""A clock that stands still until a caller waits."""

from __future__ import annotations


class FakeClock:
    """``clock.now`` replaces a function that returns the time, ``clock.sleep`` one that waits."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
