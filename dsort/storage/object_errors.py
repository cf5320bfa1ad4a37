"""What goes wrong with an object store, in dsort's words: the part that all clients share.

A client library's errors are turned into :class:`Meaning` by a table of its own (``s3_errors``,
``obstore_errors``), and into dsort's errors here. Nothing of a request but its object and bucket
gets into a message: URLs may be signed, and headers carry keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import NamedTuple

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)

__all__ = [
    "ACCESS_HINT",
    "CREDENTIALS_HINT",
    "PRECONDITION_FAILED",
    "RANGE_NOT_SATISFIABLE",
    "Meaning",
    "ObjectErrors",
    "PreconditionError",
    "error_of",
    "meaning_of_status",
    "one_line",
]

CREDENTIALS_HINT = (
    "give credentials in the environment, name a profile, or run where a role gives them; "
    "workers need them too"
)
ACCESS_HINT = (
    "check what these credentials may do with the bucket, and that they are the right ones"
)
_TEXT_CHARS_MAX = 200


class PreconditionError(StorageError):
    """A request was made under a condition (``If-Match``, ``If-None-Match``, a range) that does not
    hold. Backends catch it; nobody else sees it."""


class Meaning(NamedTuple):
    """What an error of a client library means: dsort's class for it, why, and what would help."""

    kind: type[StorageError]
    reason: str
    hint: str = ""


PRECONDITION_FAILED = Meaning(PreconditionError, "it is not what it was expected to be")
RANGE_NOT_SATISFIABLE = Meaning(PreconditionError, "it is shorter than it was")

_STATUSES: Mapping[int, Meaning] = MappingProxyType(
    {
        401: Meaning(StorageAccessError, "the store wants credentials", CREDENTIALS_HINT),
        403: Meaning(StorageAccessError, "access is denied", ACCESS_HINT),
        404: Meaning(ObjectNotFoundError, "there is no such object"),
        408: Meaning(TransientStorageError, "the request took too long"),
        409: Meaning(TransientStorageError, "another request was in its way"),
        412: PRECONDITION_FAILED,
        416: RANGE_NOT_SATISFIABLE,
        429: Meaning(TransientStorageError, "too many requests"),
        501: Meaning(StorageError, "the store does not offer that"),
        507: Meaning(StorageFullError, "no room is left there", "free some room, or ask for more"),
    }
)


def meaning_of_status(status: int) -> Meaning:
    """What a reply with HTTP status ``status`` means, if it says no more."""
    known = _STATUSES.get(status)
    if known is not None:
        return known
    if status >= 500:
        return Meaning(TransientStorageError, f"the store failed (HTTP status {status})")
    return Meaning(StorageError, f"the store refused it (HTTP status {status})")


def error_of(meaning: Meaning, action: str) -> StorageError:
    """The error to raise. ``action`` completes "cannot ...": ``read a.tar in bucket s3://b``."""
    return meaning.kind(f"cannot {action}: {meaning.reason}", hint=meaning.hint)


def one_line(text: str) -> str:
    """``text`` of a server as a part of a message: one line, not long, no query of any URL."""
    without_queries = re.sub(r"\?[^\s\"'<>)]*", "", text)
    return " ".join(without_queries.split())[:_TEXT_CHARS_MAX]


class ObjectErrors:
    """A context in which a client library's errors become the ``StorageError`` that they mean.

    ``meaning_of`` gives None for what is no error of the library; that passes as it is. ``action``
    as of :func:`error_of`.
    """

    __slots__ = ("_action", "_meaning_of")

    def __init__(self, meaning_of: Callable[[BaseException], Meaning | None], action: str) -> None:
        self._meaning_of = meaning_of
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        meaning = self._meaning_of(error)
        if meaning is not None:
            # The library's own error may hold a signed URL: it must not be printed as the cause.
            raise error_of(meaning, self._action) from None
