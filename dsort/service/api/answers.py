"""Answers as JSON and as text that can always be sent: no value in a row or a request prevents a
list from being shown."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, PlainTextResponse

from dsort.data.json_values import encodable, to_json
from dsort.errors import DsortError, TooManyRequestsError, UnauthorizedError
from dsort.service.problems import PROBLEM_JSON, problem_of

__all__ = ["JsonAnswer", "TextAnswer", "problem_answer"]


class JsonAnswer(JSONResponse):
    """A JSON document, as :func:`~dsort.data.json_values.to_json` writes any value."""

    def render(self, content: Any) -> bytes:
        """The document in UTF-8."""
        return to_json(content).encode()


class TextAnswer(PlainTextResponse):
    """A text, with an escape for each character that cannot be encoded."""

    def render(self, content: Any) -> bytes:
        """The text in UTF-8."""
        return encodable(str(content)).encode()


def problem_answer(error: DsortError, **more: Any) -> Response:
    """The response for an error. ``more``: fields of the document."""
    headers: dict[str, str] = {}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="dsort"'
    if isinstance(error, TooManyRequestsError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    document = problem_of(error, **more)
    return JsonAnswer(document, document["status"], headers, PROBLEM_JSON)
