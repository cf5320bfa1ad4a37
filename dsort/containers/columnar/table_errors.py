"""Turns pyarrow's errors about a shard into errors of dsort: either the bytes of the shard are
invalid, or it has content that pyarrow or dsort cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsort.errors import CorruptShardError, UnsupportedShardError

__all__ = ["arrow_errors", "refuse_unread"]

NOT_IMPLEMENTED = ("Not yet implemented", "Unknown encoding type")
"""The beginnings of messages about features that pyarrow's Parquet reader lacks. The exception is
an ``OSError``, as for invalid bytes."""
UNREAD_MAGICS = {
    b"PARE": "it is Parquet with an encrypted footer",
    b"FEA1": "it is Feather of version 1, which is older than Arrow IPC",
}


@contextmanager
def arrow_errors(shard: str) -> Iterator[None]:
    """The body reads bytes of ``shard``. Its errors about invalid bytes become
    ``CorruptShardError``, errors about content that it cannot read ``UnsupportedShardError``."""
    import pyarrow as pa

    try:
        yield
    except NotImplementedError as error:
        raise UnsupportedShardError(shard, _first_line(error)) from None
    except MemoryError as error:  # the declared size was compared with its bound before
        hint = "give the job more memory; if there is enough, the shard is corrupt"
        raise UnsupportedShardError(shard, _first_line(error), hint=hint) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        reason = _first_line(error)
        if reason.startswith(NOT_IMPLEMENTED):
            raise UnsupportedShardError(shard, reason) from None
        raise CorruptShardError(shard, 0, reason) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def refuse_unread(shard: str, magic: bytes) -> None:
    """``UnsupportedShardError`` for a shard whose first bytes are those of a table format that
    dsort does not read."""
    if magic in UNREAD_MAGICS:
        raise UnsupportedShardError(shard, UNREAD_MAGICS[magic])
