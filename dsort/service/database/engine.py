"""Opens the database, brings it up to date, and provides reading and writing transactions.

:class:`Database` has two kinds of transaction, one that reads and one that writes. Under SQLite all
writing transactions exclude each other; under PostgreSQL, writing transactions of the same name
exclude each other.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pydantic_core
from sqlalchemy import Connection, Engine, Row, Select, create_engine, event, select
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    PendingRollbackError,
)

from dsort.closing import ClosesOnExit
from dsort.data.json_values import from_json, to_json
from dsort.errors import SpecError, StorageError
from dsort.retry import Failures, RetryPolicy
from dsort.service.database.tables import locks

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_MS_MAX = 30_000
BUSY: Final = RetryPolicy(
    tries_max=None, seconds_max=BUSY_MS_MAX / 1000, delay_s_min=0.02, delay_s_max=0.1
)
SILENCE_S_MAX = 60  # of a server: a connection that sends nothing for longer is given up
IDLE_MS_MAX = 30_000  # of a client in the middle of a transaction, whose locks block all others


def stored_value(text: str | bytes) -> Any:
    """The value of a JSON column, in a form that can be sent even if another program wrote the
    text: without lone surrogates, NaN, or more levels than readers follow."""
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        return from_json(to_json(from_json(text)))


_JSON: Final[Mapping[str, Any]] = {"json_serializer": to_json, "json_deserializer": stored_value}
"""Any value can be stored, and every stored value can be read: one unreadable row would hide all
others."""
MIGRATION_LOCK = 0x64736F7274  # "dsort": PostgreSQL's advisory locks are numbers


class Database(ClosesOnExit):
    """The service's database. Safe to use from many threads; one transaction in each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect: str = engine.dialect.name  # sqlite | postgresql
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for queries. Under SQLite all queries see one state of the database; under
        PostgreSQL each query sees all commits from before its beginning."""
        with self._connected() as connection:
            yield connection

    def rows(
        self, query: Select[*tuple[Any, ...]], values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """All rows of one query. ``values``: the values of the query's parameters."""
        with self._connected() as connection:
            return connection.execute(query, values or {}).all()

    @contextlib.contextmanager
    def writing(self, *, alone: str = "") -> Iterator[Connection]:
        """A transaction: its changes are committed at the end of the ``with``, all or none.

        ``alone``: no other transaction with this name runs at the same time, on any replica (under
        SQLite, no other writing transaction at all).
        """
        with self._own_turn(), self._connected() as connection:
            # SQLite: take the write lock now; a transaction that reads first and then writes may be
            # refused.
            connection = connection.execution_options(dsort_writes=True)
            with connection.begin():
                if alone and self.dialect == "postgresql":
                    row = select(locks.c.name).where(locks.c.name == alone).with_for_update()
                    connection.execute(row).one()
                yield connection
                _refuse_undone(connection)

    @contextlib.contextmanager
    def _own_turn(self) -> Iterator[None]:
        # SQLite has no queue for its lock: a thread that waits sleeps for up to 100 ms, and
        # meanwhile a thread that has just written takes the lock again.
        is_ours = self.dialect == "sqlite" and self._turn.acquire(timeout=BUSY_MS_MAX / 1000)
        try:
            yield
        finally:
            if is_ours:
                self._turn.release()

    def _connected(self) -> Connection:
        try:
            return self.engine.connect()
        # pg8000 passes on the OSError if a server sends nothing at all, and raises KeyError for an
        # answer that is not PostgreSQL's. While a server is away, another program may listen on its
        # port, or the kernel may give this port to the client, which then connects to itself.
        except (KeyError, OSError) as error:
            raise OperationalError("connect", {}, error) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _refuse_undone(connection: Connection) -> None:
    """``PendingRollbackError`` if the database has ended the transaction by itself.

    SQLite rolls back the whole transaction if the disk is full; after that, each statement is
    committed at once, and a commit without a transaction is no error
    (sqlite.org/lang_transaction.html).
    """
    if connection.dialect.name == "sqlite" and connection.in_transaction():
        raw: Any = connection.connection.driver_connection
        if not raw.in_transaction:
            raise PendingRollbackError("the database has undone the transaction: its disk is full")


