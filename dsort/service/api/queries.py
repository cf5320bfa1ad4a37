"""Refuses requests whose query is not valid text, and names the field.

Starlette would replace bytes that are not UTF-8 by a replacement character, so that a job would be
described, or searched for, with a text that its user did not write.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from dsort.data.total_json import encodable
from dsort.errors import SpecError, SpecProblem
from dsort.service.api.answers import JsonAnswer
from dsort.service.problems import PROBLEM_JSON, problem_of
from dsort.service.security.spec_text import why_no_text

__all__ = ["TextQueries"]


class TextQueries:
    """ASGI middleware: passes on requests whose query is UTF-8 without NUL."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        problems = _problems(scope["query_string"]) if scope["type"] == "http" else []
        if not problems:
            await self._app(scope, receive, send)
            return
        document = problem_of(SpecError(problems))
        await JsonAnswer(document, 400, media_type=PROBLEM_JSON)(scope, receive, send)


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
