"""JSON from outside, checked by the types that it is to have."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta, ValidationError, convert

Checked = TypeVar("Checked")

INTEGER_MAX = (1 << 63) - 1
Integer = Annotated[int, Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
"""A number that fits in a column."""
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
"""The number of some things."""


def checked(content: Any, kind: type[Checked]) -> Checked:
    """``content``, in types of JSON, as a ``kind``. ``ValueError`` that names the place of the
    first value of another type. Numbers that are the keys of an object are texts in JSON."""
    try:
        return convert(content, kind, str_keys=True)
    except ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        place = place.removesuffix("`").removeprefix(".")
        raise ValueError(f"{place}: {problem}" if place else problem) from None
