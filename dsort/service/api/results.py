"""The results of a job: manifest, report, log, page and events, and the records of a view.

``/v1/jobs/{job_id}/events`` streams events as they happen, as server-sent events. The other routes
read the job's row and its files in the output bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import Annotated, Any, Final, Literal, NoReturn
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.exc import SQLAlchemyError

from dsort.data.json_values import to_json
from dsort.durations import format_duration
from dsort.errors import (
    ConflictError,
    InputError,
    NotFoundError,
    ObjectNotFoundError,
    StorageError,
)
from dsort.model.base import example_of
from dsort.model.dataset import ViewRecordPage
from dsort.model.job import PageView
from dsort.model.report import EXAMPLE_ID as _ID
from dsort.model.report import EXAMPLE_PHASES, ManifestView, PlanReportView, RunReportView
from dsort.model.report import EXAMPLE_WARNING as _WARNING
from dsort.results.layout import manifest_name, report_name
from dsort.service.api.datasets import NUMBER_MAX, RECORDS_MAX, Looking, counted
from dsort.service.api.dependencies import Caller, Here, JsonAnswer, TextAnswer, problems, shown
from dsort.service.api.jobs import JOB_ENDED, SeenJob, job_out
from dsort.service.change_feed import Subscriber
from dsort.service.database.tables import JobRow, main_uri
from dsort.service.hosting.process import open_output, output_ref, policy_of_job
from dsort.service.jobs.rows import NOT_READ, EventRow, progress_view, rfc3339, validated
from dsort.service.objects.places import Asking, ObjectPlace, name_in_specs
from dsort.service.security.guard import check_bucket
from dsort.service.service import Service
from dsort.sizes import format_bytes
from dsort.spec.load import parse_spec
from dsort.web import job_page as job_page

DOCUMENT_BYTES_MAX: Final = 1 << 28
"""Ten times the manifest of a petabyte: a larger one was made to use up memory."""

_AFTER: Final = "Only events after the event with this number."
EVENT_LEVEL: Final = "I"
"""Log lines of job processes at this level ("info") also appear as events."""


PAGE: Final = example_of(PageView, job=JOB_ENDED, phases=EXAMPLE_PHASES)
_LOG: Final = f"""\
2026-01-31T02:00:00.000Z state   queued
2026-01-31T02:00:01.000Z state   running, attempt 1
2026-01-31T02:00:01.900Z phase   resolve took 0.1 s: 19 shards, 1.8 GiB
2026-01-31T02:00:01.901Z started 19 input shards, 1.8 GiB, 4 workers, movement map
2026-01-31T02:00:01.902Z warning missing_shards: {_WARNING}
2026-01-31T02:00:11.500Z state   finished, attempt 1
"""
_EVENTS: Final = f"""\
event: state
data: {{"at": 1769824801.0, "state": "running", "attempt": 1}}
id: 41

event: started
data: {{"at": 1769824801.9, "job_id": "{_ID}", "move": "map", "workers": 4, "input_shards": 19, \
"input_bytes": 1912340480}}
id: 42

event: warning
data: {{"at": 1769824801.9, "job_id": "{_ID}", "kind": "missing_shards", "text": "{_WARNING}"}}
id: 43

event: progress
data: {{"at": 1769824804.5, "phase": "extract", "shards_done": 12, "shards_total": 19, \
"records_done": 12000, "bytes_done": 1207793664, "bytes_total": 1912340480, "elapsed_s": 2.6, \
"bytes_per_s": 464536024.6, "share": 0.2915, "left_s": 1.5}}
id: 44

event: phase
data: {{"at": 1769824806.1, "job_id": "{_ID}", "phase": "extract", "elapsed_s": 4.2, "shards": 19, \
"records": 19000, "bytes": 1912340480}}
id: 45

event: state
data: {{"at": 1769824811.5, "state": "finished", "attempt": 1}}
id: 46

event: end
data: {{"state": "finished", "exit_code": 0}}

"""


_ASKED: Final = problems(400, 401, 404, 429, 502)
routes = APIRouter(tags=["jobs"], default_response_class=JsonAnswer)


async def counted_stream(service: Here, identity: Caller) -> AsyncIterator[None]:
    """A dependency: counts the stream against the caller's limits while it lasts."""
    with service.limits.stream(identity.name):
        yield


