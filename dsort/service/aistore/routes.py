"""AIStore's own routes for dSort, ``/v1/sort``, so that AIStore's clients work with this service:
the Python SDK (2.0.0), the Go API and the command line.

This service is no cluster, and declines AIStore's routes that have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Any, Final

import re2
from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from dsort.errors import (
    ConflictError,
    DsortError,
    SpecError,
    TooManyRequestsError,
)
from dsort.service.aistore.answers import (
    KEY_MAP,
    KEY_MAP_SCHEMA,
    PEER_JOB,
    TARGET,
    JobInfo,
    job_info,
    peer_id,
)
from dsort.service.aistore.cluster import add_cluster, declined
from dsort.service.aistore.key_maps import KEY_MAP_NAME, HeldKeyMaps, with_key_map
from dsort.service.aistore.lookups import (
    all_jobs,
    names_of_reactions,
    own_job,
    refuse_absent,
    seen_job,
    stop_job,
)
from dsort.service.api.dependencies import (
    SPEC_BODY,
    Caller,
    JsonAnswer,
    Submitting,
    TextAnswer,
    note,
    problems,
    shown,
    shown_buckets,
)
from dsort.service.database.tables import JobRow
from dsort.service.jobs.store import JobFilter
from dsort.service.security.spec_text import parse_text
from dsort.service.security.tokens import visible
from dsort.service.service import Service

LIST_MAX: Final = 1000
_REGEX_CHARACTERS_MAX: Final = 1000
_REGEX_MEMORY_BYTES: Final = 1 << 20
_WARNING_EVENTS_MAX: Final = 1000
_WHOLE_BODY: Final = "whole"

_UUID: Final = Query(max_length=64, description="The id of a job.")


class PeerRoute(APIRoute):
    """A route that reports errors as plain text, also those of its dependencies. AIStore's clients
    show this text, and read only the class of the status."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with errors turned into answers."""
        inner: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except DsortError as error:
                return _error_response(error)
            except RequestValidationError as error:
                said = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
                return TextAnswer(f"invalid request: {said}", 400)
            except HTTPException as error:
                return TextAnswer(str(error.detail), error.status_code, error.headers)

        return handle


def _error_response(error: DsortError) -> Response:
    # These routes never send 409, as AIStore does not: the SDK would take 409 for "the bucket
    # exists".
    status = 400 if error.http_status == 409 else error.http_status
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, TooManyRequestsError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    text = f"{error.message}\nhint: {error.hint}" if error.hint else error.message
    return TextAnswer(text, status, headers)


