"""Keeps an object of an S3 store while another one is published under its name.

If the bucket keeps versions, the old version stays anyway, and only its id is needed. Else the
store copies the object, without transferring it to this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dsort.errors import InvariantError, ObjectNotFoundError, StorageAccessError
from dsort.storage.bucket import COPY, ObjectInfo
from dsort.storage.objects import check_copy
from dsort.storage.s3.client import S3Client
from dsort.storage.s3.replies import whole_seconds_ns

__all__ = ["COPIED_AT_ONCE_BYTES_MAX", "keep_object", "put_back_object"]

COPIED_AT_ONCE_BYTES_MAX = 5 << 30
"""The largest object that S3 copies by one request."""
PART_BYTES = 1 << 30
PARTS_AT_ONCE_MAX = 8
_NO_VERSION: Final = "null"  # of objects that were stored while the bucket kept no versions
_SAID_BY_COPIES: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Metadata",
)
"""Fields that have to be set for a copy in parts; a copy by one request takes them over itself."""


def keep_object(client: S3Client, name: str, token: str) -> str:
    """Keep the object ``name``: as one of its versions, or as a copy named ``token``. Returns the
    receipt for ``put_back_object``; "" if there is no such object."""
    with client.doing(f"keep {name} while it is replaced"):
        try:
            found = _head(client, name)
        except ObjectNotFoundError:
            return ""
        version = str(found.get("VersionId") or _NO_VERSION)
        if version != _NO_VERSION and _is_readable(client, name, version):
            return json.dumps({"version": version})
        _copy(client, name, token, found)
    return COPY


def put_back_object(client: S3Client, token: str, name: str, receipt: str) -> None:
    """Give ``name`` the object that was kept. ``ObjectNotFoundError`` if that is gone."""
    version = _version_of(receipt)
    with client.doing(f"put back {name}"):
        if version:
            _copy(client, name, name, _head(client, name, version), version)
            return
        _copy(client, token, name, _head(client, token))
        client.api.delete_object(**client.target(token))


def _version_of(receipt: str) -> str:
    if receipt == COPY:
        return ""
    try:
        version = json.loads(receipt)["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if not isinstance(version, str) or not version:
        raise InvariantError(f"not a receipt of what was kept: {receipt[:100]!r}")
    return version


def _head(client: S3Client, name: str, version: str = "") -> Mapping[str, Any]:
    more = {"VersionId": version} if version else {}
    with client.doing(f"find {name}"):
        reply: Mapping[str, Any] = client.api.head_object(**client.target(name), **more)
    return reply


def _is_readable(client: S3Client, name: str, version: str) -> bool:
    """Whether the credentials allow to read that version, which is a separate permission."""
    try:
        _head(client, name, version)
    except (StorageAccessError, ObjectNotFoundError):
        return False
    return True


def _copy(
    client: S3Client, source: str, target: str, found: Mapping[str, Any], version: str = ""
) -> None:
    size_bytes = int(found["ContentLength"])
    origin = client.target(source) | ({"VersionId": version} if version else {})
    if size_bytes > COPIED_AT_ONCE_BYTES_MAX:
        _copy_in_parts(client, origin, target, found)
    else:
        client.api.copy_object(
            **client.target(target), CopySource=origin, CopySourceIfMatch=found["ETag"]
        )
    copied = _head(client, target)
    info = ObjectInfo(
        target,
        int(copied["ContentLength"]),
        whole_seconds_ns(copied["LastModified"]),
        str(copied["ETag"]),
    )
    check_copy(info, size_bytes, client.uri)


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

    is_complete = False
    try:
        with ThreadPoolExecutor(PARTS_AT_ONCE_MAX) as threads:
            parts = list(threads.map(copy_part, range(1, -(-size_bytes // PART_BYTES) + 1)))
        client.api.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        is_complete = True
    finally:
        if not is_complete:
            client.api.abort_multipart_upload(**where, UploadId=upload)
