"""``client.tokens``: the tokens of the users of a service."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dsort.client.transport import Transport
from dsort.errors import ServiceError

__all__ = ["Tokens"]

PATH = "/v1/tokens"


class Tokens:
    """``client.tokens``: for admins. A token is a mapping with the fields of the REST reference,
    without its secret."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(
        self,
        name: str,
        role: str,
        *,
        input_buckets: Sequence[str] = ("*",),
        output_buckets: Sequence[str] = ("*",),
        expires_in_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Make a token. Only this answer has its text, as ``token``."""
        wanted = {
            "name": name,
            "role": role,
            "input_buckets": [*input_buckets],
            "output_buckets": [*output_buckets],
            "expires_in_s": expires_in_s,
        }
        made: Mapping[str, Any] = self._transport.document(
            "POST",
            PATH,
            content=json.dumps(wanted).encode(),
            headers={"Content-Type": "application/json"},
        )
        return made

    def list(self) -> builtins.list[Mapping[str, Any]]:
        """All tokens, expired ones too."""
        try:
            return [*self._transport.document("GET", PATH, repeatable=True)["tokens"]]
        except (KeyError, TypeError) as error:
            raise ServiceError("the service's answer has no tokens") from error

    def remove(self, name: str) -> None:
        """Remove a token. The jobs of its holder stay."""
        self._transport.request("DELETE", f"{PATH}/{quote(name, safe='')}")
