"""A service with jobs in every state, which they keep, so that tests can look at its pages.

No job runs. The functions of dispatchers and job processes write the rows; results are those of
real jobs. The service answers on a real socket, from a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import numpy as np
import uvicorn

from dsort.errors import DsortError, JobStoppedError
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.api.app import create_app
from dsort.service.database.tables import JobRow
from dsort.service.jobs.queue import Ending, Limits, ProgressUpdate, claim_next, finish, record
from dsort.service.jobs.store import insert_job
from dsort.service.problems import problem_of
from dsort.service.service import Service
from dsort.spec.load import parse_spec
from tests.support.datasets import Shard, write_shards
from tests.support.engine import plan_local, run_local
from tests.support.engine import record as record_of
from tests.support.internals import JobReport
from tests.support.service_here import config_for
from tests.support.web_looks import show

if TYPE_CHECKING:
    from playwright.sync_api import Page

INPUTS, RECORDS, A_SHARD = 12, 80, 60
PHASES: Final = ("resolve", "extract", "plan", "create", "commit")
SECONDS: Final = {"resolve": 1.2, "extract": 16.0, "plan": 1.9, "create": 31.0, "commit": 0.8}
GIB: Final = 1 << 30
NIGHTS_S: Final = (610, 640, 20, 655, 700, 720, 690, 760)
"""The durations of the schedule's runs; the run of less than a minute failed."""
SCHEDULE: Final = {
    "name": "nightly",
    "description": "All images, in a new order each night",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "labels": ["team-a"],
    "spec": {
        "input_bck": "images",
        "output_bck": "nightly",
        "output_format": "{{date}}/s-%03d",
        "output_shard_records": A_SHARD,
        "algorithm": {"kind": "shuffle", "seed": "{{run_id}}"},
    },
}
WARNINGS: Final = (
    ("missing_shards", "2 input shards of the template are missing: s-12.tar, s-13.tar"),
    ("duplicated_records", "3 records have a key that an earlier one has: 0-001, 4-017, 9-050"),
)


