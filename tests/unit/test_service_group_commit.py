"""Transactions of many threads are committed together, and each fails alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from dsort.errors import ConflictError
from dsort.service.database.engine import Database, open_database
from dsort.service.database.group_commit import GroupCommit
from dsort.service.database.tables import locks


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path}/service.db")


def names(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(connection.execute(select(locks.c.name)).scalars())


def test_what_is_answered_is_committed(database: Database) -> None:
    commits = GroupCommit(database)

    def add(number: int) -> int:
        def work(connection: Connection) -> int:
            connection.execute(insert(locks), {"name": f"n{number}"})
            return number

        answer = commits.run(work)
        assert f"n{number}" in names(database)
        return answer

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(add, range(200))) == list(range(200))


def test_one_that_fails_is_undone_alone(database: Database) -> None:
    commits = GroupCommit(database)
    begun, go_on = threading.Event(), threading.Event()

    def first(connection: Connection) -> None:
        begun.set()  # it has the turn: those that come now are in the next transaction, together
        assert go_on.wait(120)
        connection.execute(insert(locks), {"name": "first"})

    def good(connection: Connection) -> str:
        connection.execute(insert(locks), {"name": "good"})
        return "good"

    def bad(connection: Connection) -> None:
        connection.execute(insert(locks), {"name": "bad"})
        raise ConflictError("no")

    with ThreadPoolExecutor(3) as pool:
        leading = pool.submit(commits.run, first)
        assert begun.wait(120)
        others = [pool.submit(commits.run, work) for work in (good, bad)]
        go_on.set()
        leading.result(30)
        assert others[0].result(30) == "good"
        with pytest.raises(ConflictError):
            others[1].result(30)
    assert {"first", "good"} <= names(database)
    assert "bad" not in names(database)


def test_after_an_error_of_any_kind_the_next_one_has_its_turn(database: Database) -> None:
    commits = GroupCommit(database)
    with pytest.raises(ZeroDivisionError):
        commits.run(lambda connection: 1 // 0)
    assert commits.run(lambda connection: 7) == 7
