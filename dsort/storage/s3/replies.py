"""Whether a reply is one of an S3 store: a proxy on the way may answer in its place, with status
200 and an error, a page for people, or less than there was.

Each reply is looked at before boto3 does, which takes what it does not find for what is not there:
no unfinished uploads, nothing that could not be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from dsort.errors import TransientStorageError

__all__ = ["check_replies", "field_of", "said_root", "seconds_of_date", "truncation_of"]

_ROOTS: Mapping[str, str] = MappingProxyType(
    {
        "CompleteMultipartUpload": "CompleteMultipartUploadResult",
        "CopyObject": "CopyObjectResult",
        "CreateMultipartUpload": "InitiateMultipartUploadResult",
        "DeleteObjects": "DeleteResult",
        "ListMultipartUploads": "ListMultipartUploadsResult",
        "ListParts": "ListPartsResult",
        "UploadPartCopy": "CopyPartResult",
    }
)
_NEXT_PAGE: Mapping[str, str] = MappingProxyType(
    {"ListMultipartUploads": "NextKeyMarker", "ListParts": "NextPartNumberMarker"}
)
_HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "GetObject": ("etag", "last-modified", "content-length"),
        "HeadObject": ("etag", "last-modified", "content-length"),
        "PutObject": ("etag",),
        "UploadPart": ("etag",),
    }
)
_READ_ELSEWHERE = ("GetObject", "ListObjectsV2")
"""Their bodies are data, and a page that ``s3_listing`` reads."""


def check_replies(client: Any) -> None:
    """Have all replies to ``client`` (a boto3 client) looked at: ``TransientStorageError`` from a
    request that got something else."""
    client.meta.events.register("before-parse.s3", _check)


def said_root(root: ElementTree.Element) -> str:
    """The name of the element, without its namespace."""
    return root.tag.rpartition("}")[2]


def truncation_of(root: ElementTree.Element) -> bool:
    """Whether there are more pages after this one; ``ValueError`` if it does not say."""
    space = root.tag[: root.tag.index("}") + 1] if "}" in root.tag else ""
    text = (root.findtext(f"{space}IsTruncated") or "").strip()
    if text not in ("true", "false"):
        raise ValueError("it does not say whether there are more pages")
    return text == "true"


def field_of(reply: Mapping[str, Any], field: str, what: str) -> Any:
    """``reply[field]``; ``TransientStorageError`` if the store did not tell. ``what``: the
    object."""
    value = reply.get(field)
    if value is None or value == "":
        raise TransientStorageError(f"the store's reply about {what} has no {field}")
    return value


def seconds_of_date(headers: Mapping[str, str]) -> int:
    """The time of a reply, in seconds since 1970; 0 if it has none that can be read."""
    try:
        return int(parsedate_to_datetime(headers["date"]).timestamp())
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0


def _check(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """botocore's event before a reply is parsed."""
    if response_dict["status_code"] >= 300:
        return  # an error, which boto3 reads whatever it looks like
    operation, headers = str(operation_model.name), response_dict["headers"]
    missing = [name for name in _HEADERS.get(operation, ()) if not headers.get(name)]
    if missing:
        raise _not_a_reply(operation, f"it has no {missing[0]}")
    if str(headers.get("etag", "")).count('"') % 2:
        raise _not_a_reply(operation, "it breaks off in its etag")
    if operation in _READ_ELSEWHERE:
        return
    body = response_dict["body"]
    if operation in _ROOTS:
        _check_document(operation, body)
    elif body[:256].lstrip()[:1] == b"<":
        raise _not_a_reply(operation, "nothing was to be said, and it has a document")


def _check_document(operation: str, body: bytes) -> None:
    try:
        root = ElementTree.fromstring(body)
        if said_root(root) != _ROOTS[operation]:
            raise ValueError(f"it is of another kind ({_shown(said_root(root))})")
        following = _NEXT_PAGE.get(operation)
        if following is not None and truncation_of(root):
            space = root.tag[: root.tag.index("}") + 1] if "}" in root.tag else ""
            if not root.findtext(space + following):
                raise ValueError("there are more pages, but no way to ask for them")
    except ElementTree.ParseError:
        raise _not_a_reply(operation, "it is no whole document") from None
    except ValueError as error:
        raise _not_a_reply(operation, str(error)) from None


def _not_a_reply(operation: str, why: str) -> TransientStorageError:
    return TransientStorageError(
        f"what came in reply to {operation} is not of an S3 store: {why}",
        hint="if it stays so, look at the endpoint, and at proxies on the way to it",
    )


def _shown(tag: str) -> str:
    return tag[:40] if tag.isprintable() else "?"
