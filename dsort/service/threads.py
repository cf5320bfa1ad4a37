"""The threads of a replica: each takes turns from its start to its end, and no error ends it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from dsort.closing import ClosesOnExit
from dsort.errors import DsortError
from dsort.log_lines import logger_of

DATABASE_AWAY: Final = (SQLAlchemyError, OSError)
"""Exceptions of a transaction that may succeed in another try. SQLAlchemy has many exceptions
for a broken connection; none of them is a reason to give a job up."""

log = logger_of("service")


class TurnThread(ClosesOnExit):
    """Base of classes with a thread that takes turns from ``start`` to ``close``. ``look_s``: the
    seconds between a turn that failed and the next turn."""

    def __init__(self, name: str, look_s: float) -> None:
        self._look_s = look_s
        self._over = threading.Event()
        self._woken = threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _turn(self) -> float:
        """Do the waiting work; return the seconds until there may be more work."""

    def turn(self) -> float:
        """Take a turn. An error of any kind is logged, and the next turn tries again."""
        try:
            seconds = self._turn()
            self._is_away = False
            return seconds
        except DATABASE_AWAY as error:
            if not self._is_away:
                log.warning("%s: the database does not answer: %s", self._thread.name, error)
            self._is_away = True
        except DsortError as error:
            log.warning("%s: %s", self._thread.name, error)
        except Exception:
            log.exception("%s: a turn failed", self._thread.name)
        return self._look_s

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next turn at once. For any thread, at any time."""
        self._woken.set()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread, after the turn that it takes now."""
        self._over.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._woken.clear()
            seconds = self.turn()
            if not self._over.is_set():
                self._woken.wait(seconds)
