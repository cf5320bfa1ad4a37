"""The errors that dsort raises on purpose, as one tree below ``DsortError``.

A message names the event and its place (job, shard, record, field); ``hint`` names a remedy. Exit
code and HTTP status are attributes of the class, so that neither the command line nor the service
needs a table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

__all__ = [
    "ChangedInputError",
    "CodeRefusedError",
    "ConflictError",
    "ContentKeyError",
    "ConversionError",
    "CorruptShardError",
    "DsortError",
    "DuplicateError",
    "ForbiddenError",
    "InputError",
    "InvariantError",
    "JobConflictError",
    "JobStoppedError",
    "JoinError",
    "KeyMapError",
    "MissingShardError",
    "MixError",
    "NamesTakenError",
    "NotFoundError",
    "NotSupportedError",
    "ObjectNotFoundError",
    "SchemaError",
    "ScratchLostError",
    "ServiceError",
    "ShardCommandError",
    "ShardEndError",
    "SpecError",
    "SpecProblem",
    "StorageAccessError",
    "StorageError",
    "StorageFullError",
    "StrayMemberError",
    "TooLargeError",
    "TooManyRequestsError",
    "TooSlowError",
    "TransformError",
    "TransientStorageError",
    "UnauthorizedError",
    "UnsafeNameError",
    "UnsupportedShardError",
    "VerifyError",
    "WorkerLostError",
]


class DsortError(Exception):
    """Base of all errors that dsort raises on purpose.

    ``message`` is one short paragraph for the user; ``hint`` (may be empty) says what would help.
    Errors cross process borders, so every subclass must survive pickling.
    """

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback in Python shows it

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))

    def __str__(self) -> str:
        return self.message


def _rebuild(
    cls: type[DsortError], args: tuple[object, ...], state: dict[str, object]
) -> DsortError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class SpecProblem(Struct, frozen=True):
    """One error in a spec: its place (a dotted field path), a message, and a hint."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return where + self.message


class SpecError(DsortError):
    """The spec or the command line is wrong. Carries *all* problems found, not only the first."""

    exit_code = 2
    http_status = 400

    def __init__(self, problems: Sequence[SpecProblem] | str, *, hint: str = "") -> None:
        if isinstance(problems, str):
            problems = [SpecProblem("", problems, hint)]
        self.problems: tuple[SpecProblem, ...] = tuple(problems)
        lines = []
        for problem in self.problems:
            lines.append(str(problem))
            if problem.hint and len(self.problems) > 1:
                lines.append(f"  hint: {problem.hint}")
        only = self.problems[0] if len(self.problems) == 1 else None
        super().__init__("\n".join(lines), hint=(only.hint if only else "") or hint)


class InputError(DsortError):
    """The job cannot continue with this input data."""

    exit_code = 3
    http_status = 422


class MissingShardError(InputError):
    """An input shard that the spec names does not exist, or no input was found at all."""


class CorruptShardError(InputError):
    """A shard's bytes are not what its format says: ``shard``, byte ``offset`` and ``reason``."""

    def __init__(self, shard: str, offset: int, reason: str, *, hint: str = "") -> None:
        self.shard = shard
        self.offset = offset
        self.reason = reason
        super().__init__(
            f"shard {shard} is corrupt at byte {offset}: {reason}",
            hint=hint or "mend or remove the shard, or set corrupt_shards: skip",
        )


class UnsupportedShardError(InputError):
    """A shard has a feature that dsort cannot read: ``reason``. Its bytes may be intact, so no
    policy leaves such a shard out, as one does with a corrupt shard."""

    def __init__(self, shard: str, reason: str, *, hint: str = "") -> None:
        self.shard = shard
        self.reason = reason
        super().__init__(
            f"dsort cannot read shard {shard}: {reason}",
            hint=hint or "write the shard again without it, or leave the shard out of the inputs",
        )


class ConversionError(InputError):
    """A record that the container of the outputs cannot hold."""


class SchemaError(InputError):
    """Records of different shards have different columns, which cannot be in one output shard."""


class ChangedInputError(InputError):
    """An input shard has changed since the job resolved it."""


class DuplicateError(InputError):
    """A record key or a member name occurs twice, and the spec says to abort."""


class ContentKeyError(InputError):
    """The content key of a record is missing or cannot be read as its type."""