@routes.get(
    "/v1/jobs/{job_id}/events",
    dependencies=[Depends(counted_stream)],
    response_class=EventSourceResponse,
    responses=shown(200, _EVENTS, media_type="text/event-stream") | problems(400, 401, 404, 429),
    summary="Watch a job",
)
async def job_events(
    service: Here,
    row: SeenJob,
    identity: Caller,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description=_AFTER)] = None,
    last_event_id: Annotated[str | None, Header(description=_AFTER)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events, first the past events, then each event as it happens: `state`, `started`,
    `phase`, `progress`, `warning`, `log`; and `end` once the job is over. With the `id` of an event
    as `Last-Event-ID`, the stream begins after this event.
    """
    behind = after or 0
    if last_event_id is not None and _NUMBER.fullmatch(last_event_id):
        # A client that reconnects sends the old ``after`` again: the larger number counts.
        behind = max(behind, int(last_event_id))

    def may_go_on() -> bool:
        now = service.identity_of(identity.name)
        return now is not None and now.may_see(row)

    # The database is unavailable: the client connects again.
    with contextlib.suppress(SQLAlchemyError):
        async for event in _stream(service, row.job_id, behind, may_go_on):
            yield event


@routes.get(
    "/v1/jobs/{job_id}/manifest",
    response_model=ManifestView,
    responses=shown(200, example_of(ManifestView)) | _ASKED,
    summary="The manifest of a job's result",
)
def job_manifest(service: Here, row: SeenJob) -> Response:
    """The manifest as it is in the output bucket: inputs, outputs with their checksums, spec
    and seed."""
    return Response(_document(service, row, manifest_name), media_type="application/json")


@routes.get(
    "/v1/jobs/{job_id}/report",
    response_model=RunReportView | PlanReportView,
    responses=shown(200, example_of(RunReportView)) | _ASKED,
    summary="The report of a job",
)
def job_report(service: Here, row: SeenJob) -> Response:
    """The work of a finished job, or of a failed job up to its failure."""
    if row.result is not None:
        return JsonAnswer(dict(row.result))
    return Response(_document(service, row, report_name), media_type="application/json")


@routes.get(
    "/v1/jobs/{job_id}/log",
    response_class=TextAnswer,
    responses=shown(200, _LOG, media_type="text/plain") | problems(400, 401, 404, 429),
    summary="The log of a job",
)
def job_log(
    service: Here,
    row: SeenJob,
    after: Annotated[int, Query(ge=0, lt=2**63, description=_AFTER)] = 0,
) -> Response:
    """A line for each thing that happened, as text; progress is left out. The header
    `Dsort-Last-Event` has the number of the last event: with this number as `after`, the next
    request gets only later lines."""
    lines, last = _log_lines(service, row.job_id, after)
    return TextAnswer("".join(lines), headers={"Dsort-Last-Event": str(last)})


@routes.get(
    "/v1/jobs/{job_id}/page",
    response_model=PageView,
    responses=shown(200, PAGE) | _ASKED,
    summary="The data of a job's page",
)
def job_page_data(service: Here, row: SeenJob) -> PageView:
    """Phases, throughput, output shards and the mixing of records, as one document."""
    shown_job = job_out(row, position=service.store.position(row), whole=True)
    view = shown_job.model_dump(mode="json", exclude_unset=True)
    samples, warnings = _progress_and_warnings(service, row.job_id)
    if row.state == "finished" and row.kind == "run":
        with contextlib.suppress(NotFoundError):  # a schedule keeps only its newest results
            return _page_by_manifest(service, row, view, warnings)
    try:
        page = job_page.page_of_job(view, samples, warnings=warnings)
        return validated(PageView, page)
    except NOT_READ:  # the report of its process is not valid
        bare = {**view, "phases": [], "progress": None}
        page = job_page.page_of_job(bare, [], warnings=warnings)
        return validated(PageView, page)


@routes.get(
    "/v1/results/{job_id}/records",
    dependencies=[Depends(counted)],
    response_model=ViewRecordPage,
    responses=shown(200, example_of(ViewRecordPage))
    | problems(400, 401, 403, 404, 409, 413, 422, 429, 502),
    summary="List the records of a view",
)
async def list_view_records(
    service: Here,
    looks: Looking,
    request: Request,
    row: SeenJob,
    identity: Caller,
    first: Annotated[
        int, Query(alias="from", ge=0, le=NUMBER_MAX, description="Position of the first record.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=RECORDS_MAX, description="How many on a page.")] = 50,
) -> Response:
    """The records of the view that a job wrote, in the order of the view, with the ranges of their
    members in the input shards. The service reads only the parts of the view with these records,
    and the headers of the members. For a result with shards the answer is 409."""
    asking = Asking(identity, service.config, service.submitter.policy)
    place = await run_in_threadpool(_view_of, row, asking)
    await looks.note(request, "data.list", place, job=row.job_id)
    reads = policy_of_job(service.submitter.policy.fetch_policy(), row)
    order = {
        "look": "view",
        "job_id": row.job_id,
        "spec": row.spec,
        "first": first,
        "limit": limit,
        "fetch": reads.for_outputs().to_json(),
        "inputs_fetch": reads.to_json(),
    }
    return await looks.answer(request, place, order)


def _view_of(row: JobRow, asking: Asking) -> ObjectPlace:
    """The bucket with the view that a job wrote. ``NotFoundError``, ``ConflictError``;
    ``ForbiddenError`` if the service may no longer use one of the job's buckets."""
    if row.state != "finished" or row.kind != "run":
        hint = "" if row.ended else "the job has not ended yet"
        raise NotFoundError(f"job {row.job_id} is {row.state} and has no result", hint=hint)
    uri = main_uri(row.output_uri)
    if row.spec.get("output") != "view":
        bucket = quote(name_in_specs(uri, asking.config.run.root.resolve()), safe="")
        raise ConflictError(
            f"the result of job {row.job_id} has shards and is no view",
            hint=f"GET /v1/shards/{bucket} lists its shards, and GET /v1/records/{bucket}/SHARD "
            "their records",
        )
    ref = output_ref(row, asking.config.run.settings)
    for each in (ref, *(source.bucket for source in parse_spec(row.spec).spec.sources)):
        check_bucket(each, asking.policy)
    return ObjectPlace(ref, uri, "", asking, uri)


def _page_by_manifest(
    service: Service, row: JobRow, view: Mapping[str, Any], warnings: Sequence[Mapping[str, Any]]
) -> PageView:
    """The page of a finished job, from its manifest. Anyone who can write to the bucket can write a
    manifest."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    text = _document(service, row, manifest_name).decode("utf-8", "replace")
    try:
        manifest = json.loads(text, parse_constant=refuse)
        page = job_page.page_of_manifest(manifest, job_view=view, warnings=warnings)
        return validated(PageView, page)
    except (InputError, ValueError, OverflowError, RecursionError) as error:
        raise StorageError(
            f"the manifest of job {row.job_id} is damaged: {error or 'it is nested too deeply'}",
            hint="it may have been edited; `dsort verify` shows more",
        ) from error


def _document(service: Service, row: JobRow, name_of: Any) -> bytes:
    what = "manifest" if name_of is manifest_name else "report"
    bucket = open_output(row, service.config.run, service.submitter.policy.fetch_policy())
    name = name_of(row.job_id)
    try:
        size_bytes = bucket.stat(name).size_bytes
        if size_bytes > DOCUMENT_BYTES_MAX:
            raise StorageError(
                f"the {what} of job {row.job_id} is too large: {format_bytes(size_bytes)}",
                hint="it may have been edited",
            )
        return bucket.read(name)
    except ObjectNotFoundError:
        pass
    hint = "" if row.ended else "the job has not ended yet"
    if row.state == "finished" and row.kind == "run":
        hint = "a schedule with `retain` removes its old results"
    raise NotFoundError(f"job {row.job_id} is {row.state} and has no {what}", hint=hint)


def _log_lines(service: Service, job_id: str, after: int = 0) -> tuple[list[str], int]:
    """(the lines of the events after event ``after``, the number of the last of these events)."""
    lines: list[str] = []
    while events := service.store.events_after(after, job_id=job_id):
        lines += [line for event in events if (line := _line(event))]
        after = events[-1].number
    return lines, after


def _line(event: EventRow) -> str:
    """The line for an event; log lines of a job's process that also appear as events are left
    out."""
    if event.kind == "progress":
        return ""
    if event.kind == "log":
        text, levels = (str(event.data.get(name, "")) for name in ("text", "levels"))
        lines = zip_longest(text.splitlines(), levels)
        return "".join(
            f"    {line}\n" for line, level in lines if line is not None and level != EVENT_LEVEL
        )
    return f"{rfc3339(event.at)} {event.kind:<8}{_words(event.kind, event.data)}\n"


def _words(kind: str, data: Mapping[str, Any]) -> str:
    match kind:
        case "state":
            why = data.get("reason") or (data.get("error") or {}).get("detail") or ""
            attempt = f", attempt {data['attempt']}" if data.get("attempt") else ""
            return f"{data.get('state', '')}{attempt}{f': {why}' if why else ''}"
        case "started":
            return (
                f"{data.get('input_shards', 0):,} input shards, "
                f"{format_bytes(data.get('input_bytes', 0))}, {data.get('workers')} workers, "
                f"movement {data.get('move')}"
            )
        case "phase":
            counts = (f"{data[noun]:,} {noun}" for noun in ("shards", "records") if data.get(noun))
            done = ", ".join((*counts, format_bytes(data.get("bytes", 0))))
            return f"{data.get('phase')} took {format_duration(data.get('elapsed_s', 0.0))}: {done}"
        case "warning":
            return f"{data.get('kind')}: {data.get('text')}"
        case _:
            return str(data.get("text", ""))


def _progress_and_warnings(
    service: Service, job_id: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(progress of a job, warnings of its newest attempt), as the job's process reported them."""
    progress: list[dict[str, Any]] = []
    warnings: list[dict[str, Any]] = []
    after = 0
    while events := service.store.events_after(after, job_id=job_id):
        progress += [{"at": each.at, **each.data} for each in events if each.kind == "progress"]
        for each in events:
            if each.kind == "warning":
                warnings.append(dict(each.data))
            elif each.kind == "state" and each.data.get("state") == "running":
                # The next attempt reports its own warnings, which are usually the same.
                warnings.clear()
        after = events[-1].number
    return progress, warnings


LOOK_S: Final = 30.0
"""The seconds for which a stream may continue after its token was removed, or after an event was
missed."""


class _Sign(Enum):
    LOOK = "look at the rows again"


LOOK: Final = _Sign.LOOK
_NUMBER = re.compile(r"[0-9]{1,18}")


async def _stream(
    service: Service, job_id: str, after: int, may_go_on: Callable[[], bool]
) -> AsyncIterator[ServerSentEvent]:
    asked = _Asked(may_go_on)
    sent: set[int] = set()  # events that were read here, and that the feed may deliver as well
    # Watched before the rows are read, so that no event falls in between.
    with service.feed.watch(job_id) as queue:
        while True:
            row = await run_in_threadpool(service.store.get, job_id)
            if row is None:
                return
            while past := await run_in_threadpool(service.store.events_after, after, job_id=job_id):
                for event in past:
                    if event.number not in sent:
                        yield _sent(event, row.kind)
                sent.update(event.number for event in past)
                after = past[-1].number
            if row.ended:
                end = {"state": row.state, "exit_code": row.exit_code}
                yield ServerSentEvent(event="end", data=end)
                return
            while (live := await asked.next(queue)) is not LOOK:
                if live is None:
                    # The service ends, the token is no longer valid, or the client was too slow.
                    # The client connects again.
                    return
                if live.number not in sent:
                    yield _sent(live, row.kind)
                    sent.add(live.number)
                if live.kind == "state":
                    break
            else:
                # So that the set does not grow without limit.
                sent = {number for number in sent if number > after}


class _Asked:
    """The events of a subscriber. Every ``LOOK_S`` seconds the rights of the subscriber are checked
    again, and the rows are read again: the feed may have missed an event whose commit took long."""

    def __init__(self, may_go_on: Callable[[], bool]) -> None:
        self._may_go_on = may_go_on
        self._look_at = time.monotonic() + LOOK_S

    async def next(self, queue: Subscriber) -> EventRow | Literal[_Sign.LOOK] | None:
        """The next event; None ends the stream, ``LOOK`` requests that the rows are read again."""
        try:
            async with asyncio.timeout(self._look_at - time.monotonic()):
                return await queue.get()
        except TimeoutError:
            self._look_at = time.monotonic() + LOOK_S
            return LOOK if await run_in_threadpool(self._may_go_on) else None


def _sent(event: EventRow, kind: str) -> ServerSentEvent:
    shown: Mapping[str, Any] | None = event.data
    if event.kind == "progress":
        # Else the data is sent unchanged, so that the stream continues.
        with contextlib.suppress(*NOT_READ):
            shown = progress_view(event.data, kind)
    data: dict[str, Any] = {"at": event.at, **(shown or {})}
    return ServerSentEvent(event=event.kind, id=str(event.number), raw_data=to_json(data))
