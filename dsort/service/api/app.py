"""The application: all routes, the middleware around them, the answers for errors, and the files of
the web page."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from msgspec import Struct
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from dsort.data.json_values import encodable
from dsort.errors import DsortError, NotFoundError, SpecError, SpecProblem
from dsort.log_lines import logger_of
from dsort.model.base import Problem
from dsort.service.api import admin, datasets, jobs, metrics, results, schedules
from dsort.service.api.dependencies import (
    RETRY_AFTER,
    JsonAnswer,
    problem_answer,
    problems,
    restore_examples,
    spec_schema,
)
from dsort.service.objects.processes import ShardProblemError
from dsort.service.problems import PROBLEM_JSON, problem, problem_of
from dsort.service.security.limits import BodyLimit
from dsort.service.security.spec_text import why_no_text
from dsort.service.service import Service
from dsort.version import dsort_version


def _refusal_of(scope: Scope) -> dict[str, Any] | None:
    if "\n" in scope["path"]:
        # The pattern of a route ends in "$", which also matches before a line break at the end. So
        # a path with a line break would get the route of one path and the limits of another.
        detail = "no path here has a line break"
        return problem("not_found", 404, detail, hint=_NOT_FOUND_HINT, exit_code=2)
    problems = _problems(scope["query_string"])
    return problem_of(SpecError(problems)) if problems else None


def _problems(query: bytes) -> list[SpecProblem]:
    if query.isascii() and b"%" not in query:
        return []
    problems = []
    for pair in query.split(b"&"):
        name, value = (
            unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8", "surrogateescape")
            for part in pair.partition(b"=")[::2]
        )
        why = why_no_text(name) or why_no_text(value)
        if why:
            problems.append(SpecProblem(encodable(name), why))
    return problems


_SPECS = frozenset(("/v1/jobs", "/v1/schedules", "/v1/validate"))
_NOT_FOUND_HINT = "/openapi.json lists all routes"
_KINDS = {404: "no_route", 405: "method_not_allowed", 413: "too_large"}


def create_app(service: Service) -> FastAPI:
    """The service over HTTP; the caller starts and closes the service."""
    app = FastAPI(
        title="dsort",
        version=dsort_version(),
        summary="Shuffles, sorts and reshards sharded training data.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    for part in (jobs, results, schedules, datasets, admin):
        app.include_router(part.routes)
    app.include_router(metrics.router(service))
    for routes in service.guest.routers(service):
        app.include_router(routes)
    app.include_router(page_router())
    for kind, tell in _HANDLERS.items():
        app.add_exception_handler(kind, tell)
    app.openapi = _openapi(app)  # type: ignore[method-assign]
    surround(app, service)
    return app


def surround(app: FastAPI, service: Service) -> None:
    """Add the middleware for all requests around the routes."""
    config, guest = service.config, service.guest
    # The middleware that is added first is the innermost: ``Refusals`` answers before a body is
    # read.
    app.add_middleware(
        BodyLimit,
        bytes_max=config.body_bytes_max,
        reads_itself=lambda path: (
            path in _SPECS or path.startswith("/v1/schedules/") or guest.reads_itself(path)
        ),
        stored_max=lambda scope: guest.stored_max(scope, config),
    )
    app.add_middleware(Refusals, loopback_only=config.no_auth)
    app.add_middleware(
        metrics.RequestMetrics, metrics=service.metrics
    )  # the outermost: it counts refusals, too


def _tell_invalid(request: Request, error: RequestValidationError) -> Response:
    found = [
        {
            "path": ".".join(str(part) for part in each["loc"][1:]),
            "message": str(each["msg"]),
            "hint": "",
        }
        for each in error.errors()
    ]
    detail = "; ".join(f"{each['path']}: {each['message']}" for each in found)
    return _json(problem("request", 400, detail, hint="", exit_code=2, problems=found))


def _tell_http(request: Request, error: HTTPException) -> Response:
    kind = _KINDS.get(error.status_code, "request")
    hint = _NOT_FOUND_HINT if error.status_code == 404 else ""
    document = problem(kind, error.status_code, str(error.detail), hint=hint, exit_code=2)
    return _json(document, headers=dict(error.headers or {}))


def _tell_bug(request: Request, error: Exception) -> Response:
    # Starlette logs the error with its traceback, and continues.
    detail = "the service failed unexpectedly"
    hint = "this is a bug of dsort: please report it, with the service's log"
    return _json(problem("internal", 500, detail, hint=hint, exit_code=1))


def _json(document: dict[str, Any], *, headers: dict[str, str] | None = None) -> Response:
    return JsonAnswer(
        document, status_code=document["status"], media_type=PROBLEM_JSON, headers=headers
    )


def _openapi(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The OpenAPI document, with the schema of specs. FastAPI's own error format is left out,
    because all errors here are problem documents."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                routes=app.routes,
                license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
            )
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas["JobSpec"] = spec_schema()
            schemas["Problem"] = Problem.model_json_schema(
                ref_template="#/components/schemas/{model}", mode="serialization"
            )
            schemas.update(schemas["Problem"].pop("$defs", {}))
            for operations in made["paths"].values():
                for operation in operations.values():
                    _complete(operation)
            app.openapi_schema = made
        return app.openapi_schema

    return document


def _complete(operation: dict[str, Any]) -> None:
    """Add the answers that every route may give."""
    restore_examples(operation)
    answers = operation["responses"]
    if "HTTPValidationError" in str(answers.get("422")):
        del answers["422"]
    for status, refusal in problems(403).items():  # ``Refusals`` may answer 403 on every route
        answers.setdefault(str(status), refusal)
    if operation.get("security"):  # to check a token, the service reads the database
        answers.setdefault("503", DATABASE_AWAY)
    operation["responses"] = dict(sorted(answers.items()))


def is_loopback(host: str) -> bool:
    """Whether ``host``, an address or a name, is the loopback interface of this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


