"""Checks that a reply comes from an S3 store. A proxy may answer in place of the store, with status
200 and an error, a page for people, or only a part of the reply.

Each reply is checked before botocore parses it, because botocore treats missing elements as empty:
a damaged reply would mean that no upload is unfinished, or that all objects were removed.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

import botocore.exceptions as boto
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.storage.bucket import Meaning, ObjectInfo
from dsort.storage.objects import (
    ACCESS_HINT,
    CREDENTIALS_HINT,
    PRECONDITION_FAILED,
    RANGE_NOT_SATISFIABLE,
    ObjectErrors,
    meaning_of_status,
    one_line,
)

_FOUND = 302
_REGION_HINT = "give the bucket's region"
_TRANSIENT_CODES = (
    "BadDigest",  # the store received damaged bytes
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
)
_CODES: Mapping[str, Meaning] = MappingProxyType(
    {
        "NoSuchBucket": Meaning(
            ObjectNotFoundError, "there is no such bucket", "make it, or check its name and region"
        ),
        "NoSuchKey": Meaning(ObjectNotFoundError, "there is no such object"),
        "NoSuchUpload": Meaning(ObjectNotFoundError, "its upload is gone"),
        "PreconditionFailed": PRECONDITION_FAILED,
        "InvalidRange": RANGE_NOT_SATISFIABLE,
        "InvalidAccessKeyId": Meaning(
            StorageAccessError, "the store has no such access key", CREDENTIALS_HINT
        ),
        "SignatureDoesNotMatch": Meaning(
            StorageAccessError, "the secret key does not belong to the access key", CREDENTIALS_HINT
        ),
        "ExpiredToken": Meaning(
            StorageAccessError, "the credentials have expired", "sign in again, or renew them"
        ),
        "RequestTimeTooSkewed": Meaning(
            StorageAccessError, "the clock of this machine is wrong", "set it from a time server"
        ),
        "PermanentRedirect": Meaning(StorageError, "it is in another region", _REGION_HINT),
        "AuthorizationHeaderMalformed": Meaning(
            StorageError, "the store expects another region", _REGION_HINT
        ),
        "QuotaExceeded": Meaning(StorageFullError, "its quota is used up"),
        "EntityTooLarge": Meaning(
            StorageError, "it is larger than the store allows", "ask for smaller shards"
        ),
        "KeyTooLongError": Meaning(StorageError, "the name is longer than the store allows"),
    }
)

_CREDENTIAL_ERRORS = (
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.SSOError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_NETWORK_ERRORS = (
    OSError,
    boto.ConnectionError,  # also timeouts while connecting, and proxies
    boto.HTTPClientError,  # also timeouts while reading, closed connections
    boto.IncompleteReadError,
    http.client.HTTPException,
    urllib3.exceptions.HTTPError,
)


def code_of(error: boto.ClientError) -> str:
    """The error code of the store, such as ``NoSuchKey``; for a reply without a body it is the HTTP
    status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def sent_on_to(error: boto.ClientError) -> str:
    """The URL to which a gateway redirects its reader, if ``error`` is such a redirection, which
    botocore raises as an error; "" for all other errors."""
    facts = error.response.get("ResponseMetadata", {})
    if facts.get("HTTPStatusCode") != _FOUND:
        return ""
    return str(facts.get("HTTPHeaders", {}).get("location", ""))


def meaning_of_s3_error(error: BaseException) -> Meaning | None:
    """The meaning of ``error``, or None if it is an error of neither botocore nor the network."""
    if isinstance(error, boto.ClientError):
        return _meaning_of_reply(error)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return Meaning(StorageAccessError, "no credentials were found", CREDENTIALS_HINT)
    if isinstance(error, boto.ProfileNotFound):
        return Meaning(StorageAccessError, one_line(str(error)), "see ~/.aws/config")
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Meaning(
            StorageAccessError,
            f"the credentials could not be obtained ({type(error).__name__})",
            "sign in again (aws sso login), or set other credentials",
        )
    if isinstance(error, boto.EndpointConnectionError):
        return Meaning(
            TransientStorageError,
            "the store does not answer",
            "check the endpoint and the network",
        )
    if isinstance(error, boto.SSLError | ssl.SSLError) and "CERTIFICATE_VERIFY" in str(error):
        return Meaning(
            StorageError,
            "this machine does not trust the store's certificate",
            "set AWS_CA_BUNDLE to the certificate of its authority",
        )
    if isinstance(error, _NETWORK_ERRORS):
        return Meaning(
            TransientStorageError, f"the connection to the store failed ({type(error).__name__})"
        )
    if isinstance(error, ResponseParserError | boto.PaginationError):
        return Meaning(TransientStorageError, "the reply does not come from an S3 store")
    if isinstance(error, boto.BotoCoreError):
        return Meaning(StorageError, one_line(str(error)))
    return None


S3Errors = partial(ObjectErrors, meaning_of_s3_error)
"""A context, by an action, that translates errors of botocore into ``StorageError``."""


def _meaning_of_reply(error: boto.ClientError) -> Meaning:
    code = code_of(error)
    said = one_line(str(error.response.get("Error", {}).get("Message", "")))
    if code in _CODES:
        return _CODES[code]
    sentence = f"the store reports {code}" + (f": {said}" if said and said != code else "")
    if code in _TRANSIENT_CODES:
        return Meaning(TransientStorageError, sentence)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if not status:
        return Meaning(StorageError, sentence)
    meaning = meaning_of_status(status)
    if code.isdigit():
        return meaning
    hint = ACCESS_HINT if meaning.kind is StorageAccessError else meaning.hint
    return Meaning(meaning.kind, sentence, hint)


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
"""Operations whose bodies are not checked here: data, and listings, which ``_take_page`` reads."""


