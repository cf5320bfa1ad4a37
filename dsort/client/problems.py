"""Turns problem documents (RFC 9457) back into the errors that they were made from."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from dsort import errors
from dsort.errors import (
    ConflictError,
    CorruptShardError,
    DsortError,
    ForbiddenError,
    InputError,
    JobStoppedError,
    NotFoundError,
    ServiceError,
    SpecError,
    SpecProblem,
    StorageError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
    UnauthorizedError,
    WorkerLostError,
)

__all__ = ["SIGNALS_FROM", "WaitTimeoutError", "error_of"]

URN = "urn:dsort:problem:"
RETRY_AFTER_S = 1.0
RETRY_AFTER_S_MAX = 1e9
SIGNALS_FROM = 128


class WaitTimeoutError(ServiceError):
    """The job has not ended within the time that the caller would wait; it runs on."""


def _kind(name: str) -> str:
    """``CorruptShardError`` is ``corrupt_shard``, as in the ``type`` of a problem document."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).lower()


_KINDS: Mapping[str, type[DsortError]] = {
    _kind(name): getattr(errors, name) for name in errors.__all__ if name.endswith("Error")
}
_BY_EXIT_CODE: Mapping[int, type[DsortError]] = {
    3: InputError,
    4: StorageError,
    5: WorkerLostError,
}
_BY_STATUS: Mapping[int, type[DsortError]] = {
    400: SpecError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: TooSlowError,
    409: ConflictError,
    413: TooLargeError,
    429: TooManyRequestsError,
}


def error_of(document: Mapping[str, Any]) -> DsortError:
    """The error that a problem document describes, as the library would have raised it.

    A kind that only a newer service knows becomes the class of its exit code or of its status, and
    ``ServiceError`` if neither is known.
    """
    status = document.get("status")
    code = document.get("exit_code")
    found = _KINDS.get(str(document.get("type", "")).removeprefix(URN))
    found = found or _BY_EXIT_CODE.get(code if isinstance(code, int) else 0)
    found = found or _BY_STATUS.get(status if isinstance(status, int) else 0, ServiceError)
    message = str(document.get("detail") or document.get("title") or "the service says no more")
    return _made(found, message, str(document.get("hint") or ""), document)


def _made(
    kind: type[DsortError], message: str, hint: str, document: Mapping[str, Any]
) -> DsortError:
    if issubclass(kind, SpecError):
        return SpecError(_problems(document) or message, hint=hint)
    if issubclass(kind, JobStoppedError):
        number = max(_number(document, "exit_code", 0) - SIGNALS_FROM, 0)
        return JobStoppedError(message, signal_number=number or signal.SIGINT, hint=hint)
    if issubclass(kind, TooManyRequestsError):
        after_s = min(_number(document, "retry_after_s", RETRY_AFTER_S), RETRY_AFTER_S_MAX)
        return TooManyRequestsError(message, retry_after_s=after_s, hint=hint)
    # These errors have more fields than a problem document: only the message was sent.
    if issubclass(kind, CorruptShardError | errors.UnsupportedShardError):
        return InputError(message, hint=hint)
    if issubclass(kind, errors.ScratchLostError):
        return WorkerLostError(message, hint=hint)
    return kind(message, hint=hint)


def _problems(document: Mapping[str, Any]) -> list[SpecProblem]:
    listed = document.get("problems")
    return [
        SpecProblem(
            str(each.get("path") or ""), str(each.get("message") or ""), str(each.get("hint") or "")
        )
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, Mapping)
    ]


def _number(document: Mapping[str, Any], name: str, default: Any) -> Any:
    value = document.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default
