"""Named transforms: what ``transform: {use: resize@3}`` in a spec means.

A name stands for its newest version, ``NAME@3`` for a version that never changes. When a spec is
read, the name is replaced by the steps, together with their name and digest. So later readers of
the spec (a job that is resumed, a manifest) need no store of transforms, and do the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dsort.errors import NotFoundError, SpecError, SpecProblem

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
VERSION_MAX: Final = 10**9 - 1
_USE: Final = rf"({NAME_PATTERN})(?:@([1-9][0-9]{{0,8}}))?"
_NO_NAMES_HINT: Final = "give the steps; a service has names with `dsort serve --aistore`"
_NAME_HINT: Final = "letters, digits and . _ -, at most 64, and a version: resize, resize@3"


class NamedTransform(Struct, frozen=True):
    """One version of a transform. ``fields``: the fields of ``transform`` in a spec, without
    ``use``. ``digest``: of its steps. ``created_at``: seconds since 1970. ``owner``: the name of
    the token that registered it at a service, "" for a transform of this machine."""

    name: str
    version: int
    digest: str
    fields: Mapping[str, Any]
    created_at: float
    owner: str = ""

    @property
    def use(self) -> str:
        """Its name in a spec: ``resize@3``."""
        return f"{self.name}@{self.version}"


Lookup = Callable[[str, int | None], NamedTransform]
"""Returns the version with that number, None: the newest one. ``NotFoundError``."""


def parse_use(text: str) -> tuple[str, int | None]:
    """(name, version) of ``resize`` or ``resize@3``. ``SpecError`` if it is neither."""
    match = re.fullmatch(_USE, text)
    if match is None:
        raise SpecError(f"{text[:80]!r} is no name of a transform", hint=_NAME_HINT)
    return match[1], None if match[2] is None else int(match[2])


def resolve_use(transform: object, lookup: Lookup | None) -> tuple[object, list[SpecProblem]]:
    """``transform`` of a spec as written, with the steps of the transform that it uses; and its
    problems. A transform that already has steps, written by a job, is not changed."""
    if not isinstance(transform, Mapping) or not isinstance(transform.get("use"), str):
        return transform, []
    if "steps" in transform or "digest" in transform:
        return transform, []
    try:
        name, version = parse_use(transform["use"])
        if lookup is None:
            raise NotFoundError("names of transforms mean nothing here", hint=_NO_NAMES_HINT)
        found = lookup(name, version)
    except (NotFoundError, SpecError) as error:
        return None, [SpecProblem("transform.use", error.message, error.hint)]
    named = {"use": found.use, "digest": found.digest}
    return {**found.fields, **transform, **named}, []
