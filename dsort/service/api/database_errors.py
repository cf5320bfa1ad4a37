"""What a route answers when the database refuses or does not answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dsort.errors import SpecError
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.responses import RETRY_AFTER
from dsort.service.problems import PROBLEM_JSON, problem, problem_of

__all__ = ["DATABASE_AWAY", "is_bad_text", "is_database_away", "tell_database_errors"]

RETRY_AFTER_S = 5
_BAD_TEXT = "22021"  # PostgreSQL: character_not_in_repertoire
_PASSING = ("08", "40", "53", "57")  # connection, conflict, resources, shutdown

DATABASE_AWAY: Final = {
    "description": "The database does not answer: `Retry-After` says how long to wait.",
    "headers": RETRY_AFTER,
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
"""The answer of status 503, as the OpenAPI document has it."""

log = logging.getLogger(__name__)


def tell_database_errors(app: FastAPI) -> None:
    """Have ``app`` answer 503 while the database is away, and 400 to text that it does not take:
    PostgreSQL's has no NUL."""

    @app.exception_handler(SQLAlchemyError)
    def tell(request: Request, error: SQLAlchemyError) -> Response:
        if is_bad_text(error):
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


def is_bad_text(error: SQLAlchemyError) -> bool:
    """Whether a text was refused for a character in it."""
    return _sql_state(error) == _BAD_TEXT


def is_database_away(error: SQLAlchemyError) -> bool:
    """Whether the same may well succeed if it is tried again: no connection, none free, a lock that
    was waited for too long, a transaction that broke in the middle."""
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
    """PostgreSQL's code of the error, as pg8000 hands it on; empty where there is none."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    fields = orig.args[0] if orig is not None and orig.args else None
    return str(fields.get("C", "")) if isinstance(fields, Mapping) else ""
