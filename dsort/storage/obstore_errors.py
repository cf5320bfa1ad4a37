"""The one table that turns obstore's errors into dsort's.

obstore has few classes, and tells the rest in the text of ``GenericError``: that text is searched,
and never shown, since it holds the request's URL.
"""

from __future__ import annotations

import re

import obstore.exceptions as obs

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.object_errors import (
    ACCESS_HINT,
    CREDENTIALS_HINT,
    PRECONDITION_FAILED,
    Meaning,
    ObjectErrors,
    meaning_of_status,
)

__all__ = ["ObstoreErrors", "meaning_of_obstore_error"]

_KINDS: tuple[tuple[type[BaseException], Meaning], ...] = (
    (FileNotFoundError, Meaning(ObjectNotFoundError, "there is no such object")),
    (obs.PermissionDeniedError, Meaning(StorageAccessError, "access is denied", ACCESS_HINT)),
    (
        obs.UnauthenticatedError,
        Meaning(StorageAccessError, "the store wants credentials", CREDENTIALS_HINT),
    ),
    (obs.AlreadyExistsError, PRECONDITION_FAILED),
    (obs.PreconditionError, PRECONDITION_FAILED),
    (obs.NotModifiedError, PRECONDITION_FAILED),
    (obs.NotSupportedError, Meaning(StorageError, "the store does not offer that")),
    (obs.InvalidPathError, Meaning(StorageError, "obstore does not take a name in there")),
    (ValueError, Meaning(StorageError, "obstore does not take the name")),
)

_TEXTS: tuple[tuple[str, Meaning], ...] = (
    (
        r"token request|credential|managed identity|account (name|key)|must be specified",
        Meaning(StorageAccessError, "no usable credentials were found", CREDENTIALS_HINT),
    ),
    (r"certificate", Meaning(StorageError, "the store's certificate is not trusted here")),
    (
        r"range request|requested range|content-range|range header",
        Meaning(
            StorageError,
            "the store gave other bytes than those asked for",
            "it has to offer ranged reads",
        ),
    ),
    (
        r"error sending request|timed out|timeout|connect|reset|broken pipe|body|decod|incomplete",
        Meaning(TransientStorageError, "the connection to the store failed"),
    ),
)
"""The first that is found counts."""


class ObstoreErrors(ObjectErrors):
    """A context in which obstore's errors become the ``StorageError`` that they mean."""

    __slots__ = ()

    def __init__(self, action: str) -> None:
        super().__init__(meaning_of_obstore_error, action)


def meaning_of_obstore_error(error: BaseException) -> Meaning | None:
    """What ``error`` means, or None if it is none of obstore's."""
    for kind, meaning in _KINDS:
        if isinstance(error, kind):
            return meaning
    if isinstance(error, OSError):
        return Meaning(TransientStorageError, f"the connection failed ({type(error).__name__})")
    if not isinstance(error, obs.BaseError):
        return None
    text = str(error)
    status = re.search(r"status code:? (\d{3})", text)
    if status is not None:
        return meaning_of_status(int(status[1]))
    for pattern, meaning in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE):
            return meaning
    return Meaning(StorageError, "obstore failed")