@dataclass
class Gallery:
    """The URL of the service, the tokens of its users, and the ids of its jobs by what they
    show."""

    url: str
    service: Service
    tokens: dict[str, str]
    jobs: dict[str, str]

    def rest(self, who: str, method: str, path: str, body: Any = None) -> Any:
        """Ask the REST interface."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = httpx.request(method, self.url + path, headers=headers, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None


@contextlib.contextmanager
def gallery(root: Path) -> Iterator[Gallery]:
    """The service, with the data root ``root``. Jobs of this process must not begin processes."""
    config = config_for(root, root=root, no_auth=False)
    with Service(config, AistoreGuest()) as service:
        roles = {"alice": "submitter", "ada": "admin"}
        tokens = {name: service.tokens.add(name, role) for name, role in roles.items()}
        tokens["stranger"] = service.tokens.add("stranger", "submitter", ["s3://no"], ["s3://no"])
        jobs = _Jobs(root, service)
        with _served(service) as url:
            found = Gallery(url, service, tokens, {})
            found.rest("alice", "POST", "/v1/schedules", SCHEDULE)
            for took_s in NIGHTS_S:
                run = found.rest("alice", "POST", "/v1/schedules/nightly/run-now")
                jobs.ran(run["job_id"], took_s)
            found.jobs |= jobs.all()
            found.rest("alice", "POST", "/v1/schedules/nightly/run-now")
            yield found


@contextlib.contextmanager
def _served(service: Service) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            service.feed.end()
            server.should_exit = True
            thread.join()


class _Jobs:
    """Writes the rows of jobs, oldest first."""

    def __init__(self, root: Path, service: Service) -> None:
        self.root, self.service = root, service
        self.now_s = time.time() - 20_000
        write_shards(root / "images", {f"s-{n:02}.tar": _shard(n) for n in range(INPUTS)})
        self.places = {name: (root / name).as_uri() for name in ("images", "shuffled")}

    def all(self) -> dict[str, str]:
        """The ids of the jobs, by what they show."""
        jobs = {
            "none": self.result("copied", {"kind": "none"}, "Copy, in the order of the input"),
            "sorted": self.result("sorted", {"kind": "alphanumeric"}, "", ["by-hand"]),
            "shuffled": self.result("shuffled", {"kind": "shuffle", "seed": 3}, "Shuffle images"),
            "warned": self.result(
                "warned", {"kind": "shuffle", "seed": 4}, "Nightly shuffle", warnings=WARNINGS
            ),
            "view": self.result(
                "view", {"kind": "shuffle", "seed": 5}, "Tonight's order", made="view"
            ),
            "plan": self.plan(),
            "failed": self.failed(),
            "stopped": self.stopped(),
        }
        jobs |= {f"running-{phase}": self.running(phase) for phase in PHASES}
        jobs["stopping"] = self.running("create", description="Not wanted any more")
        self.service.store.ask_stop(jobs["stopping"], "the disk is full")
        jobs["queued"] = self.submitted("queued", description="Tomorrow's shuffle")
        return jobs

    def submitted(self, output: str, *, job_id: str = "", **more: Any) -> str:
        """Put a job into the queue. Returns its id."""
        self.now_s += 600
        number = int(self.now_s)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.now_s))
        new = JobRow(
            job_id=job_id or f"{stamp}-{number % 0xFFFFFF:06x}",
            kind=more.pop("kind", "run"),
            owner="alice",
            spec=parse_spec(
                self.spec(output, more.pop("algorithm", None), more.pop("made", "shards"))
            ).spec.canonical(),
            input_uri=self.places["images"],
            output_uri=(self.root / output).as_uri(),
            claims=[[f"file:///{output}-{number}", "s-%d"]],
            **more,
        )
        with self.service.database.writing() as connection:
            return insert_job(connection, new, now_s=self.now_s).job_id

    def spec(
        self, output: str, algorithm: Mapping[str, Any] | None = None, made: str = "shards"
    ) -> dict[str, Any]:
        return {
            "input_bck": "images",
            "output_bck": output,
            "output": made,
            "output_format": "shard-%03d",
            "output_shard_records": A_SHARD,
            "algorithm": algorithm or {"kind": "shuffle", "seed": 7},
        }

    def begun(self, output: str, **more: Any) -> str:
        job_id = self.submitted(output, **more)
        self.now_s += 2
        row = claim_next(
            self.service.database,
            host="worker-1/boot",
            replica="here",
            limits=Limits(99, 99),
            now_s=self.now_s,
        )
        assert row is not None
        assert row.job_id == job_id
        return job_id

    def ran(self, job_id: str, took_s: float) -> None:
        """Begin and end the only job in the queue."""
        queue, database = Limits(99, 99), self.service.database
        self.now_s += 60
        row = claim_next(
            database, host="worker-1/boot", replica="here", limits=queue, now_s=self.now_s
        )
        assert row is not None
        assert row.job_id == job_id
        self.now_s += took_s
        if took_s > 60:
            self.end(job_id, Ending("finished", 0))
            return
        problem = problem_of(DsortError("the disk is full"), job_id=job_id)
        self.end(job_id, Ending("failed", 1, error=problem))

    def end(self, job_id: str, ending: Ending, update: ProgressUpdate | None = None) -> str:
        database = self.service.database
        assert finish(database, job_id, 1, ending, now_s=self.now_s, latest=update)
        return job_id

    def result(
        self,
        output: str,
        algorithm: dict[str, Any],
        description: str = "",
        labels: Sequence[str] = (),
        warnings: Sequence[tuple[str, str]] = (),
        made: str = "shards",
    ) -> str:
        """A finished job with its result."""
        report = run_local(self.root, self.spec(output, algorithm, made))
        job_id = self.begun(
            output,
            job_id=report.job_id,
            algorithm=algorithm,
            description=description,
            labels=tuple(labels),
            made=made,
        )
        self.now_s += sum(report.run.phase_seconds.values())
        update = ProgressUpdate(
            events=[
                (self.now_s, "warning", {"kind": kind, "text": text}) for kind, text in warnings
            ],
            phases=_phases_of(report),
            warning_count=len(warnings),
        )
        return self.end(job_id, Ending("finished", 0, report.to_dict()), update)

    def plan(self) -> str:
        report = plan_local(self.root, self.spec("planned")).to_dict()
        job_id = self.begun("planned", kind="plan", description="What would it write?")
        shards = report["shards"]
        result = {**report, "job_id": job_id, "shards_total": len(shards)}
        self.now_s += 4
        return self.end(job_id, Ending("finished", 0, result))

    def failed(self) -> str:
        """A job that failed because its output names exist, with the engine's own message."""
        job_id = self.begun("shuffled", description="The same again")
        self.now_s += 1
        try:
            run_local(self.root, self.spec("shuffled"))
        except DsortError as error:
            problem = problem_of(error, job_id=job_id)
            return self.end(job_id, Ending("failed", problem["exit_code"], error=problem))
        raise AssertionError("the names are not taken")

    def stopped(self) -> str:
        job_id = self.begun("to-stop", description="Shuffle of last week")
        self.tell(job_id, "extract")
        self.service.store.ask_stop(job_id, "too slow")
        error = JobStoppedError("the job was stopped: too slow")
        return self.end(job_id, Ending("stopped", 143, error=problem_of(error), reason="too slow"))

    def running(self, phase: str, description: str = "") -> str:
        job_id = self.begun(f"out-{phase}", description=description or f"In phase {phase}")
        self.tell(job_id, phase)
        return job_id

    def tell(self, job_id: str, phase: str) -> None:
        """Write the progress of a job of 8 GiB until the middle of ``phase``. Extraction is fast at
        first, as for inputs in the page cache."""
        events: list[tuple[float, str, dict[str, Any]]] = [
            (
                self.now_s,
                "started",
                {"input_shards": 64, "input_bytes": 8 * GIB, "workers": 2, "move": "spill"},
            )
        ]
        phases: list[dict[str, Any]] = []
        for each in PHASES[: PHASES.index(phase) + 1]:
            seconds = SECONDS[each] * (0.6 if each == phase else 1)
            for progress in _progress(each, seconds):
                events.append((self.now_s + progress["elapsed_s"], "progress", progress))
            self.now_s += seconds
            if each != phase:
                records = 0 if each == "resolve" else 2_000_000
                phases.append(_phase(each, seconds, 64, records, 8 * GIB))
                events.append((self.now_s, "phase", {**phases[-1], "elapsed_s": seconds}))
        last = next(data for _, kind, data in reversed(events) if kind == "progress")
        update = ProgressUpdate(events=events, phase=phase, progress=last, phases=phases)
        record(self.service.database, job_id, 1, update, now_s=self.now_s)


