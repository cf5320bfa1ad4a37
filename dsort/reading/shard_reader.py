"""Opens shards to be read again, by users and by ``dsort verify``: the bytes, and no judgement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from dsort.closing import ClosesOnExit
from dsort.containers.base import Container, ContainerOptions
from dsort.containers.codecs.decoding import DecodingRules
from dsort.containers.registry import container_of
from dsort.job.schemas import with_schema_beside
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket, ReadObject

__all__ = ["ShardReader"]

MEMORY_BYTES_DEFAULT: Final = 256 << 20
WINDOW_SHARE: Final = 4
"""zstd --long=27 wants 128 MiB, which are there of 512."""


class ShardReader:
    """Opens shards for reading, counts the bytes, and stops where the user asks for it."""

    def __init__(
        self,
        buffer_bytes: int,
        stop: StopFlag | None,
        options: ContainerOptions | None = None,
        *,
        memory_max_bytes: int | None = None,
    ) -> None:
        """``options``: what the job says of how its shards are read. ``memory_max_bytes``: how much
        memory there is, of which a decoder may hold ``WINDOW_SHARE`` to refer back to; None:
        ``MEMORY_BYTES_DEFAULT``."""
        self._options = options or ContainerOptions()
        self._buffer = PayloadBuffer(buffer_bytes)
        self._window_bytes = (memory_max_bytes or MEMORY_BYTES_DEFAULT) // WINDOW_SHARE
        self._stop = stop
        self.bytes_read = 0

    @contextmanager
    def open(
        self,
        bucket: Bucket,
        name: str,
        decoding: DecodingRules | None = None,
        container: Container | None = None,
    ) -> Iterator[ShardBytes]:
        """The bytes of one shard; those of one shard at a time. ``container``: if not as its name
        says, with the options that all shards are read with."""
        self.heed_stop()
        with bucket.open(name) as source:
            container = container or container_of(name).with_options(self._options)
            container = with_schema_beside(container, bucket, name)
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
        """``JobStoppedError`` if the user asked to stop."""
        if self._stop is not None:
            self._stop.raise_if_requested()


class _Counted(ClosesOnExit):
    """A source that tells its reader what is read from it."""

    rereads_cheaply = True  # there is no scratch to spool it to

    def __init__(self, source: ReadObject, reader: ShardReader) -> None:
        self.info = source.info
        self._source = source
        self._reader = reader

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._reader.heed_stop()
        self._source.read_into(buffer, offset)
        self._reader.bytes_read += len(buffer)

    def forget(self) -> None:
        """Nothing is forgotten: what is read again is likely to be used next."""

    def mapping(self) -> memoryview | None:
        return None

    def random_reads(self) -> None:
        return None

    def close(self) -> None:
        self._source.close()
