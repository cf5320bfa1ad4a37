"""The thread that watches the clock for the schedules of a service.

Each replica has one. It keeps nothing that the database does not: it looks there at least every few
seconds, since another replica may have changed a schedule, or a job may have ended that a run waits
for. (APScheduler finds the due times; its own scheduler and job stores take one process for
granted, and note that a time was due only after the fact.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from dsort.closing import Closing
from dsort.runtime.answers import settle
from dsort.service.schedules.fire import Firing
from dsort.service.schedules.rows import RunRow, ScheduleRow
from dsort.service.schedules.store import ScheduleStore

__all__ = ["ScheduleKeeper"]

LOOK_S: Final = 3.0
_STEPS_MAX: Final = 1000

log = logging.getLogger(__name__)


class ScheduleKeeper(Closing):
    """``on_submitted`` is called when jobs were put into the queue."""

    def __init__(
        self,
        store: ScheduleStore,
        *,
        on_submitted: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
    ) -> None:
        self._store = store
        self._firing = Firing(store)
        self._on_submitted = on_submitted
        self._look_s = look_s
        self._told = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="dsort-schedules", daemon=True)
        store.on_change = self.wake

    def start(self) -> None:
        """Begin to watch the clock."""
        self._thread.start()

    def wake(self) -> None:
        """Have it look at once."""
        self._told.set()

    def close(self) -> None:
        """End it. What is due from now on is done by another replica, or made up for."""
        self._ended = True
        self._told.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether it watches the clock."""
        return self._thread.is_alive()

    def run_now(self, row: ScheduleRow) -> RunRow:
        """Make a job of the schedule now; see ``Firing.run_now``."""
        run = self._firing.run_now(row.schedule_id)
        self._on_submitted()
        return run

    def turn(self) -> float:
        """Do all there is to do; seconds until there may be more."""
        waits = [self._look_s]
        error = _error_of(lambda: waits.append(self._turn()))
        if error is not None:
            log.error("schedules cannot be looked at: %s: %s", type(error).__name__, error)
        return waits[-1]

    def _turn(self) -> float:
        due, next_due_at = self._firing.due()
        failed = False
        for schedule_id in due:
            failed |= not self._all_of(self._firing.fire, schedule_id)
        waiting = self._firing.waiting()
        for schedule_id in waiting:
            failed |= not self._all_of(self._firing.start_waiting, schedule_id)
        if due or waiting:
            self._on_submitted()
            due, next_due_at = self._firing.due()
        if failed:
            return self._look_s
        if due:
            return 0.0
        left_s = self._look_s if next_due_at is None else next_due_at - self._store.now_s()
        return min(max(left_s, 0.0), self._look_s)

    def _all_of(self, step: Callable[[str], bool], schedule_id: str) -> bool:
        """Take a step until there is none left; False if one failed: the other schedules must not
        suffer for it."""
        more = [True]
        while more[-1] and len(more) < _STEPS_MAX:
            error = _error_of(lambda: more.append(step(schedule_id)))
            if error is not None:
                log.error("schedule %s: %s: %s", schedule_id, type(error).__name__, error)
                return False
        return True

    def _run(self) -> None:
        while not self._ended:
            self._told.clear()
            wait_s = self.turn()
            if not self._ended:
                self._told.wait(wait_s)


def _error_of(call: Callable[[], object]) -> BaseException | None:
    """What ``call`` ended with, whatever it is: the thread must outlive it."""
    done: Future[None] = Future()
    settle(done, call)
    return done.exception()
