"""The law of what is committed together: whoever is told that its work is done finds it, whatever
happens to the others of its transaction, to the disk, or to the connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dsort.service.database.engine import Database, open_database
from dsort.service.database.group_commit import GroupCommit
from dsort.service.database.tables import locks
from tests.support.group_commits import run_together
from tests.support.postgres import PostgresServer

Work = Callable[[Connection], object]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url) as opened:
        yield opened


def written(name: str) -> Work:
    return lambda connection: connection.execute(insert(locks), {"name": name})


def names(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(connection.execute(select(locks.c.name)).scalars())


def acknowledged(database: Database, works: dict[str, Work]) -> set[str]:
    """Those of ``works``, committed in one transaction, that were told that they are done."""
    outcomes = run_together(GroupCommit(database), list(works.values()))
    for each in outcomes:
        assert each is None or isinstance(each, SQLAlchemyError), each
    return {name for name, error in zip(works, outcomes, strict=True) if error is None}


def test_one_that_fails_is_undone_alone(database: Database) -> None:
    def twice(connection: Connection) -> None:
        written("once")(connection)
        written("a")(connection)

    before = names(database)
    done = acknowledged(database, {"a": written("a"), "once": twice, "b": written("b")})
    assert done == {"a", "b"}
    assert names(database) - before == done


def test_a_disk_that_fills_up_in_the_middle_undoes_nothing_that_was_acknowledged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("full") / "service.db"

    def fill(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE ballast (data)")
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 3}")
        for _ in range(10):
            connection.exec_driver_sql("INSERT INTO ballast VALUES (zeroblob(200000))")

    with open_database(f"sqlite:///{path}") as database:
        before = names(database)
        done = acknowledged(database, {"a": written("a"), "fill": fill, "b": written("b")})
        assert "fill" not in done
        assert names(database) - before == done


@pytest.mark.filterwarnings("ignore")
def test_a_connection_that_breaks_in_the_middle_is_reported_to_all(
    postgres: PostgresServer,
) -> None:
    def cut(connection: Connection) -> None:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        postgres.run(f"SELECT pg_terminate_backend({pid}, 10000)")

    with open_database(postgres.fresh_database()) as database:
        before = names(database)
        assert acknowledged(database, {"a": written("a"), "cut": cut, "b": written("b")}) == set()
        assert names(database) == before
        assert acknowledged(database, {"c": written("c")}) == {"c"}
