"""The application: all routes, what surrounds every request, and how errors are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from dsort.errors import DsortError, TooManyRequestsError, UnauthorizedError
from dsort.job.commit import dsort_version
from dsort.service.aistore import routes as peer
from dsort.service.api import admin, events, jobs, meta, metrics, pages, results, schedules
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.database_errors import DATABASE_AWAY, tell_database_errors
from dsort.service.api.origin import SameOrigin
from dsort.service.api.queries import TextQueries
from dsort.service.api.responses import Problem, problems, restore_examples
from dsort.service.api.spec_body import spec_schema
from dsort.service.problems import PROBLEM_JSON, problem, problem_of
from dsort.service.security.limits import BodyLimit
from dsort.service.service import Service

__all__ = ["create_app"]

_SPECS = frozenset(("/v1/jobs", "/v1/schedules", "/v1/sort", "/v1/validate"))
_KINDS = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def create_app(service: Service) -> FastAPI:
    """The service over HTTP; the caller starts and closes the service."""
    app = FastAPI(
        title="dsort",
        version=dsort_version(),
        summary="Shuffles, sorts and reshards sharded training data.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        separate_input_output_schemas=False,
    )
    app.state.service = service
    for part in (jobs, events, results, schedules, meta, admin, metrics, peer, pages):
        app.include_router(part.router(service))
    _tell_errors(app)
    tell_database_errors(app)
    app.add_middleware(
        BodyLimit, bytes_max=service.config.body_bytes_max, reads_itself=_takes_specs
    )
    app.add_middleware(TextQueries)
    app.add_middleware(SameOrigin, loopback_only=service.config.no_auth)
    app.add_middleware(
        metrics.RequestMetrics, metrics=service.metrics
    )  # the outermost: it counts refusals, too
    app.openapi = _openapi(app)  # type: ignore[method-assign]
    return app


def _takes_specs(path: str) -> bool:
    """Whether the route asks for the token before it reads the body, which may be long."""
    return path in _SPECS or path.startswith(("/v1/schedules/", "/v1/objects/"))


def _tell_errors(app: FastAPI) -> None:
    @app.exception_handler(DsortError)
    def tell(request: Request, error: DsortError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    def tell_invalid(request: Request, error: RequestValidationError) -> Response:
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

    @app.exception_handler(HTTPException)
    def tell_http(request: Request, error: HTTPException) -> Response:
        kind = _KINDS.get(error.status_code, "request")
        hint = "/openapi.json lists what there is" if error.status_code == 404 else ""
        document = problem(kind, error.status_code, str(error.detail), hint=hint, exit_code=2)
        return _json(document, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    def tell_bug(request: Request, error: Exception) -> Response:
        # Starlette logs it with its traceback, and goes on.
        detail = "something in the service went wrong that never should"
        hint = "this is a bug of dsort: please report it, with what the service's log says"
        return _json(problem("internal", 500, detail, hint=hint, exit_code=1))


def answer(error: DsortError) -> Response:
    """An error as an answer."""
    headers: dict[str, str] = {}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="dsort"'
    if isinstance(error, TooManyRequestsError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return _json(problem_of(error), headers=headers)


def _json(document: dict[str, Any], *, headers: dict[str, str] | None = None) -> Response:
    return JsonAnswer(
        document, status_code=document["status"], media_type=PROBLEM_JSON, headers=headers
    )


def _openapi(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The OpenAPI document: with the schema of specs, and without FastAPI's own shape of errors,
    for all errors here are problem documents."""

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
                ref_template="#/components/schemas/{model}"
            )
            schemas.update(schemas["Problem"].pop("$defs", {}))
            for operations in made["paths"].values():
                for operation in operations.values():
                    _complete(operation)
            app.openapi_schema = made
        return app.openapi_schema

    return document


def _complete(operation: dict[str, Any]) -> None:
    """What every route may answer, whatever it does."""
    restore_examples(operation)
    answers = operation["responses"]
    if "HTTPValidationError" in str(answers.get("422")):
        del answers["422"]
    for status, refusal in problems(403).items():  # to the page of another site
        answers.setdefault(str(status), refusal)
    if operation.get("requestBody"):
        answers.setdefault("408", problems(408)[408])
    if operation.get("security"):  # whose token it is, the database knows
        answers.setdefault("503", DATABASE_AWAY)
    operation["responses"] = dict(sorted(answers.items()))
