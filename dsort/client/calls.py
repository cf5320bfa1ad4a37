"""Requests to a service, and how their answers are read: pure functions, which send nothing.

``Transport.call`` sends a ``Call`` and waits for the answer, ``AsyncTransport.call`` awaits it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dsort.client.values import Identity, Job, Schedule, ScheduleRun, Validation, report_of
from dsort.errors import NotFoundError, ServiceError, SpecError
from dsort.results.report import JobReport

if TYPE_CHECKING:
    import httpx

    from dsort.spec.model import JobSpec

Query = Sequence[tuple[str, str | int]]
Row = Mapping[str, Any]
Answer = TypeVar("Answer")
Item = TypeVar("Item")

PAGE = 200
OBJECTS_PAGE = 10_000
TRANSFORMS_PAGE = 100
RUNS_MAX = 500
JOBS_NAMED = 5
WHOLE_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
JSON = {"Content-Type": "application/json"}


class Call(Struct, Generic[Answer], frozen=True):
    """One request, and the function that makes a value from its answer.

    ``read`` takes the JSON document of the answer; if ``is_json`` is False, it takes the answer of
    ``httpx``. ``repeatable``: sending the request twice does no harm.
    """

    method: str
    path: str
    read: Callable[[Any], Answer]
    query: Query = ()
    content: bytes | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    is_json: bool = True


class Page(Struct, Generic[Item], frozen=True):
    """Some rows of a list, and the call for the next page: None on the last page."""

    rows: Sequence[Item]
    more: Call[Page[Item]] | None = None


def _get(
    path: str, read: Callable[[Any], Answer], query: Query = (), *, is_json: bool = True
) -> Call[Answer]:
    return Call("GET", path, read, query, repeatable=True, is_json=is_json)


def _send(
    method: str,
    path: str,
    read: Callable[[Any], Answer],
    body: Mapping[str, Any] | None = None,
    *,
    repeatable: bool = False,
) -> Call[Answer]:
    if body is None:
        return Call(method, path, read, repeatable=repeatable)
    return Call(method, path, read, content=_json(body), headers=JSON, repeatable=repeatable)


def _json(fields: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(fields, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise SpecError(f"a field has a value that JSON cannot hold: {error}") from error


def _remove(path: str) -> Call[None]:
    return Call("DELETE", path, lambda answer: None, is_json=False)


def _mapping(document: Any) -> Row:
    if not isinstance(document, Mapping):
        raise ServiceError(f"the service answered {type(document).__name__}, not an object")
    return document


def _rows(name: str, document: Any) -> Sequence[Row]:
    rows = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise ServiceError(f"the service's answer has no {name}")
    return rows


def _listed(path: str, name: str, query: Query, cursor: str = "") -> Call[Page[Row]]:
    """The first page of a list, or the page at ``cursor``. ``name``: the field of the answer that
    has the rows."""

    def read(document: Any) -> Page[Row]:
        rows, after = _rows(name, document), document.get("next_cursor")
        return Page(rows, _listed(path, name, query, after) if after else None)

    return _get(path, read, [*query, *[("cursor", cursor)] * bool(cursor)])


# --- jobs ----------------------------------------------------------------------------------------


def submit(
    spec: Mapping[str, Any] | JobSpec | str | Path,
    *,
    priority: int = 0,
    labels: Iterable[str] = (),
    description: str = "",
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Call[Job]:
    """Put a job into the queue, and return the queued job.

    ``spec``: the fields of a spec, a ``JobSpec``, the path of a JSON or YAML file, or the text of a
    spec, which begins with ``{``. Jobs with a higher ``priority`` start first. ``dry_run``: only
    plan the job. Two calls with the same ``idempotency_key`` make one job. A call without a key
    makes a new key, so that the client may send the request again if the connection breaks.
    """
    query: Query = [
        *(("label", each) for each in labels),
        *[("priority", priority)] * bool(priority),
        *[("description", description)] * bool(description),
        *[("dry_run", 1)] * dry_run,
    ]
    content, kind = _body(spec)
    headers = {"Content-Type": kind, "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Call("POST", "/v1/jobs", Job.of, query, content, headers, repeatable=True)


def get(job_id: str) -> Call[Job]:
    """One job, with its spec and, once it has ended, its result."""
    return _get(_job(job_id), Job.of)


def only_one(job: str, found: Sequence[Job]) -> str:
    """The id of the one job whose id begins with ``job``."""
    if len(found) == 1:
        return found[0].job_id
    if found:
        names = ", ".join(each.job_id for each in found[:JOBS_NAMED])
        more = ", ..." if len(found) > JOBS_NAMED else ""
        raise SpecError(f"{job!r} fits several jobs: {names}{more}", hint="give more of the id")
    raise NotFoundError(f"there is no job {job!r}", hint="`dsort show` lists all jobs")


def list_jobs(
    *,
    state: str | Sequence[str] = (),
    owner: str | None = None,
    label: str | Sequence[str] = (),
    since: datetime | str | None = None,
    kind: str | None = None,
    schedule: str | None = None,
    text: str = "",
    limit: int | None = None,
) -> Call[Page[Job]]:
    """Jobs, newest first, requested page by page. ``state``: jobs in one of these states;
    ``label``: jobs with all of these labels; ``since``: the earliest submission; ``text``: the
    beginning of the id, or a part of the description; ``limit``: the most jobs to return."""
    query: list[tuple[str, str | int]] = [("state", each) for each in _several(state)]
    query += [("label", each) for each in _several(label)]
    if isinstance(since, datetime):
        since = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
    given = {"owner": owner, "kind": kind, "schedule": schedule, "since": since}
    query += [(name, value) for name, value in given.items() if value is not None]
    query += [("text", text)] * bool(text)
    return _page_of_jobs(query, limit, "")


def _page_of_jobs(query: Query, left: int | None, cursor: str) -> Call[Page[Job]]:
    def read(document: Any) -> Page[Job]:
        jobs = [*map(Job.of, _rows("jobs", document))]
        rest = None if left is None else left - len(jobs)
        cursor = document.get("next_cursor")
        ended = not cursor or (rest is not None and rest <= 0)
        return Page(jobs, None if ended else _page_of_jobs(query, rest, cursor))

    page: list[tuple[str, str | int]] = [("limit", PAGE if left is None else min(PAGE, left))]
    return _get("/v1/jobs", read, [*query, *page, *[("cursor", cursor)] * bool(cursor)])


def stop(job_id: str, *, reason: str = "") -> Call[Job]:
    """Request that a job stops; ``wait`` returns when the job has stopped."""
    return _send("POST", f"{_job(job_id)}/stop", Job.of, {"reason": reason}, repeatable=True)


def resume(job_id: str) -> Call[Job]:
    """Resume a job that failed or was stopped. Its finished work is used again."""
    return _send("POST", f"{_job(job_id)}/resume", Job.of)


def retry(job_id: str) -> Call[Job]:
    """Submit the job again, as a new job with the same spec and seed."""
    return _send("POST", f"{_job(job_id)}/retry", Job.of)


def remove(job_id: str) -> Call[None]:
    """Remove a job that has ended. Its outputs stay."""
    return _remove(_job(job_id))


def manifest(job_id: str) -> Call[Row]:
    """The manifest of a finished job."""
    return _get(f"{_job(job_id)}/manifest", _mapping)


def report(job_id: str) -> Call[JobReport]:
    """The report of a job; for a plan, a report of what the job would do."""
    return _get(f"{_job(job_id)}/report", report_of)


def log(job_id: str) -> Call[str]:
    """The log of the job's process so far."""
    return _get(f"{_job(job_id)}/log", lambda answer: str(answer.text), is_json=False)


def page(job_id: str) -> Call[Row]:
    """All data of a job's web page."""
    return _get(f"{_job(job_id)}/page", _mapping)


def validate(spec: Mapping[str, Any] | JobSpec | str | Path) -> Call[Validation]:
    """Check a spec. ``SpecError`` lists all problems of an invalid spec."""
    content, kind = _body(spec)
    headers = {"Content-Type": kind}
    return Call("POST", "/v1/validate", Validation.of, (), content, headers, repeatable=True)


def schema() -> Call[Row]:
    """The JSON Schema of a job spec."""
    return _get("/v1/schema", _mapping)


def whoami() -> Call[Identity]:
    """The identity that the service has for this client's token, with its rights."""
    return _get("/v1/whoami", Identity.of)


def _job(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


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
    return _json(fields), "application/json"


# --- schedules -----------------------------------------------------------------------------------


def add_schedule(name: str, definition: Mapping[str, Any]) -> Call[Schedule]:
    """Make a schedule: ``definition`` has the spec, the due times, and further settings."""
    return _send("POST", "/v1/schedules", Schedule.of, {**definition, "name": name})


def replace_schedule(name: str, definition: Mapping[str, Any]) -> Call[Schedule]:
    """Replace the definition of a schedule."""
    body = {**definition, "name": name}
    return _send("PUT", _schedule(name), Schedule.of, body, repeatable=True)


def list_schedules() -> Call[list[Schedule]]:
    """All schedules that the token may see."""
    return _get("/v1/schedules", lambda found: [*map(Schedule.of, _rows("schedules", found))])


def get_schedule(name: str) -> Call[Schedule]:
    """One schedule, with the next times at which it is due."""
    return _get(_schedule(name), Schedule.of)


def remove_schedule(name: str) -> Call[None]:
    """Remove a schedule. Its jobs and their results stay."""
    return _remove(_schedule(name))


def pause_schedule(name: str) -> Call[Schedule]:
    """Pause a schedule. A paused schedule is not due until it is resumed."""
    return _send("POST", f"{_schedule(name)}/pause", Schedule.of, repeatable=True)


def resume_schedule(name: str) -> Call[Schedule]:
    """Resume a paused schedule."""
    return _send("POST", f"{_schedule(name)}/resume", Schedule.of, repeatable=True)


def run_schedule_now(name: str) -> Call[ScheduleRun]:
    """Make a job of the schedule now, besides its due times; the run names the job, or waits for an
    earlier job. ``ConflictError``: an earlier job has not ended, and the schedule's overlap is
    ``skip``."""
    return _send("POST", f"{_schedule(name)}/run-now", ScheduleRun.of)


def runs_of_schedule(name: str, *, limit: int = RUNS_MAX) -> Call[tuple[ScheduleRun, ...]]:
    """The runs of a schedule, the newest first."""

    def read(document: Any) -> tuple[ScheduleRun, ...]:
        return tuple(map(ScheduleRun.of, _rows("runs", document)))

    return _get(f"{_schedule(name)}/runs", read, [("limit", limit)])


def _schedule(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"


# --- transforms ----------------------------------------------------------------------------------


def put_transform(name: str, transform: Mapping[str, Any]) -> Call[tuple[Row, bool]]:
    """(the newest version of ``name``, which has these steps; whether this call made the version).
    For admins. ``transform``: as in a spec."""

    def read(answer: httpx.Response) -> tuple[Row, bool]:
        return _mapping(answer.json()), answer.status_code == 201

    call = _send("PUT", _transform(name), read, transform, repeatable=True)
    return replace(call, is_json=False)


def get_transform(name: str) -> Call[Row]:
    """The newest version of ``name``, or version 3 for ``name@3``."""
    return _get(_transform(name), _mapping)


def list_transforms() -> Call[Page[Row]]:
    """All versions, the newest first, requested page by page."""
    return _listed("/v1/transforms", "transforms", [("limit", TRANSFORMS_PAGE)])


def remove_transform(name: str) -> Call[None]:
    """Remove a transform, or only version 3 for ``name@3``. For admins. Jobs that began with the
    transform continue."""
    return _remove(_transform(name))


def _transform(name: str) -> str:
    return f"/v1/transforms/{quote(name, safe='@')}"


# --- tokens --------------------------------------------------------------------------------------


def add_token(
    name: str,
    role: str,
    *,
    input_buckets: Sequence[str] = ("*",),
    output_buckets: Sequence[str] = ("*",),
    expires_in_s: float | None = None,
) -> Call[Row]:
    """Make a token. Only this answer has the text of the token, in its field ``token``."""
    wanted = {
        "name": name,
        "role": role,
        "input_buckets": [*input_buckets],
        "output_buckets": [*output_buckets],
        "expires_in_s": expires_in_s,
    }
    return _send("POST", "/v1/tokens", _mapping, wanted)


def list_tokens() -> Call[list[Row]]:
    """All tokens, expired ones too."""
    return _get("/v1/tokens", lambda document: [*_rows("tokens", document)])


def remove_token(name: str) -> Call[None]:
    """Remove a token. The jobs of its holder stay."""
    return _remove(f"/v1/tokens/{quote(name, safe='')}")


# --- data ----------------------------------------------------------------------------------------


def list_shards(bucket: str, *, text: str = "") -> Call[Page[Row]]:
    """Shards with ``name``, ``size_bytes`` and ``records`` (None: not known), in order of their
    names, requested page by page. ``text``: only names that contain it."""
    query: Query = [("limit", PAGE), *[("text", text)] * bool(text)]
    return _listed(data_path("shards", bucket), "shards", query)


def list_objects(bucket: str, *, prefix: str = "") -> Call[Page[Row]]:
    """All objects, shards or not, with ``name`` and ``size_bytes``, in byte order of their names,
    requested page by page. ``prefix``: only names that begin with it."""
    query: Query = [("limit", OBJECTS_PAGE), *[("prefix", prefix)] * bool(prefix)]
    return _listed(data_path("listings", bucket), "objects", query)


def find_garbage(bucket: str, *, older_than_s: float = 86_400.0) -> Call[Sequence[Row]]:
    """The files that interrupted jobs left in a bucket. For admins."""
    query = [("older_than_s", str(older_than_s))]
    return _get(data_path("garbage", bucket), partial(_rows, "garbage"), query)


def list_records(bucket: str, shard: str, *, first: int = 0, text: str = "") -> Call[Page[Row]]:
    """Records with ``number``, ``key``, ``members`` and ``size_bytes``, from number ``first`` on,
    page by page. ``text``: only keys that contain it."""

    def read(document: Any) -> Page[Row]:
        rows, after = _rows("records", document), document.get("next_number")
        more = None if after is None else list_records(bucket, shard, first=after, text=text)
        return Page(rows, more)

    query: Query = [("limit", PAGE), ("first", first), *[("text", text)] * bool(text)]
    return _get(data_path("records", bucket, shard), read, query)


def show_records(bucket: str, shard: str, *numbers: int) -> Call[Sequence[Row]]:
    """The records with these numbers, 20 at most, with previews of their members: whole small
    pictures, and the beginnings of all other members."""
    return _samples(bucket, shard, [("number", number) for number in numbers])


def sample_records(bucket: str, shard: str, count: int, *, seed: str = "") -> Call[Sequence[Row]]:
    """``count`` records at random, 20 at most, as ``show`` returns records."""
    return _samples(bucket, shard, [("random", count), ("seed", seed)])


def _samples(bucket: str, shard: str, query: Query) -> Call[Sequence[Row]]:
    return _get(data_path("samples", bucket, shard), partial(_rows, "records"), query)


def changed_record(bucket: str, shard: str, number: int, transform: str) -> Call[Row]:
    """``before``: a record; ``after``: the list of records that the named transform makes of this
    record. Nothing is written. For submitters."""
    query: Query = [("number", number), ("transform", transform)]
    return _get(data_path("changed", bucket, shard), _mapping, query)


def read_member(bucket: str, shard: str, number: int, member: int = 0) -> Call[bytes]:
    """The bytes of the member with number ``member`` in a record; 64 MiB at most."""
    query: Query = [("number", number), ("member", member)]
    path = data_path("members", bucket, shard)
    return _get(path, lambda answer: bytes(answer.content), query, is_json=False)


def data_path(what: str, bucket: str, shard: str = "") -> str:
    """The path of a route about a bucket, or about a shard of the bucket."""
    behind = f"/{quote(shard)}" if shard else ""
    return f"/v1/{what}/{quote(bucket, safe='')}{behind}"
