"""What a job has made and said: manifest, report, log, and its page as data."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from fastapi import APIRouter, Response

from dsort.errors import InputError, NotFoundError, ObjectNotFoundError, StorageError
from dsort.job.manifest import manifest_name, report_name
from dsort.service.api import examples
from dsort.service.api.answers import JsonAnswer, TextAnswer
from dsort.service.api.jobs import SeenJob
from dsort.service.api.responses import problems, shown
from dsort.service.api.result_views import ManifestView, PageView, PlanReportView, RunReportView
from dsort.service.jobs.rows import EventRow, JobRow
from dsort.service.jobs.views import NOT_READ, job_view, rfc3339
from dsort.service.service import Service
from dsort.settings import resolve_ref
from dsort.sizes import format_bytes
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket, parse_address
from dsort.web import job_page as job_page

__all__ = ["router"]

DOCUMENT_BYTES_MAX: Final = 1 << 28
"""Ten times the manifest of a petabyte: a larger one was made to use up memory."""

_TOLD = re.compile(r"\S+ I ")  # of a phase, of the end: at the level "info"


def router(service: Service) -> APIRouter:
    """The routes of results."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    asked = problems(400, 401, 404, 429, 502)

    @routes.get(
        "/{job_id}/manifest",
        response_model=ManifestView,
        responses=shown(200, examples.MANIFEST) | asked,
        summary="The manifest of a job's result",
    )
    def job_manifest(row: SeenJob) -> Response:
        """The manifest as it is in the output bucket: inputs, outputs with their checksums, spec
        and seed."""
        return Response(_document(service, row, manifest_name), media_type="application/json")

    @routes.get(
        "/{job_id}/report",
        response_model=RunReportView | PlanReportView,
        responses=shown(200, examples.REPORT) | asked,
        summary="The report of a job",
    )
    def job_report(row: SeenJob) -> Response:
        """What a finished job did, or how far one came that failed."""
        if row.result is not None:
            return JsonAnswer(dict(row.result))
        return Response(_document(service, row, report_name), media_type="application/json")

    @routes.get(
        "/{job_id}/log",
        response_class=TextAnswer,
        responses=shown(200, examples.LOG, media_type="text/plain") | problems(400, 401, 404, 429),
        summary="The log of a job",
    )
    def job_log(row: SeenJob) -> Response:
        """A line for each thing that happened, as text; progress is left out."""
        return TextAnswer("".join(_log_lines(service, row.job_id)))

    @routes.get(
        "/{job_id}/page",
        response_model=PageView,
        responses=shown(200, examples.PAGE) | asked,
        summary="All that a job's page shows",
    )
    def job_page_data(row: SeenJob) -> Response:
        """Phases, throughput, output shards and how well records are mixed, as one document."""
        view = job_view(row, position=service.store.position(row), whole=True)
        samples, warnings = _told(service, row.job_id)
        if row.state == "finished" and row.kind == "run":
            with contextlib.suppress(NotFoundError):  # a schedule keeps only its newest results
                return _page_by_manifest(service, row, view, warnings)
        try:
            page = job_page.page_of_job(view, samples, warnings=warnings)
        except NOT_READ:  # what its process told is not what it should be
            bare = {**view, "phases": [], "progress": None}
            page = job_page.page_of_job(bare, [], warnings=warnings)
        return JsonAnswer(page)

    return routes


def _page_by_manifest(
    service: Service, row: JobRow, view: Mapping[str, Any], warnings: Sequence[Mapping[str, Any]]
) -> Response:
    """The page of a finished job. Whoever can write to the bucket can write a manifest."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    text = _document(service, row, manifest_name).decode("utf-8", "replace")
    try:
        manifest = json.loads(text, parse_constant=refuse)
        page = job_page.page_of_manifest(manifest, job_view=view, warnings=warnings)
        return JsonAnswer(page)
    except (InputError, ValueError, OverflowError, RecursionError) as error:
        raise StorageError(
            f"the manifest of job {row.job_id} is damaged: {error or 'it is nested too deeply'}",
            hint="somebody may have edited it; `dsort verify` tells more",
        ) from error


def _document(service: Service, row: JobRow, name_of: Any) -> bytes:
    what = "manifest" if name_of is manifest_name else "report"
    bucket, name = output_bucket(service, row), name_of(row.job_id)
    try:
        size_bytes = bucket.stat(name).size_bytes
        if size_bytes > DOCUMENT_BYTES_MAX:
            raise StorageError(
                f"the {what} of job {row.job_id} is too large to be one: "
                f"{format_bytes(size_bytes)}",
                hint="somebody may have edited it",
            )
        return bucket.read(name)
    except ObjectNotFoundError:
        pass
    hint = "" if row.ended else "it is written at the very end"
    if row.state == "finished" and row.kind == "run":
        hint = "a schedule with `retain` removes its old results"
    raise NotFoundError(f"job {row.job_id} is {row.state} and has no {what}", hint=hint)


def output_bucket(service: Service, row: JobRow) -> Bucket:
    """The bucket that a job writes to, as far as it is the one that tokens were held against: links
    that lead out of it are followed nowhere."""
    settings, policy = service.config.settings, service.submitter.policy.fetch_policy()
    ref = parse_spec(row.spec, ais_is_there=settings.ais_is_there).spec.output_bck
    if ref.is_directory:
        policy = replace(policy, roots=(parse_address(row.output_uri).path,), patterns=())
    ref = resolve_ref(ref, settings)
    limits = settings.limits(ref)
    return open_bucket(ref, root=service.config.root, limits=limits, policy=policy)


def _log_lines(service: Service, job_id: str) -> list[str]:
    lines, after = [], 0
    while events := service.store.events_after(after, job_id=job_id):
        lines += [line for event in events if (line := _line(event))]
        after = events[-1].number
    return lines


def _line(event: EventRow) -> str:
    """The event in a line; of what a job's process wrote, what events do not say as well."""
    if event.kind == "progress":
        return ""
    if event.kind == "log":
        text = str(event.data.get("text", ""))
        return "".join(f"    {each}\n" for each in text.splitlines() if not _TOLD.match(each))
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
                f"way {data.get('move')}"
            )
        case "phase":
            counts = (f"{data[noun]:,} {noun}" for noun in ("shards", "records") if data.get(noun))
            done = ", ".join((*counts, format_bytes(data.get("bytes", 0))))
            return f"{data.get('phase')} took {data.get('elapsed_s', 0.0):.1f} s: {done}"
        case "warning":
            return f"{data.get('kind')}: {data.get('text')}"
        case _:
            return str(data.get("text", ""))


def _told(service: Service, job_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(progress, warnings of the newest attempt) of a job, as they were told."""
    progress: list[dict[str, Any]] = []
    warnings: list[dict[str, Any]] = []
    after = 0
    while events := service.store.events_after(after, job_id=job_id):
        progress += [{"at": each.at, **each.data} for each in events if each.kind == "progress"]
        for each in events:
            if each.kind == "warning":
                warnings.append(dict(each.data))
            elif each.kind == "state" and each.data.get("state") == "running":
                warnings.clear()  # the next attempt gives its own, the same ones as a rule
        after = events[-1].number
    return progress, warnings
