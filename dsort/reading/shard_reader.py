"""Opens shards to be read by users and by ``dsort verify``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from dsort.closing import ClosesOnExit
from dsort.containers.base import Container, ContainerOptions
from dsort.containers.codecs.decoding import DecodingRules
from dsort.containers.registry import container_of
from dsort.data.members import MemberTable, ScanNotes
from dsort.errors import SchemaError, ShardEndError
from dsort.job.plan import with_schema_beside
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket, ReadObject

__all__ = ["ShardReader", "check_whole", "whole_members"]

MEMORY_BYTES_DEFAULT: Final = 256 << 20
WINDOW_SHARE: Final = 4
"""zstd --long=27 needs a window of 128 MiB, which is a quarter of 512 MiB."""


class ShardReader:
    """Opens shards for reading, counts the bytes that are read, and stops when the user requests
    it."""

    def __init__(
        self,
        buffer_bytes: int,
        stop: StopFlag | None,
        options: ContainerOptions | None = None,
        *,
        memory_max_bytes: int | None = None,
        needs_schema: bool = True,
    ) -> None:
        """``options``: how the job reads its shards. ``memory_max_bytes``: the available memory, of
        which the window of a decoder may take one ``WINDOW_SHARE``-th; None:
        ``MEMORY_BYTES_DEFAULT``. ``needs_schema``: whether a damaged schema file is an error. It is
        none where records are compared as they are stored."""
        self._options = options or ContainerOptions()
        self._buffer = PayloadBuffer(buffer_bytes)
        self._window_bytes = (memory_max_bytes or MEMORY_BYTES_DEFAULT) // WINDOW_SHARE
        self._stop = stop
        self._needs_schema = needs_schema
        self.bytes_read = 0

    @contextmanager
    def open(
        self,
        bucket: Bucket,
        name: str,
        decoding: DecodingRules | None = None,
        container: Container | None = None,
    ) -> Iterator[ShardBytes]:
        """The bytes of one shard. Only one shard may be open at a time. ``container``: None for the
        container of the shard's name, with the options of this reader. ``SchemaError`` if the
        schema file beside the shard is damaged."""
        self.heed_stop()
        with bucket.open(name) as source:
            container = container or container_of(name).with_options(self._options)
            try:
                container = with_schema_beside(container, bucket, name)
            except SchemaError:
                if self._needs_schema:
                    raise
            counted = _Counted(source, self)
            shard = ShardBytes(
                name,
                counted,
                self._buffer,
                mapped=False,
                container=container,
                decoding=replace(decoding or DecodingRules(), window_bytes=self._window_bytes),
            )
            try:
                yield shard
            finally:
                shard.close()

    def heed_stop(self) -> None:
        """Raise ``JobStoppedError`` if the user requested to stop."""
        if self._stop is not None:
            self._stop.raise_if_requested()


def check_whole(shard: str, notes: ScanNotes) -> None:
    """``ShardEndError`` if the shard may not be whole."""
    if notes.shortfall:
        raise ShardEndError(
            f"shard {shard} may not be whole: {notes.shortfall}", hint="fetch or make it again"
        )


def whole_members(shard: ShardBytes) -> MemberTable:
    """The members of an opened shard. ``ShardEndError`` if it may not be whole."""
    members = shard.members()
    check_whole(shard.name, members.notes)
    return members


class _Counted(ClosesOnExit, ReadObject):
    """A source that adds the number of bytes read from it to ``bytes_read`` of its reader. Bytes
    that were read stay in the page cache, because they will probably be read again soon."""

    rereads_cheaply = True  # there is no scratch directory to copy the source to

    def __init__(self, source: ReadObject, reader: ShardReader) -> None:
        self.info = source.info
        self._source = source
        self._reader = reader

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._reader.heed_stop()
        self._source.read_into(buffer, offset)
        self._reader.bytes_read += len(buffer)

    def close(self) -> None:
        self._source.close()
