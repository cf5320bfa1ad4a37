"""The law of the service's database, the same on SQLite and PostgreSQL: its migrations lead from
nothing to the tables that the code knows, a transaction happens whole or not at all, who wants to
be alone is, and what is wrong with a URL or a server is said in words."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pg8000.core
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from msgspec.structs import replace
from sqlalchemy import Connection, func, insert, inspect, select, text
from sqlalchemy.exc import (
    DatabaseError,
    DBAPIError,
    OperationalError,
    SQLAlchemyError,
)

from dsort.errors import SpecError, StorageError
from dsort.service.database import engine, tables
from dsort.service.database.engine import BUSY, Database, open_database
from dsort.service.database.tables import locks
from tests.support.databases import on_both_databases
from tests.support.job_rows import job_row
from tests.support.postgres import PostgresServer
from tests.support.refusals import raises
from tests.support.service_here import ServiceHere
from tests.support.service_process import await_that

WAIT_S = 120


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Here the tables, too, are yet to be made."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/service.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh_database()


def note(target: str) -> dict[str, object]:
    row = {"at": 1.5, "who": "ann", "address": "", "action": "job.submit", "target": target}
    return row | {"details": {"größe": [1, None, True]}}


def noted(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.scalars(select(tables.audit.c.target).order_by("number")))


def job(job_id: str) -> dict[str, object]:
    row = job_row(job_id, input_uri="file:///a", output_uri="file:///b", claims=None)
    return row.values()


@on_both_databases
def test_migrations_lead_from_nothing_to_the_tables_in_the_code(database: Database) -> None:
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
        there = set(inspect(connection).get_table_names())
    assert there == {*tables.metadata.tables, "alembic_version"}


@pytest.mark.parametrize("version", ["0006", "0.1"])  # the latter had two sets of tables
def test_a_database_of_another_version_is_refused_and_stays_as_it_is(
    database_url: str, version: str
) -> None:
    with open_database(database_url) as other, other.writing() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        connection.execute(insert(tables.audit).values(note("a")))
    with raises(StorageError, f"'{version}'"):
        open_database(database_url)
    with open_database(database_url, migrate=False) as other:
        assert noted(other) == ["a"]


@on_both_databases
def test_replicas_that_open_a_database_at_once_all_find_its_tables(database_url: str) -> None:
    together = threading.Barrier(3)

    def opened() -> list[str]:
        together.wait(WAIT_S)
        with open_database(database_url) as database:
            return noted(database)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(opened) for _ in range(3)]
        assert [each.result(WAIT_S) for each in waiting] == [[], [], []]


def test_opening_a_new_file_waits_for_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often SQLite refuses to have the file written ahead: that depends on the machine."""
    refused: list[float] = []
    impatient = replace(BUSY, sleep=refused.append)
    monkeypatch.setattr("dsort.service.database.engine.BUSY", impatient)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(open_database, f"sqlite:///{tmp_path}/new.db")
        await_that(lambda: waiting.done() or len(refused) > 300)
        other.execute("ROLLBACK")
        with waiting.result(WAIT_S) as database:
            assert noted(database) == []


