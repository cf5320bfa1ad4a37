"""Whether rows are what they were when they were extracted: for ``verify: content``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsort.containers.columnar.reader import open_table, plain_batches
from dsort.containers.columnar.row_hashes import row_hashes
from dsort.containers.columnar.schema import plain_schema
from dsort.data.index import CONTENT_HASH, ORDINAL, SHARD
from dsort.data.table import Table
from dsort.errors import CorruptShardError, InvariantError, StorageError
from dsort.storage.bucket import StagedObject

BATCH_SHARE = 8


class RowCheck:
    """Takes the rows of one output shard in order, and compares each with its hash."""

    def __init__(self, output_ordinal: int) -> None:
        self._output = output_ordinal
        self._expected: deque[Table] = deque()
        self.missing = 0
        """So many rows are expected, and did not come yet."""

    def expect(self, rows: Table) -> None:
        """These rows come next."""
        if CONTENT_HASH not in rows:
            raise InvariantError("the index has no content hashes to verify against")
        if len(rows):
            self._expected.append(rows)
            self.missing += len(rows)

    def feed(self, batch: Any) -> None:
        """The next rows; ``StorageError`` for one that is not what it was."""
        found, at = row_hashes(batch), 0
        while at < len(found):
            if not self._expected:
                raise self._other(len(found) - at)
            rows = self._expected.popleft()
            count = min(len(rows), len(found) - at)
            wrong = np.flatnonzero(rows[CONTENT_HASH][:count] != found[at : at + count])
            if len(wrong):
                row = int(wrong[0])
                raise StorageError(
                    f"row {int(rows[ORDINAL][row])} of input shard number {int(rows[SHARD][row])} "
                    f"does not read back as it was read, for output shard number {self._output}",
                    hint="check memory and disks; nothing was published",
                )
            if count < len(rows):
                self._expected.appendleft(rows.run(count, len(rows)))
            at += count
        self.missing -= len(found)

    def end(self) -> None:
        """No more rows come; ``StorageError`` if some are missing."""
        if self.missing:
            raise self._other(-self.missing)

    def _other(self, more: int) -> StorageError:
        return StorageError(
            f"output shard number {self._output} reads back with {abs(more)} rows "
            f"{'more' if more > 0 else 'less'} than were written",
            hint="check memory and disks; nothing was published",
        )


class _Staged:
    """A staged shard as :class:`~dsort.containers.columnar.ranges.Source`."""

    def __init__(self, staged: StagedObject) -> None:
        self._staged = staged
        self.size_bytes = staged.size_bytes()

    def whole(self) -> memoryview | None:
        """It is read in parts."""
        return None

    def held(self, offset: int, length: int) -> memoryview | None:
        """None of them: no bound is asked for."""
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Some bytes."""
        data = bytearray(length)
        self._staged.read_into(memoryview(data), offset)
        return bytes(data)


def check_staged_rows(
    ordinal: int, staged: StagedObject, rows: Iterable[Table], buffer_bytes: int
) -> None:
    """Read an output shard of rows back and compare it with ``rows``; ``StorageError``."""
    check = RowCheck(ordinal)
    for each in rows:
        check.expect(each)
    try:
        table = open_table(f"number {ordinal}", _Staged(staged))
        plain = plain_schema(f"number {ordinal}", table.schema)
        batches = plain_batches(f"number {ordinal}", table, plain, buffer_bytes // BATCH_SHARE)
        for batch in batches:
            check.feed(batch)
    except CorruptShardError as error:
        raise StorageError(
            f"output shard {error.message} when it is read back",
            hint="check the disk and its file system; nothing was published",
        ) from None
    check.end()
