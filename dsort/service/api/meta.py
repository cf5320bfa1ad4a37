"""Routes that do not concern a job: checking specs, their schema, and the health of the service."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from dsort.model.access import HealthView, ValidationView
from dsort.service.api import examples
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Caller
from dsort.service.api.models import SPEC_BODY, problems, shown
from dsort.service.problems import PROBLEM_JSON, problem
from dsort.service.service import Service
from dsort.spec.schema import schema as job_schema

__all__ = ["router"]


def router(service: Service) -> APIRouter:
    """The routes for specs, and for health checks."""
    routes = APIRouter(default_response_class=JsonAnswer)

    @routes.post(
        "/v1/validate",
        tags=["specs"],
        response_model=ValidationView,
        responses=shown(200, examples.VALIDATION) | problems(400, 401, 403, 413, 429),
        openapi_extra=SPEC_BODY,
        summary="Check a spec",
    )
    async def validate_spec(request: Request, identity: Caller) -> ValidationView:
        """Whether a spec could be submitted here: with all problems at once, or with every default
        written out. Looks at no data."""
        body = await request.body()

        def check() -> ValidationView:
            loaded = service.submitter.read(body, identity)
            return ValidationView(spec=loaded.spec.canonical(), warnings=loaded.warnings)

        return await run_in_threadpool(check)

    @routes.get(
        "/v1/schema",
        tags=["specs"],
        responses=shown(200, examples.SCHEMA) | problems(401, 429),
        summary="The JSON Schema of a spec",
    )
    def spec_schema(identity: Caller) -> dict[str, object]:
        """As `dsort spec schema` prints it, for editors and other tools."""
        return dict(job_schema())

    @routes.get(
        "/healthz",
        tags=["service"],
        response_model=HealthView,
        responses=shown(200, {"status": "ok"}),
        summary="Whether it answers",
    )
    def healthz() -> HealthView:
        """The process is alive. Needs no token."""
        return HealthView(status="ok")

    @routes.get(
        "/readyz",
        tags=["service"],
        response_model=HealthView,
        responses=shown(200, {"status": "ok"}) | problems(503),
        summary="Whether it can work",
    )
    def readyz() -> HealthView | Response:
        """The database answers, and jobs are being run. Needs no token."""
        why = _not_ready(service)
        if why is None:
            return HealthView(status="ok")
        return JsonAnswer(problem("not_ready", 503, why), status_code=503, media_type=PROBLEM_JSON)

    return routes


def _not_ready(service: Service) -> str | None:
    try:
        with service.database.reading() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return "the database does not answer"
    if not service.dispatcher.alive:
        return "no jobs are being run here"
    return None if service.keeper.alive else "no schedules are being watched here"
