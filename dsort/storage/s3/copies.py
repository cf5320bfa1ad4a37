"""Keeps an object of an S3 store while another object is published under its name.

If the bucket keeps versions, the old version stays there anyway, and only its id is recorded. Else
the store copies the object, without transferring it to this machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import botocore.exceptions as boto

from dsort.errors import InvariantError, ObjectNotFoundError, StorageAccessError
from dsort.storage.bucket import COPY, ObjectInfo
from dsort.storage.objects import check_stored
from dsort.storage.s3.client import NOT_OFFERED, S3Client
from dsort.storage.s3.replies import code_of, whole_seconds_ns

T = TypeVar("T")

COPIED_AT_ONCE_BYTES_MAX = 5 << 30
"""The largest object that S3 copies by one request."""
PART_BYTES = 1 << 30
PARTS_AT_ONCE_MAX = 8
_NO_VERSION: Final = "null"  # the version of objects stored while the bucket kept none
_SAID_BY_COPIES: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Metadata",
)
"""Fields that have to be set for a copy in parts; a copy by one request keeps them."""


class Ask(Protocol):
    """See ``ObjectBucket.ask``."""

    def __call__(self, action: str, request: Callable[[], T]) -> T: ...


class Copies(NamedTuple):
    """Keeps objects of the bucket of ``client``. ``ask(action, request)`` makes a request with the
    purpose ``action``."""

    client: S3Client
    ask: Ask

    def keep(self, name: str, token: str) -> str:
        """Keep the object ``name``: as one of its versions, or as a copy named ``token``. Returns
        the receipt for ``put_back``; "" if there is no such object."""
        try:
            found = self._head(name)
        except ObjectNotFoundError:
            return ""
        version = str(found.get("VersionId") or _NO_VERSION)
        if version != _NO_VERSION and self._is_readable(name, version):
            return json.dumps({"version": version})
        self._copy(name, token, found, f"keep {name} while it is replaced")
        return COPY

    def put_back(self, token: str, name: str, receipt: str) -> None:
        """Put the kept object back under ``name``. ``ObjectNotFoundError`` if the kept object is
        gone."""
        version, action = _version_of(receipt), f"put back {name}"
        if version:
            self._copy(name, name, self._head(name, version), action, version)
            return
        self._copy(token, name, self._head(token), action)
        self.ask(f"remove {token}", partial(self.client.delete, [token]))

    def _head(self, name: str, version: str = "") -> Mapping[str, Any]:
        return self.ask(f"find {name}", partial(self.client.head_reply, name, version))

    def _is_readable(self, name: str, version: str) -> bool:
        """Whether the credentials may read that version; stores have a separate permission for
        versions."""
        try:
            self._head(name, version)
        except (StorageAccessError, ObjectNotFoundError):
            return False
        return True

    def _copy(
        self, source: str, target: str, found: Mapping[str, Any], action: str, version: str = ""
    ) -> None:
        client, size_bytes = self.client, int(found["ContentLength"])
        origin = client.target(source) | ({"VersionId": version} if version else {})

        def copy() -> None:
            with client.doing(action):
                if size_bytes > COPIED_AT_ONCE_BYTES_MAX:
                    try:
                        _copy_in_parts(client, origin, target, found)
                        return
                    except boto.ClientError as error:
                        if code_of(error) not in NOT_OFFERED:  # a gateway may copy any size at once
                            raise
                # Another program may have replaced the object since `_head`.
                client.api.copy_object(
                    **client.target(target), CopySource=origin, CopySourceIfMatch=found["ETag"]
                )

        self.ask(action, copy)
        copied = self._head(target)
        info = ObjectInfo(
            target,
            int(copied["ContentLength"]),
            whole_seconds_ns(copied["LastModified"]),
            str(copied["ETag"]),
        )
        check_stored(info, size_bytes, client.uri)


def _version_of(receipt: str) -> str:
    if receipt == COPY:
        return ""
    try:
        version = json.loads(receipt)["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if not isinstance(version, str) or not version:
        raise InvariantError(f"not a receipt of a kept object: {receipt[:100]!r}")
    return version


def _copy_in_parts(
    client: S3Client, origin: Mapping[str, str], target: str, found: Mapping[str, Any]
) -> None:
    size_bytes, where = int(found["ContentLength"]), client.target(target)
    said = {field: found[field] for field in _SAID_BY_COPIES if found.get(field)}
    upload = client.api.create_multipart_upload(**where, **said)["UploadId"]

    def copy_part(number: int) -> dict[str, object]:
        first = (number - 1) * PART_BYTES
        last = min(first + PART_BYTES, size_bytes) - 1
        reply = client.api.upload_part_copy(
            **where,
            UploadId=upload,
            PartNumber=number,
            CopySource=origin,
            CopySourceIfMatch=found["ETag"],
            CopySourceRange=f"bytes={first}-{last}",
        )
        return {"PartNumber": number, "ETag": reply["CopyPartResult"]["ETag"]}

    try:
        with ThreadPoolExecutor(PARTS_AT_ONCE_MAX) as threads:
            parts = list(threads.map(copy_part, range(1, -(-size_bytes // PART_BYTES) + 1)))
        client.api.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}
        )
    except BaseException:
        with contextlib.suppress(boto.ClientError):  # gone if the reply to its completion was lost
            client.api.abort_multipart_upload(**where, UploadId=upload)
        raise