def _shard(number: int) -> Shard:
    sizes = np.random.default_rng(number).integers(100, 3000, RECORDS)
    return Shard(
        tuple(
            member
            for at, size in enumerate(sizes)
            for member in record_of(f"{number}-{at:03}", payload=b"x" * int(size))
        )
    )


def _phase(phase: str, seconds: float, shards: int, records: int, size: int) -> dict[str, Any]:
    return {
        "phase": phase,
        "seconds": seconds,
        "shards": shards,
        "records": records,
        "bytes": size,
    }


def _phases_of(report: JobReport) -> list[dict[str, Any]]:
    shards = {"extract": report.totals.input_shards, "create": report.output_shards}
    return [
        _phase(
            phase,
            seconds,
            shards.get(phase, 0),
            0 if phase == "resolve" else report.records,
            report.totals.file_bytes,
        )
        for phase, seconds in report.run.phase_seconds.items()
    ]


def _progress(phase: str, seconds: float) -> Iterator[dict[str, Any]]:
    moves = phase in ("extract", "create")
    done = 0.0
    for at in np.linspace(0, seconds, 40):
        rate = 3.1e9 if phase == "extract" and 0.4 < at < 0.9 else 2.4e8 * (1 + 0.2 * np.sin(at))
        done += rate * seconds / 40 if moves and at else 0
        yield {
            "phase": phase,
            "shards_done": int(64 * done / (8 * GIB)),
            "shards_total": 64 if moves else 0,
            "records_done": int(2_000_000 * done / (8 * GIB)),
            "bytes_done": int(done),
            "bytes_total": 8 * GIB if moves else 0,
            "elapsed_s": round(float(at), 3),
            "bytes_per_s": round(float(rate), 1) if moves and at else None,
        }


def show_job(page: Page, place: Gallery, name: str, sign: str = ".tiles") -> Page:
    """Show the page of a job, by its name in the gallery."""
    return show(page, f"#/jobs/{place.jobs[name]}", sign)
