"""dsort shuffles, sorts and reshards sharded training data inside a bucket.

    dsort.read("images/*.tar").shuffle(seed=42).write("out/a-%06d.tar", size="1GB").run()

Names are loaded when they are first used. ``Client`` needs the extra ``client``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsort.api import load_spec, materialize, plan, resume, run, verify
    from dsort.builder import SpecBuilder, read
    from dsort.client import AsyncClient
    from dsort.client import DsortClient as Client
    from dsort.errors import (
        ChangedInputError,
        CodeRefusedError,
        ConflictError,
        ContentKeyError,
        ConversionError,
        CorruptShardError,
        DsortError,
        DuplicateError,
        ForbiddenError,
        InputError,
        InvariantError,
        JobConflictError,
        JobStoppedError,
        JoinError,
        KeyMapError,
        MissingShardError,
        MixError,
        NamesTakenError,
        NotFoundError,
        NotSupportedError,
        ObjectNotFoundError,
        SchemaError,
        ScratchLostError,
        ServiceError,
        ShardCommandError,
        ShardEndError,
        SpecError,
        SpecProblem,
        StorageAccessError,
        StorageError,
        StorageFullError,
        StrayMemberError,
        TooLargeError,
        TooManyRequestsError,
        TooSlowError,
        TransformError,
        TransientStorageError,
        UnauthorizedError,
        UnsafeNameError,
        UnsupportedShardError,
        VerifyError,
        WorkerLostError,
    )
    from dsort.options import RunOptions
    from dsort.progress_display import show_progress
    from dsort.reading.dataset import Dataset, ShardRecord, read_shards
    from dsort.reading.shard import Record, Shard
    from dsort.reading.shard import open_shard as open
    from dsort.results.report import JobReport
    from dsort.spec.model import JobSpec
    from dsort.staged_samples import ingest
    from dsort.verification.findings import VerifyReport

__all__ = [
    "AsyncClient",
    "ChangedInputError",
    "Client",
    "CodeRefusedError",
    "ConflictError",
    "ContentKeyError",
    "ConversionError",
    "CorruptShardError",
    "Dataset",
    "DsortError",
    "DuplicateError",
    "ForbiddenError",
    "InputError",
    "InvariantError",
    "JobConflictError",
    "JobReport",
    "JobSpec",
    "JobStoppedError",
    "JoinError",
    "KeyMapError",
    "MissingShardError",
    "MixError",
    "NamesTakenError",
    "NotFoundError",
    "NotSupportedError",
    "ObjectNotFoundError",
    "Record",
    "RunOptions",
    "SchemaError",
    "ScratchLostError",
    "ServiceError",
    "Shard",
    "ShardCommandError",
    "ShardEndError",
    "ShardRecord",
    "SpecBuilder",
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
    "VerifyReport",
    "WorkerLostError",
    "ingest",
    "load_spec",
    "materialize",
    "open",
    "plan",
    "read",
    "read_shards",
    "resume",
    "run",
    "show_progress",
    "verify",
]

_SOURCES = {
    "AsyncClient": ("dsort.client", "AsyncClient"),
    "Client": ("dsort.client", "DsortClient"),
    "Dataset": ("dsort.reading.dataset", "Dataset"),
    "JobReport": ("dsort.results.report", "JobReport"),
    "JobSpec": ("dsort.spec.load", "JobSpec"),
    "Record": ("dsort.reading.shard", "Record"),
    "RunOptions": ("dsort.options", "RunOptions"),
    "Shard": ("dsort.reading.shard", "Shard"),
    "ShardRecord": ("dsort.reading.dataset", "ShardRecord"),
    "SpecBuilder": ("dsort.builder", "SpecBuilder"),
    "VerifyReport": ("dsort.verification.findings", "VerifyReport"),
    "ingest": ("dsort.staged_samples", "ingest"),
    "load_spec": ("dsort.api", "load_spec"),
    "materialize": ("dsort.api", "materialize"),
    "open": ("dsort.reading.shard", "open_shard"),
    "plan": ("dsort.api", "plan"),
    "read": ("dsort.builder", "read"),
    "read_shards": ("dsort.reading.dataset", "read_shards"),
    "resume": ("dsort.api", "resume"),
    "run": ("dsort.api", "run"),
    "show_progress": ("dsort.progress_display", "show_progress"),
    "verify": ("dsort.api", "verify"),
    **{name: ("dsort.errors", name) for name in __all__ if name.endswith(("Error", "Problem"))},
}
"""The module and the attribute of each public name. They are loaded late, because ``dsort --help``
needs none of them."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used; ``ImportError`` if its extra is not installed."""
    if name == "__version__":
        from dsort.version import dsort_version

        return dsort_version()
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _SOURCES[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if name in ("AsyncClient", "Client") and error.name in ("httpx", "httpx_sse"):
            raise ImportError(
                f'dsort.{name} needs the extra "client": pip install "dsort-shards[client]"',
                name=error.name,
            ) from None
        raise


def __dir__() -> list[str]:
    """The public names, loaded or not, and the names that every module has."""
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, "__version__"})