class KeyMapError(InputError):
    """The external key map cannot be read, or does not place a record."""


class ShardEndError(InputError):
    """A shard does not end as a whole tar does, and the spec says to abort."""


class MixError(InputError):
    """A mix needs records that its inputs do not have."""


class ShardCommandError(InputError):
    """The program that is run for each output shard failed. The result is committed."""


class JoinError(InputError):
    """Records of several inputs cannot be joined as the spec says."""


class StrayMemberError(InputError):
    """A member is part of no record, and the spec says to abort."""


class TransformError(InputError):
    """A step cannot run at all, or fails for a record."""


class UnsafeNameError(InputError):
    """A member's name or link target leads out of its archive, and the spec says to abort."""


class VerifyError(InputError):
    """A result differs from its manifest, or from the result that its spec and inputs give."""


class StorageError(DsortError):
    """A bucket, a file system or an object store failed."""

    exit_code = 4
    http_status = 502


def damaged(what: str, reason: str) -> StorageError:
    """The error about a file of a job with content that dsort does not write."""
    hint = "the job cannot be resumed; start it again"
    return StorageError(f"{what} is damaged: {reason}", hint=hint)


class ObjectNotFoundError(StorageError):
    """No such bucket or object."""


class StorageAccessError(StorageError):
    """Access to a bucket or an object is denied."""


class StorageFullError(StorageError):
    """No room is left for outputs or scratch. ``place``: the bucket's URI or the path of the
    scratch directory that is full; "" if the error does not come from a write."""

    place = ""


class NamesTakenError(StorageError):
    """Objects have the names that outputs would get, and may not be replaced. The request conflicts
    with what exists; the store did not fail."""

    exit_code = 2
    http_status = 409


class TransientStorageError(StorageError):
    """A request failed for a reason that passes: a timeout, a reset, 429, 5xx, a stream cut short.

    Backends raise it; the retry wrapper tries again, and in the end raises a plain
    ``StorageError``. ``retry_after_s``: the least number of seconds that the store asks to wait.
    """

    retry_after_s: float = 0.0


class WorkerLostError(DsortError):
    """Workers died more often than a job allows, or could not be started."""

    exit_code = 5


class ScratchLostError(WorkerLostError):
    """Scratch files are gone. ``node`` is the id of their scratch node. The coordinator makes them
    again; the error reaches the user only if that happens too often."""

    def __init__(self, node: str, message: str, *, hint: str = "") -> None:
        self.node = node
        super().__init__(message, hint=hint)


class JobConflictError(DsortError):
    """The state of the job does not allow the command: another coordinator runs the job, or no
    coordinator does."""

    exit_code = 2
    http_status = 409


class JobStoppedError(DsortError):
    """The user stopped the job. ``signal_number`` decides the exit code (128 + signal)."""

    exit_code = 130
    http_status = 409

    def __init__(self, message: str, *, signal_number: int = 2, hint: str = "") -> None:
        self.signal_number = signal_number
        super().__init__(message, hint=hint)


class ServiceError(DsortError):
    """The service cannot be reached, or refuses the request."""

    exit_code = 6
    http_status = 502


class NotFoundError(ServiceError):
    """The requested object of the service does not exist, or the client has no right to see it."""

    http_status = 404


class ConflictError(ServiceError):
    """The state of the requested object does not allow the request."""

    http_status = 409


class UnauthorizedError(ServiceError):
    """The request has no token, or one that the service does not know."""

    http_status = 401


class ForbiddenError(ServiceError):
    """The token's role or its bucket patterns do not allow the request."""

    http_status = 403


class CodeRefusedError(ForbiddenError):
    """A job on this machine, and not at a service, would run code that the user has not allowed."""

    exit_code = 2


class TooLargeError(ServiceError):
    """The request's body is larger than the service accepts."""

    http_status = 413


class TooSlowError(ServiceError):
    """The request's body takes longer to arrive than the service waits."""

    http_status = 408


class TooManyRequestsError(ServiceError):
    """Requests of one client come faster than the service accepts them."""

    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float, hint: str = "") -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, hint=hint)


class NotSupportedError(ServiceError):
    """A request of an AIStore client that this service does not serve."""

    http_status = 501


class InvariantError(DsortError):
    """An invariant does not hold: a bug of dsort. The job ends without a result."""