class Refusals:
    """ASGI middleware: refuses a browser's requests from pages of other sites, paths with a line
    break, and queries that are not UTF-8 or have a NUL.

    Otherwise any page could make a user's browser send commands to a service that needs no token,
    even under a name that an attacker's DNS resolves to the service's address.

    ``loopback_only``: requests must also name this machine as their ``Host``.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        document = None
        if scope["type"] == "http":
            document = self._of_origin(scope) or _refusal_of(scope)
        if document is None:
            await self._app(scope, receive, send)
            return
        answer = JsonAnswer(document, document["status"], media_type=PROBLEM_JSON)
        await answer(scope, receive, send)

    def _of_origin(self, scope: Scope) -> dict[str, Any] | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback_only and not is_loopback(_name_of(host)):
            why = "this service needs no token, so it answers only requests to localhost"
        elif origin is not None and _authority_of(origin) != host.lower():
            why = f"pages of {origin[:200]} may not use this service"
        else:
            return None
        return problem("forbidden", 403, why, hint="", exit_code=2)


def _authority_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    # Unbalanced brackets, or characters that Unicode normalization turns into others.
    except ValueError:
        return None


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


RETRY_AFTER_S = 5
_BAD_TEXT = "22021"  # PostgreSQL: character_not_in_repertoire
_PASSING = ("08", "40", "53", "57")  # connection, conflict, resources, shutdown

DATABASE_AWAY: Final = {
    "description": "The database does not answer: `Retry-After` is the wait in seconds.",
    "headers": RETRY_AFTER,
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
"""The answer of status 503 in the OpenAPI document."""

log = logger_of("service")


def _tell_database(request: Request, error: SQLAlchemyError) -> Response:
    """503 while the database is unavailable, and 400 for text that the database does not accept,
    such as NUL in PostgreSQL."""
    if _sql_state(error) == _BAD_TEXT:
        mistake = SpecError("the request has a character that no text may have: NUL")
        return JsonAnswer(problem_of(mistake), status_code=400, media_type=PROBLEM_JSON)
    if not is_database_away(error):
        raise error
    log.warning("the database does not answer: %s", error)
    away = problem(
        "database_away",
        503,
        "the service's database does not answer",
        hint="try again in a moment; with an Idempotency-Key no job is made twice",
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return JsonAnswer(away, status_code=503, media_type=PROBLEM_JSON, headers=headers)


def is_database_away(error: SQLAlchemyError) -> bool:
    """Whether another try of the transaction may succeed: the connection failed, no connection was
    free, the wait for a lock was too long, or the transaction broke in the middle."""
    if isinstance(error, PoolTimeoutError | PendingRollbackError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = _sql_state(error)
    if state:
        return state.startswith(_PASSING)
    name = type(error.orig).__name__
    return error.connection_invalidated or name in ("InterfaceError", "OperationalError")


def _sql_state(error: SQLAlchemyError) -> str:
    """PostgreSQL's code of the error, as pg8000 reports it; empty if the error has no code."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    fields = orig.args[0] if orig is not None and orig.args else None
    return str(fields.get("C", "")) if isinstance(fields, Mapping) else ""