@on_both_databases
def test_a_transaction_happens_whole_or_not_at_all(database: Database) -> None:
    def fail() -> None:
        with database.writing() as connection:
            connection.execute(insert(tables.audit).values(note("lost")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.writing() as connection:
        connection.execute(insert(tables.audit).values(note("kept")))
        assert noted(database) == []  # others see it only after its end
    assert noted(database) == ["kept"]


def test_a_disk_that_fills_up_in_a_transaction_undoes_all_of_it_and_is_an_error(
    tmp_path: Path,
) -> None:
    """SQLite undoes the transaction by itself, and commits all that follows at once."""

    def fill(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE ballast (data)")
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 3}")
        for _ in range(10):
            connection.exec_driver_sql("INSERT INTO ballast VALUES (zeroblob(200000))")

    def write(database: Database) -> None:
        with database.writing() as connection:
            connection.execute(insert(tables.audit).values(note("before")))
            with contextlib.suppress(SQLAlchemyError):
                fill(connection)

    with open_database(f"sqlite:///{tmp_path}/full.db") as database:
        with pytest.raises(SQLAlchemyError):
            write(database)
        assert noted(database) == []


@pytest.mark.filterwarnings("ignore")
def test_a_connection_that_breaks_in_a_transaction_undoes_all_of_it(
    postgres: PostgresServer,
) -> None:
    def write(database: Database) -> None:
        with database.writing() as connection:
            connection.execute(insert(tables.audit).values(note("lost")))
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            postgres.run(f"SELECT pg_terminate_backend({pid}, 10000)")

    with open_database(postgres.fresh_database()) as database:
        with pytest.raises(SQLAlchemyError):
            write(database)
        assert noted(database) == []


@on_both_databases
def test_threads_that_write_at_once_all_do_and_each_fails_alone(database: Database) -> None:
    def write(number: int) -> None:
        with database.writing() as connection:
            connection.execute(insert(tables.audit).values(note(str(number))))
            if number % 3 == 0:
                raise ZeroDivisionError

    with ThreadPoolExecutor(16) as pool:
        failed = [pool.submit(write, number).exception(WAIT_S) for number in range(60)]
    assert [number for number, error in enumerate(failed) if error] == list(range(0, 60, 3))
    assert sorted(noted(database)) == sorted(str(n) for n in range(60) if n % 3)


@on_both_databases
def test_values_come_back_as_they_were(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(insert(tables.audit).values(note("a")))
    with database.reading() as connection:
        row = connection.execute(select(tables.audit)).one()
    assert row._asdict() == {"number": 1} | note("a")


@on_both_databases
def test_an_exclusive_transaction_changes_what_it_read_undisturbed(database: Database) -> None:
    together = threading.Barrier(4)

    def count_up() -> None:
        together.wait(WAIT_S)
        for _ in range(5):
            with database.writing(alone="dispatch") as connection:
                number = connection.scalar(select(func.count()).select_from(tables.audit))
                connection.execute(insert(tables.audit).values(note(str(number))))

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(count_up) for _ in range(4)]:
            each.result(WAIT_S)
    assert noted(database) == [str(number) for number in range(20)]


@on_both_databases
def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    with database.writing(alone="dispatch") as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(insert(tables.audit).values(note("a")))
        assert pool.submit(noted, database).result(WAIT_S) == []


def test_labels_and_events_need_their_job_and_go_with_it(database: Database) -> None:
    with pytest.raises(DatabaseError), database.writing() as connection:
        connection.execute(insert(tables.labels).values(job_id="none", label="nightly"))
    with database.writing() as connection:
        connection.execute(insert(tables.jobs).values(job("a")))
        connection.execute(insert(tables.labels).values(job_id="a", label="nightly"))
        connection.execute(insert(tables.events).values(job_id="a", at=1.0, kind="log", data={}))
        connection.execute(tables.jobs.delete())
    with database.reading() as connection:
        for table in (tables.labels, tables.events):
            assert connection.scalar(select(func.count()).select_from(table)) == 0


@on_both_databases
def test_like_is_case_sensitive(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(insert(tables.jobs), [job("abc"), job("ABC")])
        found = select(tables.jobs.c.job_id).where(tables.jobs.c.job_id.like("a%"))
        assert connection.scalars(found).all() == ["abc"]


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://a@b/c", "postgresql+psycopg2://a@b/c"])
def test_an_unknown_database_url_is_a_spec_error(url: str) -> None:
    with raises(SpecError, hint="sqlite:///"):
        open_database(url)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with socket.socket() as held:  # bound, but it does not listen
        held.bind(("127.0.0.1", 0))
        url = f"postgresql://ann:s3cret@127.0.0.1:{held.getsockname()[1]}/dsort"
        with pytest.raises(StorageError) as failed:
            open_database(url)
    said = f"{failed.value} {failed.value.hint}"
    assert "127.0.0.1" in said
    assert "Connection refused" in said
    assert "s3cret" not in said


def test_a_wrong_password_is_reported(postgres: PostgresServer) -> None:
    with raises(StorageError, "password") as failed:
        open_database(postgres.url("postgres", password="wr0ng"))
    assert "wr0ng" not in str(failed.value)


def test_a_missing_database_is_reported(postgres: PostgresServer) -> None:
    with raises(StorageError, '"nowhere"'):
        open_database(postgres.url("nowhere"))


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/service.db"])
def test_a_file_that_is_no_database_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("dear diary " * 200)
    with raises(StorageError, f"{tmp_path}/notes.txt"):
        open_database(f"sqlite:///{tmp_path}/{name}")


def test_a_client_that_hangs_in_a_transaction_does_not_keep_its_locks(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.cleared_database()  # has its tables: to make them may take pauses of this length
    monkeypatch.setattr(engine, "IDLE_MS_MAX", 200)
    names = select(locks.c.name)
    with (
        open_database(url, migrate=False, silence_s_max=10) as opened,
        pytest.raises(SQLAlchemyError),
        opened.writing(alone="dispatch"),
        opened.writing(alone="dispatch") as second,
    ):
        assert second.execute(names).scalars().all()


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ann:x@127.0.0.1:{silent.getsockname()[1]}/dsort"
        with (
            open_database(url, migrate=False, silence_s_max=0.2) as opened,
            pytest.raises(DBAPIError),
            opened.reading(),
        ):
            pass


def test_a_port_with_another_program_is_a_database_that_does_not_answer() -> None:
    def echo() -> None:
        # A client is its own peer if it gets the port of a server that is away as its own.
        peer, _ = other.accept()
        with peer:
            while data := peer.recv(1 << 10):
                peer.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as threads:
        threads.submit(echo)
        url = f"postgresql://ann:x@127.0.0.1:{other.getsockname()[1]}/dsort"
        with (
            open_database(url, migrate=False, silence_s_max=10) as opened,
            pytest.raises(DBAPIError),
            opened.reading(),
        ):
            pass


@pytest.mark.parametrize("broken", [ConnectionResetError, TimeoutError])
def test_a_connection_that_breaks_is_an_error_of_the_database_and_is_replaced(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, broken: type[OSError]
) -> None:
    def read(*args: object) -> bytes:
        raise broken("as the socket says it")

    names = select(locks.c.name)
    with open_database(postgres.fresh_database()) as opened:
        with opened.reading() as connection, monkeypatch.context() as patched:
            patched.setattr(pg8000.core, "_read", read)
            with pytest.raises(OperationalError):
                connection.execute(names)
        with opened.reading() as connection:
            assert connection.execute(names).scalars().all()


def test_the_embedded_database_is_for_its_user_alone(here: ServiceHere, tmp_path: Path) -> None:
    found = list(tmp_path.glob("service.db*"))
    assert found
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)
