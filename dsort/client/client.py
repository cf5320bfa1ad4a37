"""``DsortClient``: all functions of a service, as methods; and its parts ``client.schedules``,
``.transforms``, ``.tokens`` and ``.data``."""

from __future__ import annotations

import builtins
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from dsort.client import calls
from dsort.client.calls import LogTail, Row
from dsort.client.events import JobEvent, stream_events
from dsort.client.transport import Patience, Transport
from dsort.client.values import Identity, Job, Schedule, ScheduleRun, Validation
from dsort.closing import ClosesOnExit
from dsort.errors import SpecError
from dsort.results.report import JobReport

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["DsortClient", "named_service", "token_of", "trusted"]

TIMEOUT_S = 30.0


class _Part:
    """Some functions of a service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = transport.call


class Schedules(_Part):
    """``client.schedules``: jobs that a service submits at certain times."""

    def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule: ``definition`` has the spec, the due times, and further settings."""
        return self._call(calls.add_schedule(name, definition))

    def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Replace the definition of the schedule."""
        return self._call(calls.replace_schedule(name, definition))

    def list(self) -> builtins.list[Schedule]:
        """All schedules that the token may see."""
        return self._call(calls.list_schedules())

    def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return self._call(calls.get_schedule(name))

    def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        self._call(calls.remove_schedule(name))

    def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed: meanwhile it is never due."""
        return self._call(calls.pause_schedule(name))

    def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return self._call(calls.resume_schedule(name))

    def run_now(self, name: str) -> ScheduleRun:
        """Make a job of the schedule now, besides its due times; the run names the job, or is
        waiting for an earlier one. ``ConflictError``: an earlier job has not ended, and the
        schedule's overlap is ``skip``."""
        return self._call(calls.run_schedule_now(name))

    def runs(self, name: str, *, limit: int = calls.RUNS_MAX) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule, the newest first."""
        return self._call(calls.runs_of_schedule(name, limit=limit))


class Transforms(_Part):
    """``client.transforms``: transforms that jobs of a service may use by name. A version is a
    mapping with ``name``, ``version``, ``digest``, ``created_at``, ``created_by``, ``kinds``,
    ``runs_code``; the answers of ``get`` also have ``transform`` and ``versions``."""

    def put(self, name: str, transform: Mapping[str, Any]) -> tuple[Row, bool]:
        """(the newest version of ``name``, which has these steps; whether it is new). For admins.
        ``transform``: as in a spec."""
        return self._call(calls.put_transform(name, transform))

    def get(self, name: str) -> Row:
        """The newest version of ``name``, or version 3 for ``name@3``."""
        return self._call(calls.get_transform(name))

    def list(self) -> Iterator[Row]:
        """All versions, the newest first, requested page by page."""
        return self._transport.pages(calls.list_transforms())

    def remove(self, name: str) -> None:
        """Remove a transform, or only version 3 for ``name@3``. For admins. Jobs that began with it
        continue."""
        self._call(calls.remove_transform(name))


class Tokens(_Part):
    """``client.tokens``: for admins. A token is a mapping with the fields of the REST reference,
    without its secret."""

    def add(
        self,
        name: str,
        role: str,
        *,
        input_buckets: Sequence[str] = ("*",),
        output_buckets: Sequence[str] = ("*",),
        expires_in_s: float | None = None,
    ) -> Row:
        """Make a token. Only this answer has its text, as ``token``."""
        return self._call(
            calls.add_token(
                name,
                role,
                input_buckets=input_buckets,
                output_buckets=output_buckets,
                expires_in_s=expires_in_s,
            )
        )

    def list(self) -> builtins.list[Row]:
        """All tokens, expired ones too."""
        return self._call(calls.list_tokens())

    def remove(self, name: str) -> None:
        """Remove a token. The jobs of its holder stay."""
        self._call(calls.remove_token(name))


class Data(_Part):
    """``client.data``: shards, their records, and the members of records, as on the service's page.
    Rows are mappings with the fields of the REST reference. ``bucket``: as in a spec; ``shard``:
    its name in the bucket; ``number``: of a record in its shard, from 0 on."""

    def shards(self, bucket: str, *, text: str = "") -> Iterator[Row]:
        """Shards with ``name``, ``size_bytes`` and ``records`` (None: not known), in order of their
        names, requested page by page. ``text``: only names that contain it."""
        return self._transport.pages(calls.list_shards(bucket, text=text))

    def objects(self, bucket: str, *, prefix: str = "") -> Iterator[Row]:
        """All objects, shards or not, with ``name`` and ``size_bytes``, in byte order of their
        names, requested page by page. ``prefix``: only names that begin with it."""
        return self._transport.pages(calls.list_objects(bucket, prefix=prefix))

    def whole(self, bucket: str, name: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces, from a service with ``--aistore``."""
        path = calls.data_path("objects", bucket, name)
        try:
            with self._transport.stream(path, headers={"Accept": "*/*"}) as answer:
                if not answer.is_success:
                    raise self._transport.error(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._transport.failure(error) from error

    def garbage(self, bucket: str, *, older_than_s: float = 86_400.0) -> Sequence[Row]:
        """The files that interrupted jobs left in a bucket. For admins."""
        return self._call(calls.find_garbage(bucket, older_than_s=older_than_s))

    def records(self, bucket: str, shard: str, *, first: int = 0, text: str = "") -> Iterator[Row]:
        """Records with ``number``, ``key``, ``members`` and ``size_bytes``, from number ``first``
        on, page by page. ``text``: only keys that contain it."""
        return self._transport.pages(calls.list_records(bucket, shard, first=first, text=text))

    def show(self, bucket: str, shard: str, *numbers: int) -> Sequence[Row]:
        """These records, 20 at most, with previews of their members: small pictures whole, the
        beginning of texts and of everything else."""
        return self._call(calls.show_records(bucket, shard, *numbers))

    def sample(self, bucket: str, shard: str, count: int, *, seed: str = "") -> Sequence[Row]:
        """``count`` records at random, 20 at most, in the form of ``show``."""
        return self._call(calls.sample_records(bucket, shard, count, seed=seed))

    def changed(self, bucket: str, shard: str, number: int, transform: str) -> Row:
        """A record ``before``, and what the named transform makes of it: ``after``, a list. Nothing
        is written. For submitters."""
        return self._call(calls.changed_record(bucket, shard, number, transform))

    def read(self, bucket: str, shard: str, number: int, member: int = 0) -> bytes:
        """The bytes of one member of a record, by its number in the record; 64 MiB at most."""
        return self._call(calls.read_member(bucket, shard, number, member))


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
        transport = Transport(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=http,
        )
        self._transport = transport
        self._call = transport.call
        self.schedules = Schedules(transport)
        self.transforms = Transforms(transport)
        self.data = Data(transport)
        self.tokens = Tokens(transport)

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
        return self._call(
            calls.submit(
                spec,
                priority=priority,
                labels=labels,
                description=description,
                dry_run=dry_run,
                idempotency_key=idempotency_key,
            )
        )

    def get(self, job_id: str) -> Job:
        """One job, with its spec and, once it has ended, its result."""
        return self._call(calls.get(job_id))

    def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; a leading ``srt-``, which AIStore's
        clients add, is ignored. ``NotFoundError`` if there is none, ``SpecError`` that lists them
        if there are several."""
        job = job.removeprefix("srt-")
        if calls.WHOLE_ID.fullmatch(job):
            return self.get(job)
        found = [each for each in self.list(text=job) if each.job_id.startswith(job)]
        return self.get(calls.only_one(job, found))

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
        found = calls.list_jobs(
            state=state,
            owner=owner,
            label=label,
            since=since,
            kind=kind,
            schedule=schedule,
            text=text,
            limit=limit,
        )
        return self._transport.pages(found)

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
        return self._call(calls.stop(job_id, reason=reason))

    def resume(self, job_id: str) -> Job:
        """Resume a job that failed or was stopped, from its finished work."""
        return self._call(calls.resume(job_id))

    def retry(self, job_id: str) -> Job:
        """Submit the job again, as a new job with the same spec and seed."""
        return self._call(calls.retry(job_id))

    def remove(self, job_id: str) -> None:
        """Remove a job that has ended. Its outputs stay."""
        self._call(calls.remove(job_id))

    def manifest(self, job_id: str) -> Mapping[str, Any]:
        """The manifest of a finished job."""
        return self._call(calls.manifest(job_id))

    def report(self, job_id: str) -> JobReport:
        """The report of a job; of a plan, the report of what the job would do."""
        return self._call(calls.report(job_id))

    def log(self, job_id: str) -> str:
        """The log of the job's process so far."""
        return self._call(calls.log(job_id))

    def follow_log(self, job_id: str) -> Iterator[str]:
        """The log in pieces of whole lines, as it grows, until the job has ended."""
        tail = LogTail()
        while True:
            ended = self.get(job_id).ended
            more = tail.grown(self.log(job_id), ended=ended)
            if more:
                yield more
            if ended:
                return
            self._transport.sleep(tail.delay_s)

    def page(self, job_id: str) -> Mapping[str, Any]:
        """All data of a job's web page."""
        return self._call(calls.page(job_id))

    # --- other requests --------------------------------------------------------------------------

    def validate(self, spec: Mapping[str, Any] | JobSpec | str | Path) -> Validation:
        """Check a spec; ``SpecError`` with all its problems."""
        return self._call(calls.validate(spec))

    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of a job spec."""
        return self._call(calls.schema())

    def whoami(self) -> Identity:
        """The identity that the service has for this client's token, with its rights."""
        return self._call(calls.whoami())


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