_HANDLERS: Final[Mapping[type[Exception], Callable[[Request, Any], Response]]] = {
    DsortError: lambda request, error: problem_answer(error),
    ShardProblemError: lambda request, error: _json(error.document),
    RequestValidationError: _tell_invalid,
    HTTPException: _tell_http,
    SQLAlchemyError: _tell_database,
    Exception: _tell_bug,
}
"""How errors become answers, by their classes."""


CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NOT_SERVED = frozenset(("report.html", "report.js"))  # files of the report that is one HTML file
START = "index.html"
API_DOCS = "api_docs.html"
SWAGGER_UI = frozenset(("swagger-ui-bundle.js", "swagger-ui.css"))

PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the browser checks each time, and mostly gets a 304
}

API_DOCS_POLICY = (
    PAGE_HEADERS["Content-Security-Policy"]
    .replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")  # Swagger UI sets styles
    .replace("img-src 'self'", "img-src 'self' data:")
)


class _File(Struct, frozen=True):
    content: bytes
    headers: Mapping[str, str]

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the client has it."""
        known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if self.headers["ETag"] in known:
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)


def page_router() -> APIRouter:
    """The routes of the web page: ``/`` with its scripts and styles, and ``/docs``, where each
    route can be tried, with the files of Swagger UI. They are not part of the OpenAPI document.

    The page contains no secrets, so these routes need no token. When the REST interface answers
    401, the page asks the user for a token."""
    routes = APIRouter(include_in_schema=False)
    known = _read_files()

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def start(request: Request) -> Response:
        return known[START].answer(request)

    @routes.api_route("/docs", methods=["GET", "HEAD"])
    async def api_docs(request: Request) -> Response:
        return known[API_DOCS].answer(request)

    @routes.api_route("/web/{name}", methods=["GET", "HEAD"])
    async def web_file(name: str, request: Request) -> Response:
        if name not in known:
            raise NotFoundError(f"there is no file {name!r} of the web page")
        return known[name].answer(request)

    return routes


def _read_files() -> dict[str, _File]:
    """All files of the page by name, kept in memory: they are few and small, and do not change."""
    found = {}
    for entry in _entries():
        content_type = CONTENT_TYPES.get(PurePosixPath(entry.name).suffix)
        if content_type is None or entry.name in NOT_SERVED:
            continue
        content = entry.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**PAGE_HEADERS, "Content-Type": content_type, "ETag": tag}
        if entry.name == API_DOCS:
            headers["Content-Security-Policy"] = API_DOCS_POLICY
        found[entry.name] = _File(content, headers)
    return found


def _entries() -> Iterable[Traversable]:
    yield from files("dsort").joinpath("web", "static").iterdir()
    for entry in files("fastapi_offline").joinpath("static").iterdir():
        if entry.name in SWAGGER_UI:
            yield entry
