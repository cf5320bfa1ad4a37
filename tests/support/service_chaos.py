"""Services, processes of jobs and PostgreSQL that are killed at random moments: all jobs end once.

``python -m tests.support.service_chaos --kills 500`` (``make service-chaos``); ``--seed 7`` repeats
the part with this seed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.exc import DBAPIError

from dsort.service.database.engine import open_database
from dsort.service.database.tables import JobRow
from dsort.service.jobs.store import JobFilter, JobStore
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import points_environment
from tests.support.forked import end_nurseries
from tests.support.postgres import programs
from tests.support.postgres_restarts import RestartedServer, restarted_server
from tests.support.service_process import ServiceProcess, await_that, end_marked, running_service

KILLS_OF_A_SEED = 25
JOBS_AT_ONCE = 4
PAUSE_S_MAX = 0.6
DEATHS_MAX = 2
"""A job may die so often; at its third death it rightly fails."""
BLOWS = ("job", "job", "job terminated", "service", "service terminated", "database", "both")
SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 5}, "output_shard_records": 7}


class ServiceChaos:
    """One service and its database, under faults ("blows") that are drawn from ``seed``.
    ``struck``: the number of blows of each kind."""

    def __init__(self, seed: int, root: Path, server: RestartedServer) -> None:
        self.struck: Counter[str] = Counter()
        self._rng, self._pause = random.Random(f"service chaos {seed}"), threading.Event()
        self._root, self._server, self._mark = root, server, secrets.token_hex(8)
        name = server.server.fresh_database().rpartition("/")[2]
        # The server will be killed, so each commit has to be written at once.
        server.server.run(f"ALTER DATABASE {name} SET synchronous_commit = on")
        self._url = server.server.url(name)
        self._database = open_database(self._url)
        self._store = JobStore(self._database)
        self._services = contextlib.ExitStack()
        self._jobs: dict[str, str] = {}  # by the names of their outputs
        self._blows_of: Counter[str] = Counter()
        write_shards(root / "in", small_dataset("chaos", shards=3, records=12))

    def run(self, kills: int) -> None:
        """Make ``kills`` kills, with jobs in the queue all the time, and let all jobs end."""
        try:
            self._service = self._begin_service()
            while kills_of(self.struck) < kills:
                while sum(not row.ended for row in self._rows()) < JOBS_AT_ONCE:
                    self._submit()
                self._pause.wait(self._rng.random() * PAUSE_S_MAX)
                self._strike(self._rng.choice(BLOWS))
            await_that(lambda: all(row.ended for row in self._rows()), why=f"{self._states()}")
            self._check()
        finally:
            self._services.close()
            end_marked(self._mark)
            self._database.close()

    def _begin_service(self) -> ServiceProcess:
        arguments = ["--root", str(self._root), "--state-dir", str(self._root / "state")]
        arguments += ["--no-auth", "--database", self._url, "--workers", "1"]
        arguments += ["--max-running-jobs", "2"]
        env = points_environment(self._root / "no faults")
        service = running_service(self._root, *arguments, env=env, mark=self._mark)
        return self._services.enter_context(service)

    def _strike(self, blow: str) -> None:
        if blow.startswith("job"):
            number = signal.SIGTERM if blow == "job terminated" else signal.SIGKILL
            self._strike_job(blow, number)
            return
        self.struck[blow] += 1
        if blow in ("database", "both"):
            self._database.close()  # else SQLAlchemy logs each connection that is lost
            self._server.kill()
        if blow in ("service", "both"):
            self._service.kill()
        if blow == "service terminated":  # which ends the processes of its jobs
            self._blows_of.update(row.job_id for row in self._rows() if row.state == "running")
            assert self._service.stop() == 0
        self._pause.wait(self._rng.random() * PAUSE_S_MAX)
        if blow in ("database", "both"):
            self._server.start()
        if blow != "database":
            self._rows()  # the database answers again
            self._service = self._begin_service()

    def _strike_job(self, blow: str, number: int) -> None:
        running = [row for row in self._rows() if row.state == "running" and row.pid]
        mortal = [
            row for row in running if max(row.deaths, self._blows_of[row.job_id]) < DEATHS_MAX
        ]
        if mortal:
            row = self._rng.choice(mortal)
            with contextlib.suppress(ProcessLookupError):
                os.kill(row.pid or 0, number)
                self.struck[blow] += 1
                self._blows_of[row.job_id] += 1

    def _submit(self) -> None:
        """Submit one more job, again and again until it is acknowledged, as a client does."""
        output = f"out-{len(self._jobs)}"
        spec = spec_of(**{"output_bck": output, **SHUFFLE})

        def acknowledged() -> dict[str, Any] | None:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(
                    f"{self._service.url}/v1/jobs",
                    json=spec,
                    headers={"Idempotency-Key": output},
                    timeout=120,
                )
                assert answer.status_code in (200, 201, 503), answer.text
                return None if answer.status_code == 503 else dict(answer.json())
            return None

        self._jobs[output] = await_that(acknowledged, why="no submission is accepted")["job_id"]

    def _rows(self) -> tuple[JobRow, ...]:
        """All jobs, as soon as the database answers."""

        def asked() -> tuple[JobRow, ...] | None:
            with contextlib.suppress(DBAPIError):
                return self._store.list(JobFilter(), limit=10_000).rows
            return None

        return await_that(asked, why="the database does not answer")

    def _states(self) -> dict[str, str]:
        return {row.job_id: row.state for row in self._rows()}

    def _check(self) -> None:
        """Check that each acknowledged job has ended once, with the right shards, and that none has
        died more often than its process received a signal. A process that receives SIGTERM while
        the database is away cannot hand its job over, and counts as dead."""
        rows = {row.job_id: row for row in self._rows()}
        assert rows.keys() == set(self._jobs.values())
        run_local(self._root, spec_of(**{"output_bck": "expected", **SHUFFLE}))
        expected = files_of(self._root / "expected")
        for output, job_id in self._jobs.items():
            row = rows[job_id]
            events = self._store.events_after(0, job_id=job_id, limit=10_000)
            changes = [each.data for each in events if each.kind == "state"]
            states = [each["state"] for each in changes]
            assert (row.state, row.error, states.count("finished")) == ("finished", None, 1), (
                changes
            )
            assert row.deaths <= self._blows_of[job_id], (changes, self._logs(job_id))
            assert states.count("running") == row.attempt, changes
            assert files_of(self._root / output) == expected, output

    def _logs(self, job_id: str) -> list[str]:
        """The logs of all attempts at a job."""
        found = sorted((self._root / "state").rglob(f"*{job_id}*"))
        return [f"{path.name}: {path.read_text()}" for path in found if path.is_file()]


def kills_of(struck: Counter[str]) -> int:
    """The number of blows that were SIGKILL."""
    return struck.total() - struck["job terminated"] - struck["service terminated"]


@contextlib.contextmanager
def chaos_server() -> Iterator[RestartedServer]:
    """A PostgreSQL that can be killed. Raises ``CannotInstall``."""
    with restarted_server(programs()) as server:
        yield server


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run parts, each with a new seed, until there were enough kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.service_chaos")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, help="only the part that has this seed")
    parsed = parser.parse_args(arguments)
    struck: Counter[str] = Counter()
    with chaos_server() as server:
        while kills_of(struck) < parsed.kills:
            seed = secrets.randbelow(1_000_000) if parsed.seed is None else parsed.seed
            say(f"seed {seed}, after {kills_of(struck)} kills")
            with tempfile.TemporaryDirectory(prefix="dsort-chaos-") as directory:
                chaos = ServiceChaos(seed, Path(directory), server)
                chaos.run(min(KILLS_OF_A_SEED, parsed.kills - kills_of(struck)))
            struck += chaos.struck
            if parsed.seed is not None:
                break
    end_nurseries()
    say(f"{kills_of(struck)} kills, each job ended once: {dict(struck)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