def _texts(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with texts of these statuses."""
    text = {"text/plain": {"schema": {"type": "string"}}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": _WORDS[status], "content": text} for status in statuses
    }
    for status, limit in problems(400, 403, 413, 429).items():  # reported before there is a route
        if status in found:
            found[status] = {**limit, "content": text | limit["content"]}
    return found


_WORDS: Final = {
    400: "The request, or the spec in it, is wrong.",
    401: "No token, or an unknown token.",
    403: "The token's role or buckets do not allow it.",
    404: "There is no such job, or the token may not see it.",
    413: "The body is too large.",
    429: "Too many requests: `Retry-After` is the wait in seconds.",
}


def router(service: Service) -> APIRouter:
    """AIStore's routes."""
    routes = APIRouter(prefix="/v1", tags=["aistore"], route_class=PeerRoute)
    held = HeldKeyMaps()
    _add_start(routes, service, held)
    _add_looks(routes, service)
    _add_changes(routes, service)
    _add_key_maps(routes, held)
    add_cluster(routes, service)
    _add_declined(routes)
    return routes


# --- jobs ----------------------------------------------------------------------------------------


def _add_start(routes: APIRouter, service: Service, held: HeldKeyMaps) -> None:
    @routes.post(
        "/sort",
        response_class=TextAnswer,
        responses=shown(200, PEER_JOB["id"], media_type="text/plain")
        | _texts(400, 401, 403, 404, 413, 429),
        openapi_extra=SPEC_BODY,
        summary="Start a dSort job as AIStore does",
    )
    async def start_sort(request: Request, identity: Submitting) -> Response:
        """Queue the job that the spec describes. The answer is the job's id."""
        body = await request.body()

        def take_in() -> Response:
            spec = with_key_map(
                parse_text(body), held, owner=identity.name, address=request.url.netloc
            )
            spec = _with_reactions(spec, service.config.reactions)
            new = service.submitter.job_of(spec, identity)
            # After the check of the token, because the answer shows which buckets exist.
            refuse_absent(service, new)
            row, _ = service.submitter.put(new)
            details = {**shown_buckets(row), "kind": row.kind}
            note(request, identity.name, "job.submit", row.job_id, **details)
            service.dispatcher.wake()
            return TextAnswer(peer_id(row.job_id))

        return await run_in_threadpool(take_in)


def _with_reactions(spec: dict[str, Any], operators: Mapping[str, str]) -> dict[str, Any]:
    """``spec`` with AIStore's reaction to members whose paths lead out of their archive: the job
    refuses them. Reactions that the spec or the operator of the service sets stay."""
    parts = (spec, spec.get("Config"), spec.get("config"), operators)
    if any(isinstance(part, Mapping) and "unsafe_names" in part for part in parts):
        return spec
    return {**spec, "unsafe_names": "abort"}


def _add_looks(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/sort",
        response_model=dict[str, JobInfo] | list[JobInfo],
        responses={
            200: {
                "description": "With `uuid`, an object: the job's `JobInfo` by target (there is "
                "one target). Without `uuid`, a list of `JobInfo`.",
                "content": {
                    "application/json": {
                        "examples": {
                            "one": {"summary": "With uuid", "value": {TARGET: PEER_JOB}},
                            "list": {"summary": "Without", "value": [PEER_JOB]},
                        }
                    }
                },
            },
            **_texts(400, 401, 404, 429),
        },
        summary="Look at dSort jobs as AIStore shows them",
    )
    def get_sort(
        identity: Caller,
        uuid: Annotated[str | None, _UUID] = None,
        regex: Annotated[
            str, Query(description="Only jobs whose description this matches (RE2).")
        ] = "",
        only_active: Annotated[bool, Query(description="Only jobs that have not ended.")] = False,
    ) -> Response:
        """One job, or the newest thousand jobs."""
        root = service.config.run.root.resolve()
        if uuid is not None:
            row = seen_job(service, identity, uuid)
            warnings = [] if row.ended or not row.warning_count else _warnings(service, row)
            named = names_of_reactions(service, row)
            return JsonAnswer({TARGET: job_info(row, root, warnings=warnings, named=named)})
        pattern = _pattern(regex)
        wanted = JobFilter(
            states=("queued", "running") if only_active else (), visible=visible(identity)
        )
        found = []
        for row in all_jobs(service, wanted):
            if pattern is None or pattern.search(row.description):
                found.append(job_info(row, root))
                if len(found) == LIST_MAX:
                    break
        return JsonAnswer(found)


def _add_changes(routes: APIRouter, service: Service) -> None:
    @routes.delete(
        "/sort/abort",
        response_class=Response,
        responses=_texts(400, 401, 403, 404, 429),
        summary="Abort a dSort job as AIStore does",
    )
    def abort_sort(request: Request, identity: Submitting, uuid: Annotated[str, _UUID]) -> Response:
        """Stop the job. A job that has ended stays as it is, without an error."""
        stop_job(service, request, identity, uuid)
        return Response(status_code=200)

    @routes.delete(
        "/sort",
        response_class=Response,
        responses=_texts(400, 401, 403, 404, 429),
        summary="Remove a dSort job as AIStore does",
    )
    def remove_sort(
        request: Request, identity: Submitting, uuid: Annotated[str, _UUID]
    ) -> Response:
        """Remove an ended job from the history. Its output shards stay where they are."""
        row = own_job(service, identity, uuid)
        try:
            service.store.remove(row.job_id)
        except ConflictError:
            raise ConflictError(
                f"dsort process {uuid} still in progress and cannot be removed"
            ) from None
        note(request, identity.name, "job.remove", row.job_id)
        return Response(status_code=200)


def _warnings(service: Service, row: JobRow) -> list[str]:
    events = service.store.events_after(0, job_id=row.job_id, limit=_WARNING_EVENTS_MAX)
    return [str(event.data["text"]) for event in events if event.kind == "warning"]


def _pattern(text: str) -> re2._Regexp[str] | None:
    """``text`` as a pattern for RE2, whose time grows only in proportion to the searched text. None
    if ``text`` is empty; ``SpecError``."""
    if not text:
        return None
    if len(text) > _REGEX_CHARACTERS_MAX:
        raise SpecError(f"regex: longer than {_REGEX_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem, options.log_errors = _REGEX_MEMORY_BYTES, False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise SpecError(f"regex: cannot parse {text[:80]!r}: {error}") from None


# --- other requests to an AIStore cluster ---------------------------------------------------------


def _add_key_maps(routes: APIRouter, held: HeldKeyMaps) -> None:
    @routes.put(
        f"/objects/{{bucket:path}}/{KEY_MAP_NAME}",
        response_class=Response,
        responses={
            307: {"description": "Over TLS: the address to which AIStore's SDK sends the body."},
            **_texts(400, 401, 403, 413, 429),
        },
        openapi_extra={
            "requestBody": {
                "description": "`{template: [key, ...]}`",
                "content": {"application/json": {"schema": KEY_MAP_SCHEMA, "example": KEY_MAP}},
            }
        },
        summary="Put an external key map as AIStore's SDK does",
    )
    async def put_key_map(
        request: Request,
        identity: Submitting,
        bucket: Annotated[
            str,
            Path(
                max_length=1000,
                pattern=r"^[^\n]*$",  # no route matches a path with a line break
                description="The input bucket of the job to come.",
            ),
        ],
        part: Annotated[str, Query(max_length=10, include_in_schema=False)] = "",
    ) -> Response:
        """Hold the key map for a job that the same token starts soon, with the URL of the key map
        in its spec."""
        if request.url.scheme == "https" and part != _WHOLE_BODY:
            # Over TLS the SDK sends no body before it has received a redirect.
            there = request.url.include_query_params(part=_WHOLE_BODY)
            return RedirectResponse(there, 307)
        held.put(identity.name, bucket, await request.body())
        return Response(status_code=200)


def _add_declined(routes: APIRouter) -> None:
    def decline(request: Request, identity: Caller) -> Response:
        what = request.url.path.removeprefix("/v1/").partition("/")[0]
        raise declined(what)

    for path in _CLUSTER:
        for end in ("", "/{rest:path}"):
            # Objects and buckets have routes of our own (``dsort.service.api``).
            methods = [each for each in _METHODS if each not in _OWN.get(f"{path}{end}", ())]
            routes.add_api_route(f"/{path}{end}", decline, methods=methods, include_in_schema=False)


_OWN: Final = {
    "buckets": ("GET",),
    "buckets/{rest:path}": ("GET", "HEAD", "POST", "DELETE"),
    "objects/{rest:path}": ("GET", "HEAD", "PUT", "DELETE"),
}
_CLUSTER: Final = (
    "buckets",
    "objects",
    "cluster",
    "daemon",
    "health",
    "etl",
    "reverse",
    "download",
)
_METHODS: Final = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]
