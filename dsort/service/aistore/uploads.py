"""Objects that requests write: stored without a name until all bytes have arrived.

A small object is written at once. A larger one is staged like a job's output: piece by piece in a
directory, in parts in an object store. If the upload ends too soon, no part of it gets a name;
``dsort gc`` removes what a killed service has left.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Final, NoReturn, TypeVar

import anyio

from dsort.errors import DsortError, NamesTakenError, SpecError
from dsort.results.layout import writes_prefix
from dsort.service.objects.answers import PIECE_BYTES, in_thread
from dsort.service.objects.checksums import Checksum
from dsort.storage.bucket import Bucket, StagedObject

__all__ = ["SMALL_BYTES_MAX", "write_object"]

SMALL_BYTES_MAX: Final = PIECE_BYTES
Found = TypeVar("Found")


async def write_object(
    bucket: Bucket,
    name: str,
    body: AsyncIterator[bytes],
    *,
    size_bytes: int | None,
    checksum: Checksum | None,
    overwrite: bool,
) -> int:
    """Store ``body`` as the object ``name``; returns its number of bytes. ``size_bytes``: the
    announced number. Returns once the object survives a power cut. ``SpecError`` if the number of
    bytes or the checksum differs; ``NamesTakenError`` without ``overwrite`` if there is such an
    object; ``StorageError``."""
    pieces = _Pieces(body, size_bytes, checksum)
    first = await pieces.next(SMALL_BYTES_MAX + 1)
    if len(first) > SMALL_BYTES_MAX:
        return await _write_large(bucket, name, first, pieces, overwrite=overwrite)
    pieces.check()
    if overwrite:
        await _in_thread(lambda: bucket.write(name, first))
    elif not await _in_thread(lambda: bucket.write_new(name, first)):
        raise NamesTakenError(f"{name} exists already")
    return len(first)


async def _write_large(
    bucket: Bucket, name: str, first: bytes, pieces: _Pieces, *, overwrite: bool
) -> int:
    token = f"{writes_prefix()}{uuid.uuid4().hex}"
    # No room is set aside in a directory: the announced bytes may never arrive.
    parts_for = pieces.announced if bucket.seals_on_finish else None
    staged = await _in_thread(lambda: bucket.stage(token, name=name, size_bytes=parts_for))
    try:
        at, piece = 0, first
        while piece:
            await _in_thread(_writing(staged, at, piece))
            at += len(piece)
            piece = await pieces.next(PIECE_BYTES)
        pieces.check()

        def end() -> None:
            staged.sync()
            receipt = staged.finish()
            staged.close()
            bucket.publish(token, name, overwrite=overwrite, receipt=receipt)
            bucket.make_durable()
            if not bucket.seals_on_finish:
                bucket.discard(token)  # removes its directory, too, if that is empty

        await _in_thread(end)
    except BaseException:
        # Also if the request was cancelled. In a store, closing the upload aborts it; ``discard``
        # would also abort other uploads to the same name.
        with anyio.CancelScope(shield=True), contextlib.suppress(DsortError):
            await _in_thread(lambda: _give_up(bucket, staged, token))
        raise
    return at


def _give_up(bucket: Bucket, staged: StagedObject, token: str) -> None:
    staged.close()
    if not bucket.seals_on_finish:
        bucket.discard(token)


def _writing(staged: StagedObject, at: int, piece: bytes) -> Callable[[], None]:
    return lambda: staged.write_at(at, [piece])


class _Pieces:
    """A body in pieces of the requested size. At most one of them is held in memory."""

    def __init__(
        self, body: AsyncIterator[bytes], announced: int | None, checksum: Checksum | None
    ) -> None:
        self.announced = announced
        self._body = body
        self._checksum = checksum
        self._size_bytes = 0

    async def next(self, size_bytes: int) -> bytes:
        """The next bytes: at least ``size_bytes``, fewer only at the end. ``SpecError`` if more
        bytes arrive than were announced."""
        found = bytearray()
        while len(found) < size_bytes:
            try:
                found += await anext(self._body)
            except StopAsyncIteration:
                break
        self._size_bytes += len(found)
        if self.announced is not None and self._size_bytes > self.announced:
            self._refuse_size()
        piece = bytes(found)
        if self._checksum is not None:
            self._checksum.update(piece)
        return piece

    def check(self) -> None:
        """``SpecError`` if the number of bytes differs from the announced one, or the checksum from
        the sent one."""
        if self.announced not in (None, self._size_bytes):
            self._refuse_size()
        if self._checksum is not None:
            self._checksum.check()

    def _refuse_size(self) -> NoReturn:
        raise SpecError(
            f"the body has {self._size_bytes:,} bytes or more, and not the {self.announced:,} that "
            "Content-Length says"
        )


async def _in_thread(work: Callable[[], Found]) -> Found:
    found: list[Found] = []
    await in_thread(lambda: found.append(work()))
    return found[0]
