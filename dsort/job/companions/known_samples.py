"""The samples of a result that is amended, from its database of Energon."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct

from dsort.errors import ObjectNotFoundError, StorageError
from dsort.job.job import Job
from dsort.sidecars.shard_index import EnergonSample, Part

READ_BYTES: Final = 8 << 20
DATABASE: Final = ".nv-meta/index.sqlite"
_SAMPLES: Final = (
    "SELECT sample_index, sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? "
    "ORDER BY sample_index"
)
_PARTS: Final = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
    "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset, rowid"
)


class KnownSamples(Struct, frozen=True):
    """A database that others may have written; ``what`` names it in errors."""

    database: sqlite3.Connection
    what: str

    def of(self, number: int) -> Iterator[EnergonSample]:
        """The samples of shard ``number`` of the result. ``StorageError`` if they are damaged."""
        try:
            found = self.database.execute(_PARTS, (number,)).fetchall()
            parts = {
                index: tuple(_part(*row[1:]) for row in rows)
                for index, rows in groupby(found, key=lambda row: row[0])
            }
            for index, key, offset, size_bytes in self.database.execute(_SAMPLES, (number,)):
                _check(key, offset, size_bytes)
                yield EnergonSample(key.encode(), offset, size_bytes, parts.get(index, ()))
        except (sqlite3.Error, TypeError, UnicodeError) as error:
            raise StorageError(
                f"{self.what} is damaged: {error}", hint="dsort did not write it so"
            ) from None


def _part(extension: object, offset: object, size_bytes: object) -> Part:
    _check(extension, offset, size_bytes)
    return Part(str(extension).encode(), offset, size_bytes, b"")  # type: ignore[arg-type]


def _check(name: object, *numbers: object) -> None:
    if type(name) is not str or any(type(number) is not int for number in numbers):
        raise TypeError("a row has values of other types")


@contextmanager
def known_samples(job: Job, directory: Path) -> Iterator[KnownSamples | None]:
    """The samples of the result that the job amends, by way of a file in ``directory``; None if it
    amends none. ``StorageError`` if the database is gone."""
    if not job.amends:
        yield None
        return
    bucket, path = job.buckets.outputs, directory / "known"
    what = f"{DATABASE} in {bucket.uri}"
    try:
        with bucket.open(DATABASE) as opened, path.open("wb") as file:
            size_bytes = opened.info.size_bytes
            for at in range(0, size_bytes, READ_BYTES):
                part = memoryview(bytearray(min(READ_BYTES, size_bytes - at)))
                opened.read_into(part, at)
                file.write(part)
    except ObjectNotFoundError:
        raise StorageError(f"{what} is gone", hint="run the job again, over all inputs") from None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            yield KnownSamples(database, what)
    except sqlite3.Error as error:
        raise StorageError(f"{what} is damaged: {error}") from None