def database_url(text: str) -> URL:
    """The URL with the driver that dsort brings. ``SpecError`` if dsort does not support the
    database."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise SpecError("the database URL cannot be read", hint=_URL_HINT) from None
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+pg8000")
    if url.drivername in ("sqlite", "postgresql+pg8000"):
        return url
    raise SpecError(f"no database of kind {url.drivername!r} is supported", hint=_URL_HINT)


_URL_HINT = "for example sqlite:////var/lib/dsort/service.db, or postgresql://user@host/dsort"


def open_database(
    url: str,
    *,
    connections_max: int = 20,
    migrate: bool = True,
    silence_s_max: float = SILENCE_S_MAX,
) -> Database:
    """Connect, and bring the tables up to date (two replicas may do so at once). Without
    ``migrate`` nothing is sent to the database before its first transaction. ``silence_s_max``: a
    connection is given up after so many seconds in which the server sends nothing.

    ``StorageError`` if the database cannot be reached; ``SpecError`` for an invalid URL.
    """
    parsed = database_url(url)
    try:
        engine = (
            _sqlite(parsed)
            if parsed.drivername == "sqlite"
            else _server(parsed, connections_max, silence_s_max)
        )
        if migrate:
            _migrate(engine)
    except (DBAPIError, NoSuchModuleError, OSError) as error:
        raise StorageError(
            f"the database {parsed.render_as_string(hide_password=True)} cannot be used: "
            + _reason(error),
            hint="check --database or DSORT_DATABASE_URL, and that the server is there",
        ) from error
    return Database(engine)


def _reason(error: Exception) -> str:
    """The server's error message; pg8000 passes on all fields of the message."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    if orig is None:
        return str(error)
    if orig.args and isinstance(orig.args[0], Mapping):
        return str(orig.args[0].get("M", orig))
    return str(orig.__cause__ or orig)


def _sqlite(url: URL) -> Engine:
    if url.database and url.database != ":memory:":
        path = Path(url.database)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():  # SQLite gives its other files the mode of this file
            path.touch(mode=0o600)
    engine = create_engine(
        url,
        # None: the handler of "begin" below begins transactions; the module sqlite3 begins none.
        connect_args={"timeout": BUSY_MS_MAX / 1000, "isolation_level": None},
        pool_size=20,
        max_overflow=30,
        hide_parameters=True,  # of a failed statement: specs and hashes must not get into logs
        **_JSON,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous=FULL")  # so that accepted jobs survive a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA busy_timeout={BUSY_MS_MAX}")
        # As in PostgreSQL.
        cursor.execute("PRAGMA case_sensitive_like=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("dsort_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(cursor: Any) -> None:
    """Switch the database to write-ahead logging. If two connections request this mode for a new
    file at the same time, each would wait for the other, so SQLite refuses one of the requests at
    once."""
    failures = Failures(BUSY)
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            delay_s = failures.add() if is_busy else None
            if delay_s is None:
                raise
            BUSY.sleep(delay_s)


def _server(url: URL, connections_max: int, silence_s_max: float) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections_max,
        max_overflow=10,
        # A server that was restarted has closed the connections of the pool.
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={"timeout": silence_s_max},
        hide_parameters=True,
        **_JSON,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        # Else a machine that disappears keeps its locks for two hours (TCP's timeout).
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MS_MAX}")
        cursor.close()
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def translate(context: ExceptionContext) -> Exception | None:
        # If a socket fails where an answer should begin, pg8000 raises the socket's error. That is
        # not a database error, so SQLAlchemy would not notice that the connection is broken.
        error = context.original_exception
        if not isinstance(error, OSError):
            return None
        context.is_disconnect = True
        return OperationalError(context.statement, None, error)

    return engine


def _migrate(engine: Engine) -> None:
    # Importing alembic takes a third of a second, which job processes need not wait.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        connection = connection.execution_options(dsort_writes=True)
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:  # this version of dsort lacks the revision
                raise StorageError(
                    f"the database was made by another version of dsort: {error}",
                    hint="start with a new database or state directory, or use that version",
                ) from error
