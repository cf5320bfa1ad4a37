"""``client.transforms``: the named transforms of a service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from dsort.client.transport import Transport
from dsort.errors import ServiceError

__all__ = ["Transforms"]

PATH = "/v1/transforms"
PAGE = 100


class Transforms:
    """``client.transforms``: transforms that jobs of a service may use by name. A version is a
    mapping with ``name``, ``version``, ``digest``, ``created_at``, ``created_by``, ``kinds``,
    ``runs_code``; the answers of ``get`` also have ``transform`` and ``versions``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, name: str, transform: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """(the newest version of ``name``, which has these steps; whether it is new). For admins.
        ``transform``: as in a spec."""
        answer = self._transport.request(
            "PUT",
            _path(name),
            content=json.dumps(transform, allow_nan=False).encode(),
            headers={"Content-Type": "application/json"},
            repeatable=True,
        )
        found: Mapping[str, Any] = answer.json()
        return found, answer.status_code == 201

    def get(self, name: str) -> Mapping[str, Any]:
        """The newest version of ``name``, or version 3 for ``name@3``."""
        found: Mapping[str, Any] = self._transport.document("GET", _path(name), repeatable=True)
        return found

    def list(self) -> Iterator[Mapping[str, Any]]:
        """All versions, the newest first, requested page by page."""
        cursor: str | None = None
        while True:
            query: list[tuple[str, str | int]] = [("limit", PAGE)]
            query += [("cursor", cursor)] if cursor else []
            document = self._transport.document("GET", PATH, query=query, repeatable=True)
            try:
                yield from document["transforms"]
                cursor = document["next_cursor"]
            except (KeyError, TypeError) as error:
                raise ServiceError("the service's answer has no transforms") from error
            if not cursor:
                return

    def remove(self, name: str) -> None:
        """Remove a transform, or only version 3 for ``name@3``. For admins. Jobs that began with it
        continue."""
        self._transport.request("DELETE", _path(name))


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='@')}"
