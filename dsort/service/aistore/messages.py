"""Messages of AIStore's clients: JSON with an action, or with fields, even where the method is
GET."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request

from dsort.errors import NotSupportedError, SpecError, SpecProblem
from dsort.service.security.spec_text import parse_text

_DECLINED: Final = ("summary-bck",)


def message_of(body: bytes) -> dict[str, Any]:
    """The fields of a body; {} for an empty body. ``SpecError``."""
    return fields_of(parse_text(body)) if body.strip() else {}


def fields_of(value: object) -> dict[str, Any]:
    """Fields by their names in lower case, because Go ignores the case of names; {} for null.
    ``SpecError``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError([SpecProblem("value", "is no object", 'write {"id": ID, "kind": "dsort"}')])
    return {str(name).lower(): each for name, each in value.items()}


def text_in(fields: Mapping[str, Any], name: str, *, characters_max: int = 1000) -> str:
    """The text of a field; "" if it is missing. ``SpecError``."""
    value = fields.get(name) or ""
    if not isinstance(value, str) or len(value) > characters_max:
        problem = f"is no text of at most {characters_max:,} characters"
        raise SpecError([SpecProblem(name, problem)])
    return value


def number_in(fields: Mapping[str, Any], name: str) -> int:
    """The whole number of a field, which Go may write as a text; 0 if it is missing.
    ``SpecError``."""
    value = fields.get(name) or 0
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:20])
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise SpecError([SpecProblem(name, "is no whole number from 0 on")])
    return value


async def action_message(request: Request, *actions: str) -> dict[str, Any]:
    """The body of a request, which must have one of these actions. {} if there is no body: such a
    request is for a list."""
    message = message_of(await request.body())
    found = text_in(message, "action")
    if found in _DECLINED:
        raise NotSupportedError(f"action: {found!r} is no action of this service")
    if found not in actions and (found or actions != ("list",)):
        text = f"{found[:80]!r} is no action of this service" if found else "is missing"
        hint = " or ".join(f'{{"action": "{action}"}}' for action in actions)
        raise SpecError([SpecProblem("action", text, f"send {hint}")])
    return message
