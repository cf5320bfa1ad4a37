"""Writes outputs to S3: by multipart uploads to the final name, which are not visible until they
are completed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Annotated, Any, NamedTuple

import botocore.exceptions as boto
import msgspec
from awscrt import checksums
from awscrt.checksums import crc32c
from msgspec import Meta, Struct
from msgspec.structs import astuple

from dsort.errors import ObjectNotFoundError, StorageError
from dsort.log_lines import logger_of
from dsort.storage.bucket import Buffer
from dsort.storage.limit import TAIL_SHARE, part_room
from dsort.storage.objects import StagedInStore
from dsort.storage.request_counts import ETAGS_KEPT_MAX, PARTS_MAX
from dsort.storage.s3.client import NOT_OFFERED, S3Client
from dsort.storage.s3.replies import code_of, field_of, seconds_of_date
from dsort.storage.transport import Transport

_CHECKSUM_BYTES = 4  # CRC32C
_OF_WHOLE = "FULL_OBJECT"
_combine = getattr(checksums, "combine_crc32c", None)  # older awscrt has none
_NOT_TAKEN = (*NOT_OFFERED, "InvalidArgument", "InvalidRequest")
"""The error codes of stores for a kind of checksum that they do not support."""

log = logger_of("storage")


_Count = Annotated[int, Meta(ge=0)]


class Part(NamedTuple):
    """One part as it was stored: its ETag, and its CRC32C in base64, or "" if none was sent."""

    etag: str
    checksum: str


class Receipt(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The facts that are needed to complete an upload, and to recognise its result.

    ``part_count`` parts have ``size_bytes`` together. ``digest``: a digest of the parts' ETags, in
    order. If these are MD5s, it is the ETag of the final object. ``etags``: all ETags, or none if
    there are more than ``ETAGS_KEPT_MAX``. ``began_s``: the time when the upload began, by the
    store's clock, in seconds since 1970.

    ``checksum``: the CRC32C of the whole object in base64, combined from the CRC32Cs of the parts,
    if the store checks whole objects. ``checksums``: otherwise the CRC32Cs of the parts, four bytes
    each, joined and in base64, because not all stores list them; "" if none were sent.
    """

    name: str
    upload_id: str
    size_bytes: _Count
    began_s: _Count
    part_count: _Count
    digest: str
    etags: tuple[str, ...]
    checksums: str
    checksum: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        upload_id: str,
        parts: Sequence[Part],
        *,
        size_bytes: int,
        began_s: int,
        checksum: str = "",
    ) -> Receipt:
        """The receipt of an upload of ``parts``, at least one."""
        etags = tuple(part.etag for part in parts)
        kept = () if checksum else parts
        checksums = b"".join(base64.b64decode(part.checksum) for part in kept)
        return cls(
            name=name,
            upload_id=upload_id,
            size_bytes=size_bytes,
            began_s=began_s,
            part_count=len(parts),
            digest=_digest_of(etags),
            etags=etags if len(parts) <= ETAGS_KEPT_MAX else (),
            checksums=base64.b64encode(checksums).decode(),
            checksum=checksum,
        )

    def text(self) -> str:
        """The receipt as JSON: a list, because names of fields would take a fifth of it."""
        return json.dumps(astuple(self), separators=(",", ":"))

    @property
    def whole(self) -> dict[str, str]:
        """The fields about the whole object in the request that completes the upload. The reply
        repeats them."""
        if not self.checksum:
            return {}
        return {"ChecksumCRC32C": self.checksum, "ChecksumType": _OF_WHOLE}

    def completion(self, listed: Sequence[str] = ()) -> list[dict[str, object]]:
        """The parts, as arguments for botocore. ``listed``: the ETags of the parts in the store's
        list, for a receipt without ETags. ``StorageError`` if they do not match the receipt."""
        etags = self.etags or listed
        if len(etags) != self.part_count or _digest_of(etags) != self.digest:
            raise StorageError(
                f"the store has {len(etags):,} parts of {self.name} that are not the "
                f"{self.part_count:,} that were uploaded",
                hint="another program wrote to this upload; start the job again",
            )
        parts: list[dict[str, object]] = [
            {"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)
        ]
        packed = base64.b64decode(self.checksums)
        for at, part in zip(range(0, len(packed), _CHECKSUM_BYTES), parts, strict=False):
            checksum = packed[at : at + _CHECKSUM_BYTES]
            part["ChecksumCRC32C"] = base64.b64encode(checksum).decode()
        return parts

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """The inverse of :meth:`text`. ``StorageError`` if ``text`` is no receipt."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (RecursionError, msgspec.DecodeError, UnicodeEncodeError) as error:
            raise StorageError(f"not a receipt of an upload: {text[:100]!r}") from error


def _bare(etag: str) -> str:
    return etag.strip('"')  # some stores quote them, some do not


def _digest_of(etags: Sequence[str]) -> str:
    """The MD5 of the MD5s, and their number, as in AWS, "Checking object integrity"."""
    bare = [_bare(etag) for etag in etags]
    try:
        digests = b"".join(map(bytes.fromhex, bare))
    except ValueError:  # the ETags of encrypted objects are no MD5s
        return hashlib.blake2b("\n".join(bare).encode(), digest_size=16).hexdigest()
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


_SENT_BYTES = 1 << 20  # at once
_SUMMED_BYTES = 256 << 10
"""The checksum is computed for this many bytes at a time, directly after they are copied: while
they are in the processor's cache, that takes 0.05 s/GiB, and 0.11 later."""


def even_part_bytes(size_bytes: int | None, part_bytes: int) -> int:
    """The size of all parts but the last of an object of ``size_bytes``: ``part_bytes``, or
    slightly more, so that no small rest makes another part. All have the same size, because some
    stores require that."""
    count, rest = divmod(size_bytes or 0, part_bytes)
    if not count or rest > part_bytes // TAIL_SHARE:
        return part_bytes
    return part_bytes + -(-rest // count)


class PartBuffers:
    """The part buffers of a bucket, ``count`` of them for parts of ``part_bytes`` each. They are
    made when first needed and then reused: fresh memory costs more than the copy.

    ``take`` waits for a buffer that is being uploaded. If no buffer is being uploaded, uploads are
    filling all of them and would wait for each other; then one more buffer is made.
    """

    def __init__(self, part_bytes: int, count: int) -> None:
        self.part_bytes = part_bytes
        self._count = count
        self._made = 0
        self._uploading = 0
        self._free: list[memoryview] = []
        self._changed = threading.Condition()

    def take(self) -> memoryview:
        """A buffer to fill, with arbitrary content. Memory that is not filled is not touched."""
        with self._changed:
            while not self._free:
                if self._made < self._count or not self._uploading:
                    self._made += 1
                    return memoryview(mmap.mmap(-1, part_room(self.part_bytes), mmap.MAP_PRIVATE))
                self._changed.wait()
            return self._free.pop()

    def uploading(self) -> None:
        """Count a taken buffer as being uploaded: the end of its upload gives it back."""
        with self._changed:
            self._uploading += 1

    def give_back(self, buffer: memoryview, *, uploaded: bool) -> None:
        """Make ``buffer`` free again. ``uploaded``: whether it was counted as being uploaded."""
        with self._changed:
            self._uploading -= uploaded
            # An extra buffer is dropped.
            if self._made > self._count:
                self._made -= 1
            else:
                self._free.append(buffer)
            self._changed.notify_all()


class _PartBody:
    """A part as a file for botocore, without a copy of the part."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview:
        """Returns more than the usual 16 KiB at once, because each block is a system call."""
        piece = self._view[self._at : self._at + _SENT_BYTES] if size else self._view[:0]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def tell(self) -> int:
        return self._at


class S3StagedObject(StagedInStore):
    """An upload that has not been completed (see :class:`~dsort.storage.bucket.StagedObject`).

    The upload begins when its first part is sent. The threads of ``pool`` send the parts. ``close``
    before ``finish`` aborts the upload. Only one thread at a time may use this object.
    """

    def __init__(
        self,
        client: S3Client,
        name: str,
        buffers: PartBuffers,
        pool: Callable[[], Executor],
        transport: Transport,
        *,
        size_bytes: int | None = None,
    ) -> None:
        """``size_bytes``: the final length, if it is known."""
        super().__init__(name)
        self._client = client
        self._name = name
        self._buffers = buffers
        self._pool = pool
        self._transport = transport
        self._upload_id = ""
        self._began_s = 0
        self._part_bytes = even_part_bytes(size_bytes, buffers.part_bytes)
        self._buffer: memoryview | None = None
        self._filled = 0  # bytes of the buffer
        self._summed = 0  # bytes of the buffer that are in the checksum
        self._crc = 0
        self._is_checked = client.checks_parts
        self._whole_crc: int | None = None  # of the bytes sent, if the store checks the whole
        self._parts: list[Future[Part]] = []
        self._good = 0  # how many parts, from the first on, are known to be stored
        self._is_closed = False

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Copy ``slices`` into parts, and send the full ones. ``offset`` has to be where the last
        write ended. Errors of earlier parts are raised here, or by ``finish``."""
        self._check_order(offset, is_over=self._is_closed)
        self._raise_failed()
        part_bytes = self._part_bytes
        for piece in slices:
            view = memoryview(piece).cast("B")
            while len(view):
                if self._buffer is None:
                    self._buffer = self._buffers.take()
                size = min(len(view), part_bytes - self._filled, _SUMMED_BYTES)
                self._buffer[self._filled : self._filled + size] = view[:size]
                self._filled += size
                self._size_bytes += size
                view = view[size:]
                if self._filled - self._summed >= _SUMMED_BYTES:
                    self._sum_up()
                if self._filled == part_bytes:
                    self._send()

    def finish(self) -> str:
        """Send the rest, wait for every part, and return the receipt for ``publish``."""
        if not self._receipt:
            if self._buffer is not None or not self._parts:  # even an empty object has one part
                self._buffer = self._buffer or self._buffers.take()
                self._send()
            self._receipt = Receipt.of(
                self._name,
                self._upload_id,
                [part.result() for part in self._parts],
                size_bytes=self._size_bytes,
                began_s=self._began_s,
                checksum="" if self._whole_crc is None else _encoded(self._whole_crc),
            ).text()
            self._parts.clear()
        return self._receipt

    def close(self) -> None:
        """Release the buffer. Abort the upload if it was not finished."""
        if self._is_closed:
            return
        self._is_closed = True
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()  # wait: a part that arrives after the abort would stay stored
        if self._buffer is not None:
            self._buffers.give_back(self._buffer, uploaded=False)
            self._buffer = None
        if self._upload_id and not self._receipt:
            # This error is not reported: `discard` aborts the upload later.
            with contextlib.suppress(StorageError):
                abort(self._client, self._name, self._upload_id)

    def _raise_failed(self) -> None:
        """Raise the error of a part whose upload has failed."""
        while self._good < len(self._parts) and self._parts[self._good].done():
            self._parts[self._good].result()
            self._good += 1

    def _sum_up(self) -> None:
        """Add all bytes of the buffer to the checksum."""
        if self._is_checked and self._buffer is not None:
            fresh = self._buffer[self._summed : self._filled]
            self._crc, self._summed = crc32c(fresh, self._crc), self._filled

    def _send(self) -> None:
        """Send the buffer as the next part."""
        buffer, filled = self._buffer, self._filled
        assert buffer is not None
        number = len(self._parts) + 1
        if number > PARTS_MAX:
            raise StorageError(
                f"{self._name} has more than {PARTS_MAX:,} parts of {self._part_bytes:,} bytes",
                hint="ask for smaller shards",
            )
        if not self._upload_id:
            what = f"begin {self._name} in bucket {self._client.uri}"
            self._upload_id, self._began_s = self._transport.call(what, self._begin)
            log.debug("the upload of %s to %s has begun", self._name, self._client.uri)
        self._sum_up()
        self._transport.limiter.take(filled)
        checksum = _encoded(self._crc)
        if self._whole_crc is not None and _combine is not None:
            self._whole_crc = _combine(self._whole_crc, self._crc, filled)
        self._buffer, self._filled, self._summed, self._crc = None, 0, 0, 0
        self._buffers.uploading()
        try:
            view = buffer[:filled]
            part = self._pool().submit(
                self._upload, number, view, checksum if self._is_checked else ""
            )
        except RuntimeError:  # the interpreter is shutting down
            self._buffers.give_back(buffer, uploaded=True)
            raise
        self._parts.append(part)
        # Also after a failure or a cancellation: other uploads may wait for a buffer.
        part.add_done_callback(lambda _: self._buffers.give_back(buffer, uploaded=True))

    def _begin(self) -> tuple[str, int]:
        """Begin the upload. Returns (its id, the time by the store's clock). Requests that the
        store checks the parts and the whole object. Checks that the store does not support are left
        out."""
        client = self._client
        begin, target = client.api.create_multipart_upload, client.target(self._name)
        of_parts = {"ChecksumAlgorithm": "CRC32C"}
        kinds: list[dict[str, str]] = [{}]
        if self._is_checked:
            of_whole = [of_parts | {"ChecksumType": _OF_WHOLE}] if _combine is not None else []
            kinds = [*of_whole, of_parts, {}]
        with client.doing(f"begin {self._name}"):
            for kind in kinds:
                try:
                    reply = begin(**target, **kind)
                    break
                except boto.ClientError as error:
                    if not kind or code_of(error) not in _NOT_TAKEN:
                        raise
        self._is_checked = bool(kind)
        # A store that does not support the header does not repeat it, and needs the checksums of
        # the parts.
        if kind.get("ChecksumType") == _OF_WHOLE == reply.get("ChecksumType"):
            self._whole_crc = 0
        began_s = seconds_of_date(reply["ResponseMetadata"]["HTTPHeaders"])
        return str(field_of(reply, "UploadId", self._name)), began_s

    def _upload(self, number: int, view: memoryview, checksum: str) -> Part:
        client = self._client
        more = {"ChecksumCRC32C": checksum} if checksum else {}

        def upload() -> Part:
            with client.doing(f"write part {number} of {self._name}"):
                reply: dict[str, Any] = client.api.upload_part(
                    **client.target(self._name),
                    UploadId=self._upload_id,
                    PartNumber=number,
                    Body=_PartBody(view),
                    ContentLength=len(view),
                    **more,
                )
            log.debug("part %d of %s is stored: %d bytes", number, self._name, len(view))
            return Part(str(field_of(reply, "ETag", self._name)), checksum)

        return self._transport.call(f"write {self._name} in bucket {client.uri}", upload)


def _encoded(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(_CHECKSUM_BYTES, "big")).decode()


def abort(client: S3Client, name: str, upload_id: str) -> None:
    """Abort an upload. A missing upload is no error."""
    log.debug("the upload of %s to %s is aborted", name, client.uri)
    with (
        contextlib.suppress(ObjectNotFoundError),
        client.doing(f"abort the upload of {name}"),
    ):
        client.api.abort_multipart_upload(**client.target(name), UploadId=upload_id)
