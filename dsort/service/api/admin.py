"""``/v1/whoami`` for everybody; ``/v1/tokens`` and ``/v1/audit`` for admins."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from dsort.errors import ForbiddenError
from dsort.model.access import AuditEntry, AuditPage, Me, TokenList, TokenMade
from dsort.service.api import examples
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Admin, Caller, address_of
from dsort.service.api.models import body_like, problems, shown
from dsort.service.jobs.rows import rfc3339, validated
from dsort.service.security.tokens import NAME_CHARACTERS_MAX, NAME_PATTERN, StoredToken
from dsort.service.service import Service

__all__ = ["NewToken", "router"]

AUDIT_PAGE_MAX = 1000
EXPIRES_S_MAX = 100 * 366 * 86400.0
_BUCKETS = "Whole URIs of buckets, or how they begin and a `*` at the end."

TokenName = Annotated[
    str, Path(max_length=NAME_CHARACTERS_MAX, pattern=NAME_PATTERN, description="A token's name.")
]


class NewToken(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        max_length=NAME_CHARACTERS_MAX,
        pattern=NAME_PATTERN,
        description="Jobs that are submitted with it belong to this name.",
    )
    role: Literal["viewer", "submitter", "admin"]
    input_buckets: list[str] = Field(default=["*"], max_length=100, description=_BUCKETS)
    output_buckets: list[str] = Field(default=["*"], max_length=100, description=_BUCKETS)
    expires_in_s: float | None = Field(
        default=None, gt=0, le=EXPIRES_S_MAX, description="Null: it does not expire."
    )


def router(service: Service) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(prefix="/v1", default_response_class=JsonAnswer)
    _add_audit(routes, service)
    _add_tokens(routes, service)

    @routes.get(
        "/whoami",
        tags=["access"],
        response_model=Me,
        responses=shown(200, examples.ME) | problems(401, 429),
        summary="Who am I?",
    )
    def whoami(caller: Caller) -> Me:
        """The name, role and buckets of the token that the request has."""
        return Me.model_validate(
            {
                "name": caller.name,
                "role": caller.role,
                "input_buckets": caller.input_buckets,
                "output_buckets": caller.output_buckets,
                "authenticated": not service.config.no_auth,
                "named_transforms": service.transforms is not None,
            }
        )

    return routes


def _add_audit(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/audit",
        tags=["access"],
        response_model=AuditPage,
        responses=shown(200, examples.AUDIT) | problems(400, 401, 403, 429),
        summary="The audit trail",
    )
    def read_audit(
        caller: Admin,
        limit: Annotated[
            int, Query(ge=1, le=AUDIT_PAGE_MAX, description="How many on a page.")
        ] = 100,
        cursor: Annotated[
            str | None,
            Query(pattern=r"^[0-9]{1,18}$", description="`next_cursor` of the page before."),
        ] = None,
    ) -> AuditPage:
        """Who submitted, stopped, removed, ... what, when, and from where. For admins."""
        rows = service.audit.list(limit=limit + 1, before=None if cursor is None else int(cursor))
        entries = [
            validated(
                AuditEntry,
                {
                    "number": row.number,
                    "at": rfc3339(row.at),
                    "who": row.who,
                    "address": row.address,
                    "action": row.action,
                    "target": row.target,
                    "details": row.details,
                },
            )
            for row in rows[:limit]
        ]
        following = str(rows[limit - 1].number) if len(rows) > limit else None
        return AuditPage(entries=entries, next_cursor=following)


def _add_tokens(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/tokens",
        tags=["access"],
        response_model=TokenList,
        responses=shown(200, examples.TOKENS) | problems(401, 403, 429),
        summary="List tokens",
    )
    def list_tokens(caller: Admin) -> TokenList:
        """All tokens, expired ones too, without their secrets. For admins."""
        views = [each.view() for each in service.tokens.list()]
        return validated(TokenList, {"tokens": views})

    @routes.post(
        "/tokens",
        tags=["access"],
        status_code=201,
        response_model=TokenMade,
        responses=shown(201, examples.TOKEN_MADE) | problems(400, 401, 403, 409, 413, 429),
        openapi_extra=body_like(examples.NEW_TOKEN),
        summary="Make a token",
    )
    def add_token(
        caller: Admin, request: Request, response: Response, wanted: NewToken
    ) -> TokenMade:
        """The answer has the token's text, which is not stored: the service keeps a hash of it. For
        admins; a service without tokens refuses the request."""
        if service.config.no_auth:
            raise ForbiddenError(
                "a service without tokens makes none",
                hint="`dsort token add` makes one, on the service's machine",
            )
        expires_at = None if wanted.expires_in_s is None else time.time() + wanted.expires_in_s

        def note(connection: Connection, made: StoredToken) -> None:
            who, where = caller.name, address_of(request)
            service.audit.note(connection, who, where, "token.add", made.name, made.details())

        text = service.tokens.add(
            wanted.name,
            wanted.role,
            wanted.input_buckets,
            wanted.output_buckets,
            expires_at=expires_at,
            also=note,
        )
        made = service.tokens.get(wanted.name)
        response.headers["Cache-Control"] = "no-store"
        return validated(TokenMade, {**made.view(), "token": text})

    @routes.delete(
        "/tokens/{name}",
        tags=["access"],
        status_code=204,
        responses=problems(400, 401, 403, 404, 429),
        summary="Remove a token",
    )
    def remove_token(caller: Admin, request: Request, name: TokenName) -> Response:
        """The token is refused from now on. Its jobs stay. For admins."""
        address = address_of(request)
        service.tokens.remove(
            name,
            also=lambda connection: service.audit.note(
                connection, caller.name, address, "token.remove", name
            ),
        )
        return Response(status_code=204)
