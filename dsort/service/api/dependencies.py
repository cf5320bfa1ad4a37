"""Parameters that routes share: the sender of a request, and where the page of a list begins.

A token is accepted only in the header ``Authorization: Bearer ...``, because addresses end up in
logs. The client's address is the connection's; headers of proxies are not trusted. The next page of
a list begins after the last row of the page before: the number of that row, as a text, is the
cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dsort.errors import ForbiddenError, SpecError, SpecProblem, UnauthorizedError
from dsort.service.security.tokens import ADMIN, ANYONE, SUBMITTER, Identity

if TYPE_CHECKING:
    from dsort.service.service import Service

bearer = HTTPBearer(
    scheme_name="token",
    bearerFormat="dsort_<id>_<secret>",
    description="A token as `dsort token add` prints it. A service that was started with "
    "`--no-auth` needs none.",
    auto_error=False,
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]


def address_of(request: Request) -> str:
    """The address that the connection comes from; empty if it has none."""
    return request.client.host if request.client else ""


def identity(request: Request, credentials: Credentials) -> Identity:
    """The sender of the request. ``UnauthorizedError``, or ``TooManyRequestsError`` if the token's
    holder sent too many."""
    service: Service = request.app.state.service
    if service.config.no_auth:
        service.limits.request(address_of(request))
        return ANYONE
    if credentials is None:
        raise UnauthorizedError(
            "the request has no token",
            hint="set DSORT_TOKEN, or send the header `Authorization: Bearer TOKEN`",
        )
    found = service.tokens.verify(credentials.credentials)
    if found is None:
        raise UnauthorizedError(
            "the token is not known: it is wrong, was removed or has expired",
            hint="`dsort token ls` shows what tokens there are",
        )
    service.limits.request(found.name)
    return found


Caller = Annotated[Identity, Depends(identity)]
"""Any holder of a token."""


def require(role: str) -> Callable[[Identity], Identity]:
    """A dependency: the caller, who must have the rights of ``role``. ``ForbiddenError``."""
    article = "an" if role == ADMIN else "a"

    def allowed(caller: Caller) -> Identity:
        if not caller.at_least(role):
            raise ForbiddenError(
                f"{caller.name} is a {caller.role}, and this is for {article} {role}",
                hint=f"ask for a token with the role {role}",
            )
        return caller

    return allowed


Submitting = Annotated[Identity, Depends(require(SUBMITTER))]
"""A submitter or an admin."""

Admin = Annotated[Identity, Depends(require(ADMIN))]
"""An admin."""


def number_of(cursor: str | None) -> int | None:
    """The number of the row after which the page begins; ``SpecError`` for a cursor that does not
    come from a page."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or int(cursor) >= 2**63:
        raise SpecError([SpecProblem("cursor", "is none of ours", "take next_cursor of a page")])
    return int(cursor)