def check_replies(client: Any) -> None:
    """Check all replies to ``client`` (a botocore client). A reply that does not come from an S3
    store raises ``TransientStorageError``."""
    client.meta.events.register("before-parse.s3", _check)


def said_root(root: ElementTree.Element) -> str:
    """The name of the element, without its namespace."""
    return root.tag.rpartition("}")[2]


def _space(root: ElementTree.Element) -> str:
    """The namespace of the element: the beginning of the names of all elements in it."""
    return root.tag[: root.tag.find("}") + 1]


def truncation_of(root: ElementTree.Element) -> bool:
    """Whether there are more pages after this one. ``ValueError`` if the reply does not contain
    this fact."""
    text = (root.findtext(f"{_space(root)}IsTruncated") or "").strip()
    if text not in ("true", "false"):
        raise ValueError("it does not contain whether there are more pages")
    return text == "true"


def field_of(reply: Mapping[str, Any], field: str, what: str) -> Any:
    """``reply[field]``. ``TransientStorageError`` if the store did not send it. ``what``: the
    object, for the message."""
    value = reply.get(field)
    if value is None or value == "":
        raise TransientStorageError(f"the store's reply about {what} has no {field}")
    return value


def seconds_of_date(headers: Mapping[str, str]) -> int:
    """The time of a reply, in seconds since 1970; 0 if it has no readable time."""
    try:
        return int(parsedate_to_datetime(headers["date"]).timestamp())
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0


def _check(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Handles the event that botocore sends before it parses a reply."""
    if response_dict["status_code"] >= 300:
        return  # an error, which botocore can parse in any form
    operation, headers = str(operation_model.name), response_dict["headers"]
    missing = [name for name in _HEADERS.get(operation, ()) if not headers.get(name)]
    if missing:
        raise _not_a_reply(operation, f"it has no {missing[0]}")
    # An opening mark without a closing one: the head was cut off on the way.
    if str(headers.get("etag", "")).count('"') % 2:
        raise _not_a_reply(operation, "it breaks off in its etag")
    if operation in _READ_ELSEWHERE:
        return
    body = response_dict["body"]
    if operation in _ROOTS:
        _check_document(operation, body)
    elif body[:256].lstrip()[:1] == b"<":
        raise _not_a_reply(operation, "it has a document, and must not have one")


def _check_document(operation: str, body: bytes) -> None:
    try:
        root = ElementTree.fromstring(body)
        if said_root(root) != _ROOTS[operation]:
            raise ValueError(f"it is of another kind ({_shown(said_root(root))})")
        following = _NEXT_PAGE.get(operation)
        has_more = following is not None and truncation_of(root)
        if has_more and not root.findtext(f"{_space(root)}{following}"):
            raise ValueError("there are more pages, but no way to ask for them")
    except ElementTree.ParseError:
        raise _not_a_reply(operation, "it is no whole document") from None
    except ValueError as error:
        raise _not_a_reply(operation, str(error)) from None


def _not_a_reply(operation: str, why: str) -> TransientStorageError:
    return TransientStorageError(
        f"the reply to {operation} does not come from an S3 store: {why}",
        hint="if this error remains, check the endpoint, and proxies on the way to it",
    )


def _shown(tag: str) -> str:
    return tag[:40] if tag.isprintable() else "?"


_OURS = "DsortPage"


def read_listings_quickly(client: Any) -> None:
    """Let this module read the replies to ListObjectsV2 of ``client`` (a botocore client)."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _take_page)


def list_pages(client: Any, bucket: str, prefix: str) -> Iterator[list[ObjectInfo]]:
    """The objects of ``bucket`` whose keys begin with ``prefix``, one page for each request, in the
    store's order; ``name`` is the key. Raises botocore's errors, and ``TransientStorageError`` for
    a reply that cannot be read."""
    more: dict[str, str] = {}
    while True:
        reply = client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        infos, token = reply[_OURS]
        yield infos
        if token is None:
            return
        more = {"ContinuationToken": token}


def whole_seconds_ns(time: datetime) -> int:
    """``time`` in ns since 1970, without fractions of a second, because stores send these in
    listings only."""
    return int(time.timestamp()) * 1_000_000_000


def _take_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Handles the event that botocore sends before it parses a listing. Values that this function
    adds to ``customized_response_dict`` become part of the result."""
    if response_dict["status_code"] != 200:
        return
    try:
        page = _parsed(response_dict["body"])
    except (ElementTree.ParseError, ValueError, TypeError, KeyError, OverflowError) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise TransientStorageError(f"the store's listing cannot be read: {why}") from None
    customized_response_dict[_OURS] = page
    # Nothing is left for botocore, whose parser takes most of the time of a listing.
    response_dict["body"] = b""


def _parsed(body: bytes) -> tuple[list[ObjectInfo], str | None]:
    """(objects of a page, token for requesting the next page; None after the last one)."""
    root = ElementTree.fromstring(body)
    if said_root(root) != "ListBucketResult":
        raise ValueError("it is no listing")
    space = _space(root)
    key, size, etag, time = (space + tag for tag in ("Key", "Size", "ETag", "LastModified"))
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    infos = []
    for entry in root.iterfind(f"{space}Contents"):
        text = {field.tag: field.text or "" for field in entry}
        if not text.get(key):
            raise ValueError("an object has no key")
        # In encoded keys, a plus sign stands for a space.
        name = unquote_plus(text[key], errors="strict") if is_encoded else text[key]
        changed = datetime.fromisoformat(text[time])
        infos.append(ObjectInfo(name, int(text[size]), whole_seconds_ns(changed), text[etag]))
    if not truncation_of(root):
        return infos, None
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("there are more pages, but no way to ask for them")
    return infos, token
