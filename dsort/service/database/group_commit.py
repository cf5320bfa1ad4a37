"""Group commit: many small transactions, and one sync of the disk for all that wait for it.

A commit waits for the disk: 1 ms while it is idle, 8 ms and more while jobs write to it. Work that
arrives meanwhile goes into the next commit (DeWitt et al., SIGMOD 1984).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field
from sqlalchemy import Connection

from dsort.service.database.engine import Database, refuse_undone
from dsort.stop_flag import run_into_future

__all__ = ["GroupCommit"]

Answer = TypeVar("Answer")
GROUP_MAX = 64


class _Waiting(Struct):
    work: Callable[[Connection], Any]
    answer: Any = None
    worked: Future[None] = field(default_factory=Future)  # not committed yet
    done: Future[Any] = field(default_factory=Future)

    def do(self, connection: Connection) -> None:
        with connection.begin_nested():
            self.answer = self.work(connection)


class GroupCommit:
    """Commits the work of many threads, each piece in its own savepoint: a piece that fails is
    undone alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[_Waiting] = []

    def run(self, work: Callable[[Connection], Answer]) -> Answer:
        """The result of ``work``, once it is committed; or the error that ``work`` raised."""
        mine = _Waiting(work)
        with self._lock:
            self._waiting.append(mine)
        with self._turn:
            while not mine.done.done():  # else the previous thread has committed it
                with self._lock:
                    now, self._waiting = (
                        self._waiting[:GROUP_MAX],
                        self._waiting[GROUP_MAX:],
                    )
                self._commit(now)
        answer: Answer = mine.done.result()
        return answer

    def _commit(self, group: list[_Waiting]) -> None:
        committed: Future[None] = Future()
        run_into_future(committed, lambda: self._work_on(group))
        for each in group:
            error = committed.exception() or each.worked.exception()
            if error is None:
                each.done.set_result(each.answer)
            else:
                each.done.set_exception(error)

    def _work_on(self, group: list[_Waiting]) -> None:
        with self._database.writing() as connection:
            for each in group:
                run_into_future(each.worked, partial(each.do, connection))
                refuse_undone(connection)  # else what follows would be committed alone
