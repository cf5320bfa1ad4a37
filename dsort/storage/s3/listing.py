"""Reads the pages of ListObjectsV2 quickly.

boto3 takes 20 ms of processor time for a page of 1,000 names, most of it to fit the reply to its
model of the service: 2 s of every 100,000 objects are the store's, and 8 s boto3's. So its own
parser is left with an empty body, and the reply is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from dsort.errors import TransientStorageError
from dsort.storage.bucket import ObjectInfo
from dsort.storage.s3.replies import said_root, truncation_of

__all__ = ["list_pages", "read_listings_quickly", "whole_seconds_ns"]

_OURS = "DsortPage"


def read_listings_quickly(client: Any) -> None:
    """Have the replies to ``client``'s ListObjectsV2 read by this module (a boto3 client)."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _take_page)


def list_pages(client: Any, bucket: str, prefix: str) -> Iterator[list[ObjectInfo]]:
    """The objects of ``bucket`` whose keys begin with ``prefix``, a page a request, in the store's
    order; ``name`` is the key. Raises boto3's errors, and ``TransientStorageError`` for a reply
    that cannot be read."""
    more: dict[str, str] = {}
    while True:
        reply = client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        infos, token = reply[_OURS]
        yield infos
        if token is None:
            return
        more = {"ContinuationToken": token}


def whole_seconds_ns(time: datetime) -> int:
    """``time`` in ns since 1970, to the second: stores tell fractions in listings only."""
    return int(time.timestamp()) * 1_000_000_000


def _take_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """botocore's event before a reply is parsed: what is put into ``customized_response_dict``
    becomes part of the result."""
    if response_dict["status_code"] != 200:
        return
    try:
        page = _parsed(response_dict["body"])
    except (ElementTree.ParseError, ValueError, TypeError, KeyError, OverflowError) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise TransientStorageError(f"the store's listing cannot be read: {why}") from None
    customized_response_dict[_OURS] = page
    response_dict["body"] = b""


def _parsed(body: bytes) -> tuple[list[ObjectInfo], str | None]:
    """The objects of a page, and how to ask for the next (None: this is the last one)."""
    root = ElementTree.fromstring(body)
    if said_root(root) != "ListBucketResult":
        raise ValueError("it is no listing")
    space = root.tag[: root.tag.index("}") + 1] if "}" in root.tag else ""
    key, size, etag, time = (space + tag for tag in ("Key", "Size", "ETag", "LastModified"))
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    infos = []
    for entry in root.iterfind(f"{space}Contents"):
        text = {field.tag: field.text or "" for field in entry}
        if not text.get(key):
            raise ValueError("an object has no key")
        name = unquote_plus(text[key], errors="strict") if is_encoded else text[key]
        changed = datetime.fromisoformat(text[time])
        infos.append(ObjectInfo(name, int(text[size]), whole_seconds_ns(changed), text[etag]))
    if not truncation_of(root):
        return infos, None
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("there are more pages, but no way to ask for them")
    return infos, token
