"""Buckets that are opened together, for one job, share what one of them has made to reach its
store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Made = TypeVar("Made")

_made: ContextVar[dict[Hashable, Any] | None] = ContextVar("_made", default=None)


@contextmanager
def opened_together() -> Iterator[None]:
    """A context in which the buckets that this thread opens are opened together."""
    before = _made.set({})
    try:
        yield
    finally:
        _made.reset(before)


def made_once(key: Hashable, make: Callable[[], Made]) -> Made:
    """The result of ``make``. Buckets that are opened together get the result for the first of them
    with this key."""
    made = _made.get()
    if made is None:
        return make()
    if key not in made:
        made[key] = make()
    found: Made = made[key]
    return found
