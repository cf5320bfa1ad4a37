"""Answers as JSON and as text that can always be sent: what a row or a request holds keeps no list
from being shown."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse, PlainTextResponse

from dsort.data.total_json import encodable, to_json

__all__ = ["JsonAnswer", "TextAnswer"]


class JsonAnswer(JSONResponse):
    """A JSON document, as :func:`~dsort.data.total_json.to_json` writes any value."""

    def render(self, content: Any) -> bytes:
        """The document in UTF-8."""
        return to_json(content).encode()


class TextAnswer(PlainTextResponse):
    """A text, with an escape for each character that no encoding takes."""

    def render(self, content: Any) -> bytes:
        """The text in UTF-8."""
        return encodable(str(content)).encode()
