"""What it takes to complete an upload to S3, as text that a coordinator keeps for every shard."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from dsort.errors import StorageError

__all__ = ["ETAGS_KEPT_MAX", "Part", "Receipt"]

ETAGS_KEPT_MAX = 16
"""Those of more parts are asked for when the upload is completed, one request for each thousand:
the coordinator holds all receipts at once, and with 36 bytes for each part of 16 MiB, those of a
petabyte would take 2 GB. Checksums are kept, 5.4 bytes a part: not all stores list them."""
_CHECKSUM_BYTES = 4  # CRC32C


class Part(NamedTuple):
    """One part as it was stored: its ETag, and its CRC32C in base64, or "" if none was sent."""

    etag: str
    checksum: str


class Receipt(NamedTuple):
    """What it takes to complete an upload, and to know what became of it.

    ``part_count`` parts have ``size_bytes`` together. ``digest``: of their ETags in order; it is
    the ETag of the object that they will be, if theirs are MD5s. ``etags``: all of them, or none if
    there are more than ``ETAGS_KEPT_MAX``. ``checksums``: their CRC32Cs, four bytes each, all
    together in base64; "" if none were sent. ``began_s``: when the upload began by the store's
    clock, in seconds since 1970.
    """

    name: str
    upload_id: str
    size_bytes: int
    began_s: int
    part_count: int
    digest: str
    etags: tuple[str, ...]
    checksums: str

    @classmethod
    def of(
        cls, name: str, upload_id: str, parts: Sequence[Part], *, size_bytes: int, began_s: int
    ) -> Receipt:
        """The receipt of an upload of ``parts``, at least one."""
        etags = tuple(part.etag for part in parts)
        checksums = b"".join(base64.b64decode(part.checksum) for part in parts)
        return cls(
            name=name,
            upload_id=upload_id,
            size_bytes=size_bytes,
            began_s=began_s,
            part_count=len(parts),
            digest=_digest_of(etags),
            etags=etags if len(parts) <= ETAGS_KEPT_MAX else (),
            checksums=base64.b64encode(checksums).decode(),
        )

    def text(self) -> str:
        """As JSON: a list, since names of fields would take a fifth of it."""
        return json.dumps(self, separators=(",", ":"))

    def completion(self, listed: Sequence[str] = ()) -> list[dict[str, object]]:
        """The parts, as boto3 wants to be told. ``listed``: the ETags that the store says they
        have, where the receipt has none; ``StorageError`` if those are others."""
        etags = self.etags or listed
        if len(etags) != self.part_count or _digest_of(etags) != self.digest:
            raise StorageError(
                f"the store has {len(etags):,} parts of {self.name} that are not the "
                f"{self.part_count:,} that were uploaded",
                hint="somebody else wrote to this upload; start the job again",
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
        """The inverse of :meth:`text`; ``StorageError`` for anything else."""
        try:
            receipt = cls(*json.loads(text))
            receipt = receipt._replace(etags=tuple(receipt.etags))
            texts = (receipt.name, receipt.upload_id, receipt.digest, receipt.checksums)
            numbers = (receipt.size_bytes, receipt.began_s, receipt.part_count)
            if not all(isinstance(each, str) for each in (*texts, *receipt.etags)):
                raise TypeError("a text is none")
            if not all(type(each) is int and each >= 0 for each in numbers):
                raise TypeError("a number is none")
            return receipt
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(f"not a receipt of an upload: {text[:100]!r}") from error


def _bare(etag: str) -> str:
    return etag.strip('"')  # stores quote them, or do not


def _digest_of(etags: Sequence[str]) -> str:
    """The MD5 of MD5s, and how many there are, as in AWS, "Checking object integrity"."""
    bare = [_bare(etag) for etag in etags]
    try:
        digests = b"".join(map(bytes.fromhex, bare))
    except ValueError:  # encrypted objects have others
        return hashlib.blake2b("\n".join(bare).encode(), digest_size=16).hexdigest()
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"
