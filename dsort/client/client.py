"""``DsortClient``: all functions of a service, as methods; ``Schedules`` has those of schedules."""

from __future__ import annotations

import json
import os
import re
import ssl
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dsort.client.data import Data
from dsort.client.events import JobEvent, stream_events
from dsort.client.tokens import Tokens
from dsort.client.transforms import Transforms
from dsort.client.transport import Patience, Query, Transport
from dsort.client.values import Identity, Job, Schedule, ScheduleRun, Validation, report_of
from dsort.closing import ClosesOnExit
from dsort.errors import NotFoundError, ServiceError, SpecError
from dsort.results.report import JobReport

if TYPE_CHECKING:
    import httpx

    from dsort.spec.model import JobSpec

__all__ = [
    "DsortClient",
    "Schedules",
    "behind",
    "jobs_query",
    "named_service",
    "token_of",
    "trusted",
]

PAGE = 200
TIMEOUT_S = 30.0
JOBS_NAMED = 5
LOG_DELAY_S = 0.5
LOG_DELAY_MAX_S = 4.0
LOG_OVERLAP = 4096
WHOLE_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


class DsortClient(ClosesOnExit):
    """A dsort service, for Python.

    ``url``: like ``http://127.0.0.1:8080``; default ``DSORT_SERVER``. ``token``: default
    ``DSORT_TOKEN``, else the content of the file that ``token_file`` or ``DSORT_TOKEN_FILE`` names;
    ``verify``: whether the service's certificate is checked, or the file (default
    ``DSORT_CA_FILE``) of the authorities to trust. All errors are ``DsortError``: the service's
    problems as the library itself would have raised them, and ``ServiceError`` if the connection to
    it fails. ``on_wait`` is called with a text when the client has to wait. Requests that do
    no harm when repeated are sent again, as ``patience`` allows.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: str | Path | None = None,
        timeout_s: float = TIMEOUT_S,
        verify: bool | str | Path | ssl.SSLContext | None = None,
        patience: Patience | None = None,
        on_wait: Callable[[str], None] | None = None,
        http: httpx.BaseTransport | None = None,
    ) -> None:
        self._transport = Transport(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=http,
        )
        self.schedules = Schedules(self._transport)
        self.transforms = Transforms(self._transport)
        self.data = Data(self._transport)
        self.tokens = Tokens(self._transport)

    @classmethod
    def over(cls, transport: Transport) -> DsortClient:
        """A client that uses ``transport``."""
        client = cls.__new__(cls)
        client._transport = transport
        client.schedules = Schedules(transport)
        client.transforms = Transforms(transport)
        client.data = Data(transport)
        client.tokens = Tokens(transport)
        return client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The service's address."""
        return self._transport.url

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # --- jobs ------------------------------------------------------------------------------------

    def submit(
        self,
        spec: Mapping[str, Any] | JobSpec | str | Path,
        *,
        priority: int = 0,
        labels: Iterable[str] = (),
        description: str = "",
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Put a job into the queue; returns the job as it is there.

        ``spec``: its fields, a ``JobSpec``, the path of a JSON or YAML file, or the text itself if
        it begins with ``{``. Higher ``priority`` goes first. ``dry_run``: only plan it. Two submits
        with one ``idempotency_key`` are one job; without a key each call makes a key of its own, so
        that the request may be sent again if the connection breaks.
        """
        query: list[tuple[str, str | int]] = [("label", each) for each in labels]
        query += [("priority", priority)] * bool(priority)
        query += [("description", description)] * bool(description)
        query += [("dry_run", 1)] * dry_run
        content, kind = _body(spec)
        headers = {"Content-Type": kind, "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Job.of(
            self._transport.document(
                "POST", "/v1/jobs", query=query, content=content, headers=headers, repeatable=True
            )
        )

    def get(self, job_id: str) -> Job:
        """One job, with its spec and, once it has ended, its result."""
        return Job.of(self._read(_path(job_id)))

    def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; a leading ``srt-``, which AIStore's
        clients add, is ignored. ``NotFoundError`` if there is none, ``SpecError`` that lists them
        if there are several."""
        job = job.removeprefix("srt-")
        if WHOLE_ID.fullmatch(job):
            return self.get(job)
        found = [each for each in self.list(text=job) if each.job_id.startswith(job)]
        if len(found) == 1:
            return self.get(found[0].job_id)
        if found:
            names = ", ".join(each.job_id for each in found[:JOBS_NAMED])
            more = ", ..." if len(found) > JOBS_NAMED else ""
            raise SpecError(f"{job!r} fits several jobs: {names}{more}", hint="give more of the id")
        raise NotFoundError(f"there is no job {job!r}", hint="`dsort show` lists those there are")

    def list(
        self,
        *,
        state: str | Sequence[str] = (),
        owner: str | None = None,
        label: str | Sequence[str] = (),
        since: datetime | str | None = None,
        kind: str | None = None,
        schedule: str | None = None,
        text: str = "",
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first, requested page by page. ``state``: any of these; ``label``: all of
        these; ``since``: submitted then or later; ``text``: the beginning of their id, or a part of
        their description; ``limit``: the most jobs to return."""
        given = {"owner": owner, "kind": kind, "schedule": schedule}
        return self._pages(jobs_query(state, label, since, given, text), limit)

    def _pages(self, query: Query, limit: int | None) -> Iterator[Job]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            jobs, cursor = self.page_of_jobs(query, left, cursor)
            yield from jobs
            left = None if left is None else left - len(jobs)
            if not cursor:
                return

    def page_of_jobs(
        self, query: Query, left: int | None, cursor: str | None
    ) -> tuple[Sequence[Job], str | None]:
        """(at most ``left`` jobs, where the next ones begin) from ``cursor`` on."""
        page: list[tuple[str, str | int]] = [("limit", PAGE if left is None else min(PAGE, left))]
        page += [("cursor", cursor)] if cursor else []
        document = self._read("/v1/jobs", [*query, *page])
        jobs = document.get("jobs") if isinstance(document, Mapping) else None
        if not isinstance(jobs, list):
            raise ServiceError(f"what {self.url} answers is no list of jobs")
        return [*map(Job.of, jobs)], document.get("next_cursor")

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> Job:
        """The job once it has ended.

        There is no polling: the service sends events, and ``on_event`` is called with each. A
        failed job raises no error here: see ``Job.raise_if_failed``. ``WaitTimeoutError`` after
        ``timeout_s``; the job runs on.
        """
        return self.wait_all([job_id], timeout_s=timeout_s, on_event=on_event)[0]

    def wait_all(
        self,
        job_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> tuple[Job, ...]:
        """The jobs, in this order, once all of them have ended; like ``wait``, with one time limit
        for all. The events of one job come after those of the job before it, even if it was
        quicker."""
        deadline_s = None if timeout_s is None else self._transport.clock() + timeout_s
        ended = []
        for job_id in job_ids:
            for event in stream_events(self._transport, job_id, deadline_s=deadline_s):
                if on_event is not None:
                    on_event(event)
            ended.append(self.get(job_id))
        return tuple(ended)

    def events(self, job_id: str, *, after: int = 0) -> Iterator[JobEvent]:
        """The events of a job, after event number ``after`` (0: from the beginning) to its end; a
        stream that breaks off is resumed where it broke off."""
        return stream_events(self._transport, job_id, after=after)

    def stop(self, job_id: str, *, reason: str = "") -> Job:
        """Request a job to stop; ``wait`` returns when it has stopped."""
        return self._ask(job_id, "stop", {"reason": reason}, repeatable=True)

    def resume(self, job_id: str) -> Job:
        """Resume a job that failed or was stopped, from what is done."""
        return self._ask(job_id, "resume")

    def retry(self, job_id: str) -> Job:
        """Submit the job again, as a new job with the same spec and seed."""
        return self._ask(job_id, "retry")

    def remove(self, job_id: str) -> None:
        """Remove a job that has ended. Its outputs stay."""
        self._transport.request("DELETE", _path(job_id))

    def manifest(self, job_id: str) -> Mapping[str, Any]:
        """The manifest of a finished job."""
        found: Mapping[str, Any] = self._read(f"{_path(job_id)}/manifest")
        return found

    def report(self, job_id: str) -> JobReport:
        """The report of a job; of a plan, the report of what the job would do."""
        return report_of(self._read(f"{_path(job_id)}/report"))

    def log(self, job_id: str) -> str:
        """The log of the job's process so far."""
        return self._transport.request("GET", f"{_path(job_id)}/log", repeatable=True).text

    def follow_log(self, job_id: str) -> Iterator[str]:
        """The log in pieces of whole lines, as it grows, until the job has ended."""
        seen, delay_s = "", LOG_DELAY_S
        while True:
            ended = self.get(job_id).ended
            text = self.log(job_id)
            if not ended:
                text = text[: text.rfind("\n") + 1]
            more = behind(seen, text)
            if more:
                seen, delay_s = text, LOG_DELAY_S
                yield more
            if ended:
                return
            self._transport.sleep(delay_s)
            delay_s = min(delay_s * 2, LOG_DELAY_MAX_S)

    def page(self, job_id: str) -> Mapping[str, Any]:
        """All data of a job's web page."""
        found: Mapping[str, Any] = self._read(f"{_path(job_id)}/page")
        return found

    # --- other requests --------------------------------------------------------------------------

    def validate(self, spec: Mapping[str, Any] | JobSpec | str | Path) -> Validation:
        """Check a spec; ``SpecError`` with all its problems."""
        content, kind = _body(spec)
        return Validation.of(
            self._transport.document(
                "POST",
                "/v1/validate",
                content=content,
                headers={"Content-Type": kind},
                repeatable=True,
            )
        )

    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of a job spec."""
        found: Mapping[str, Any] = self._read("/v1/schema")
        return found

    def whoami(self) -> Identity:
        """The identity that the service has for this client's token, with its rights."""
        return Identity.of(self._read("/v1/whoami"))

    def _read(self, path: str, query: Query = ()) -> Any:
        return self._transport.document("GET", path, query=query, repeatable=True)

    def _ask(
        self,
        job_id: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = False,
    ) -> Job:
        options: dict[str, Any] = {"repeatable": repeatable}
        if body is not None:
            options["content"] = json.dumps(body).encode()
            options["headers"] = {"Content-Type": "application/json"}
        return Job.of(self._transport.document("POST", f"{_path(job_id)}/{what}", **options))


def named_service(url: str | None) -> str:
    """The address of a service: ``url``, else the one in the environment."""
    url = url or os.environ.get("DSORT_SERVER")
    if not url:
        raise SpecError("no service is named", hint="give its address, or set DSORT_SERVER")
    return url


def trusted(
    verify: bool | str | Path | ssl.SSLContext | None,
) -> bool | str | Path | ssl.SSLContext:
    """``verify``, else the file of authorities that the environment names."""
    return (os.environ.get("DSORT_CA_FILE") or True) if verify is None else verify


def jobs_query(
    state: str | Sequence[str],
    label: str | Sequence[str],
    since: datetime | str | None,
    given: Mapping[str, str | None],
    text: str,
) -> Query:
    """The query for the jobs that ``DsortClient.list`` returns."""
    query: list[tuple[str, str | int]] = [("state", each) for each in _several(state)]
    query += [("label", each) for each in _several(label)]
    if isinstance(since, datetime):
        since = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
    query += [(name, value) for name, value in given.items() if value is not None]
    query += [("since", since)] if since is not None else []
    return [*query, *[("text", text)] * bool(text)]


def behind(seen: str, text: str) -> str:
    """The part of ``text`` after ``seen``; a long log may have lost its beginning."""
    if text.startswith(seen):
        return text[len(seen) :]
    at = text.rfind(seen[-LOG_OVERLAP:])
    return text if at < 0 else text[at + len(seen[-LOG_OVERLAP:]) :]


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def token_of(given: str | None, file: str | Path | None) -> str | None:
    """The token ``given`` or in ``file``, else the one in the environment."""
    if given or (file is None and os.environ.get("DSORT_TOKEN")):
        return given or os.environ["DSORT_TOKEN"]
    path = file or os.environ.get("DSORT_TOKEN_FILE")
    if not path:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(f"cannot read the token in {path}: {reason}") from None
    if not text:
        raise SpecError(f"there is no token in {path}: it is empty")
    return text


def _body(spec: Mapping[str, Any] | JobSpec | str | Path) -> tuple[bytes, str]:
    """A spec as (body, content type) of a request."""
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        return spec.encode(), "application/json"
    if isinstance(spec, str | Path):
        try:
            content = Path(spec).read_bytes()
        except OSError as error:
            hint = "a spec is a mapping, a path, or a text that begins with {"
            raise SpecError(f"cannot read the spec {spec}: {error.strerror}", hint=hint) from None
        suffix = Path(spec).suffix.lower()
        is_json = suffix == ".json" or (
            suffix not in (".yaml", ".yml") and content.lstrip().startswith((b"{", b"["))
        )
        return content, "application/json" if is_json else "application/yaml"
    fields = spec if isinstance(spec, Mapping) else spec.canonical()
    try:
        return json.dumps(fields, allow_nan=False).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise SpecError(f"the spec cannot be said in JSON: {error}") from error


PATH = "/v1/schedules"
RUNS_MAX = 500


class Schedules:
    """``client.schedules``: jobs that a service submits at certain times."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule: ``definition`` has the spec, the due times, and further settings."""
        return self._send("POST", PATH, {**definition, "name": name})

    def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Replace the definition of the schedule."""
        return self._send(
            "PUT", _schedule_path(name), {**definition, "name": name}, repeatable=True
        )

    def list(self) -> list[Schedule]:
        """All schedules that the token may see."""
        return [Schedule.of(each) for each in self._entries(PATH, "schedules")]

    def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return Schedule.of(self._transport.document("GET", _schedule_path(name), repeatable=True))

    def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        self._transport.request("DELETE", _schedule_path(name))

    def pause(self, name: str) -> Schedule:
        """Pause a schedule: it is not due until it is resumed."""
        return self._send("POST", f"{_schedule_path(name)}/pause", None, repeatable=True)

    def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return self._send("POST", f"{_schedule_path(name)}/resume", None, repeatable=True)

    def run_now(self, name: str) -> ScheduleRun:
        """Make a job of the schedule now, besides its due times; the run names the job, or is
        waiting for an earlier one. ``ConflictError``: an earlier job has not ended, and the
        schedule's overlap is ``skip``."""
        return ScheduleRun.of(self._transport.document("POST", f"{_schedule_path(name)}/run-now"))

    def runs(self, name: str, *, limit: int = RUNS_MAX) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule, the newest first."""
        found = self._entries(f"{_schedule_path(name)}/runs", "runs", query=[("limit", limit)])
        return tuple(map(ScheduleRun.of, found))

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, repeatable: bool = False
    ) -> Schedule:
        options: dict[str, Any] = {"repeatable": repeatable}
        if body is not None:
            options["content"] = json.dumps(body).encode()
            options["headers"] = {"Content-Type": "application/json"}
        return Schedule.of(self._transport.document(method, path, **options))

    def _entries(self, path: str, name: str, *, query: Query = ()) -> tuple[Any, ...]:
        document = self._transport.document("GET", path, query=query, repeatable=True)
        try:
            return tuple(document[name])
        except (KeyError, TypeError) as error:
            raise ServiceError(f"the service's answer has no {name}") from error


def _schedule_path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"
