"""A real PostgreSQL for tests, from Debian's packages: it is started here and stopped by its pid.

It listens on 127.0.0.1 alone, on a port that was free, admits no client without a random password,
and keeps its files in a directory that is removed at its end. PostgreSQL refuses to run as root, so
root starts it as the user ``postgres``, which the package creates.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pg8000.native

from dsort.service.database.engine import open_database
from dsort.service.database.tables import locks, metadata
from tests.support.debian import apt_install
from tests.support.ports import free_port

INSTALLED = Path("/usr/lib/postgresql")
OWNER = "postgres"
START_SECONDS_MAX = 180
STOP_SECONDS_MAX = 120
POLL_SECONDS = 0.05
SETTINGS: Mapping[str, str] = {
    "fsync": "off",  # a power cut may destroy these databases
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",  # PostgreSQL refuses more with wal_level = minimal
    "autovacuum": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "timezone": "Pacific/Chatham",  # no test may depend on the time zone
}

_numbers = count(1)


@dataclass(frozen=True)
class PostgresServer:
    """A running server, and its address."""

    port: int
    password: str
    pid: int
    log: Path

    def url(self, database: str, *, password: str | None = None) -> str:
        """The URL of a database, for ``--database`` and ``DSORT_DATABASE_URL``."""
        secret = self.password if password is None else password
        return f"postgresql://{OWNER}:{secret}@127.0.0.1:{self.port}/{database}"

    def run(self, statement: str, *, database: str = "postgres") -> list[list[Any]]:
        """The rows of one statement, which is run without dsort."""
        connection = pg8000.native.Connection(
            OWNER,
            host="127.0.0.1",
            port=self.port,
            database=database,
            password=self.password,
            timeout=START_SECONDS_MAX,
        )
        try:
            return list(connection.run(statement) or [])
        finally:
            connection.close()

    def fresh_database(self) -> str:
        """The URL of a new and empty database."""
        name = f"dsort_{next(_numbers)}_{secrets.token_hex(3)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def cleared_database(self) -> str:
        """The URL of a database with dsort's tables, which are empty. All calls use one database,
        because a new one takes ten times as long. Clients that are still connected to it are
        disconnected."""
        names = ", ".join(each.name for each in metadata.sorted_tables if each is not locks)
        self.run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid(); "
            f"TRUNCATE {names} RESTART IDENTITY",
            database=self._lasting_url.rpartition("/")[2],
        )
        return self._lasting_url

    @cached_property
    def _lasting_url(self) -> str:
        url = self.fresh_database()
        open_database(url).close()
        return url


def programs() -> Path:
    """The directory of the newest installed server's programs. If there is none, Debian's package
    is installed; ``CannotInstall`` if that fails."""
    found = _installed()
    if found is None:
        apt_install("postgresql")
        found = _installed()
    if found is None:
        raise RuntimeError(f"Debian's package postgresql is there, but no server in {INSTALLED}")
    return found


def _installed() -> Path | None:
    found = [each.parent for each in INSTALLED.glob("*/bin/initdb")]
    return max(found, key=lambda each: float(each.parent.name), default=None)


@contextmanager
def postgres_server(binaries: Path) -> Iterator[PostgresServer]:
    """Run a server until the end of the block. Raises an error if it does not start."""
    # Only the tests' user may enter pytest's own directory, so the server has another one.
    directory = Path(tempfile.mkdtemp(prefix="dsort-postgres-"))
    try:
        someone: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam(OWNER)
            os.chown(directory, owner.pw_uid, owner.pw_gid)
            someone = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        password = secrets.token_hex(12)
        _make_cluster(binaries, directory, password, someone)
        process, port = _start(binaries, directory, someone)
        try:
            server = PostgresServer(port, password, process.pid, directory / "server.log")
            _wait_until_ready(server, process)
            yield server
        finally:
            _stop(process)
    finally:
        shutil.rmtree(directory)


def _make_cluster(binaries: Path, directory: Path, password: str, someone: dict[str, Any]) -> None:
    secret = directory / "password"
    secret.write_text(password + "\n")
    if someone:  # the umask makes the file unreadable for other users
        os.chown(secret, someone["user"], someone["group"])
    done = subprocess.run(
        [
            binaries / "initdb",
            f"--pgdata={directory / 'data'}",
            f"--username={OWNER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ],
        cwd=directory,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS_MAX,
        check=False,
        **someone,
    )
    secret.unlink()
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")


def _start(
    binaries: Path, directory: Path, someone: dict[str, Any]
) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    command = [str(binaries / "postgres"), "-D", str(directory / "data"), "-p", str(port)]
    for name, value in SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    with (directory / "server.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the tests, not the server
            **someone,
        )
    return process, port


def _environment() -> dict[str, str]:
    """The environment of the server's programs, without PGDATA, PGPORT and the like of the user who
    runs the tests."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}


def _wait_until_ready(server: PostgresServer, process: subprocess.Popen[bytes]) -> None:
    last: Exception | None = None
    for _ in range(int(START_SECONDS_MAX / POLL_SECONDS)):
        try:
            server.run("SELECT 1")
            return
        except (pg8000.native.Error, OSError) as error:  # not yet, or not at all
            last = error
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(
        f"PostgreSQL did not get ready ({last}); its log ends:\n"
        + server.log.read_text(errors="replace")[-4000:]
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)  # "fast": clients are disconnected
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)  # "immediate": it ends its own children
        process.wait()
