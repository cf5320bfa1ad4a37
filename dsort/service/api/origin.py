"""Requests that a page of somebody else has a browser send are refused.

A service that asks for no token would do what any web page tells the user's browser to send to it,
and one that does could be reached under a name that an attacker's DNS points here.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dsort.service.api.answers import JsonAnswer
from dsort.service.problems import PROBLEM_JSON, problem

__all__ = ["SameOrigin", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether ``host``, an address or a name, is this machine as it sees itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


class SameOrigin:
    """Lets requests through that no browser sends, or that it sends for our own pages.

    ``loopback_only``: requests have to name this machine as their ``Host`` as well.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        why = self._refusal(scope) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
            return
        document = problem("forbidden", 403, why, hint="", exit_code=2)
        await JsonAnswer(document, 403, media_type=PROBLEM_JSON)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback_only and not is_loopback(_name_of(host)):
            return "this service asks for no token, and so answers only to the name of localhost"
        if origin is not None and _authority_of(origin) != host.lower():
            return f"pages of {origin[:200]} may not use this service"
        return None


def _authority_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # brackets without their partner, characters that are others in a host
        return None


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
