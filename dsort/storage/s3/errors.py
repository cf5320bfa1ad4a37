"""The one table that turns errors of boto3 and what is below it into dsort's."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from types import MappingProxyType

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
from dsort.storage.object_errors import (
    ACCESS_HINT,
    CREDENTIALS_HINT,
    PRECONDITION_FAILED,
    RANGE_NOT_SATISFIABLE,
    Meaning,
    ObjectErrors,
    meaning_of_status,
    one_line,
)

__all__ = ["S3Errors", "code_of", "meaning_of_s3_error"]

_REGION_HINT = "give the bucket's region"
_TRANSIENT_CODES = (
    "BadDigest",  # damaged on the way, as the store noticed
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
            StorageAccessError, "the store does not know this access key", CREDENTIALS_HINT
        ),
        "SignatureDoesNotMatch": Meaning(
            StorageAccessError, "the secret key is not that of the access key", CREDENTIALS_HINT
        ),
        "ExpiredToken": Meaning(
            StorageAccessError, "the credentials have expired", "sign in again, or renew them"
        ),
        "RequestTimeTooSkewed": Meaning(
            StorageAccessError, "the clock of this machine is wrong", "set it by a time server"
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


class S3Errors(ObjectErrors):
    """A context in which boto3's errors become the ``StorageError`` that they mean."""

    __slots__ = ()

    def __init__(self, action: str) -> None:
        super().__init__(meaning_of_s3_error, action)


def code_of(error: boto.ClientError) -> str:
    """The store's own word for what is wrong, such as ``NoSuchKey``; for a reply without a body it
    is the HTTP status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def meaning_of_s3_error(error: BaseException) -> Meaning | None:
    """What ``error`` means, or None if it is neither boto3's nor the network's."""
    if isinstance(error, boto.ClientError):
        return _meaning_of_reply(error)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return Meaning(StorageAccessError, "no credentials were found", CREDENTIALS_HINT)
    if isinstance(error, boto.ProfileNotFound):
        return Meaning(StorageAccessError, one_line(str(error)), "see ~/.aws/config")
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Meaning(
            StorageAccessError,
            f"the credentials could not be got ({type(error).__name__})",
            "sign in again (aws sso login), or give others",
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
            "the store's certificate is not one that this machine trusts",
            "set AWS_CA_BUNDLE to the certificate of its authority",
        )
    if isinstance(error, _NETWORK_ERRORS):
        return Meaning(
            TransientStorageError, f"the connection to the store failed ({type(error).__name__})"
        )
    if isinstance(error, ResponseParserError | boto.PaginationError):
        return Meaning(TransientStorageError, "what came in reply is not of an S3 store")
    if isinstance(error, boto.BotoCoreError):
        return Meaning(StorageError, one_line(str(error)))
    return None


def _meaning_of_reply(error: boto.ClientError) -> Meaning:
    code = code_of(error)
    said = one_line(str(error.response.get("Error", {}).get("Message", "")))
    if code in _CODES:
        return _CODES[code]
    told = f"the store said {code}" + (f": {said}" if said and said != code else "")
    if code in _TRANSIENT_CODES:
        return Meaning(TransientStorageError, told)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if not status:
        return Meaning(StorageError, told)
    meaning = meaning_of_status(status)
    if code.isdigit():
        return meaning
    hint = ACCESS_HINT if meaning.kind is StorageAccessError else meaning.hint
    return Meaning(meaning.kind, told, hint)
