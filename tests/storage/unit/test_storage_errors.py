"""What the operating system, boto3 and obstore raise becomes dsort's errors by one table each: what
may pass is transient, and neither a secret nor a URL gets into a message."""

from __future__ import annotations

import errno
import os
import pickle
import ssl

import botocore.exceptions as boto
import obstore.exceptions as obs
import pytest
import urllib3.exceptions

from dsort.errors import (
    DsortError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.storage.directory.files import StorageErrors, storage_error_of
from dsort.storage.objects import PreconditionError
from dsort.storage.obstore import ObstoreErrors
from dsort.storage.s3.replies import S3Errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EACCES, StorageAccessError),
        (errno.EPERM, StorageAccessError),
        (errno.EROFS, StorageAccessError),
        (errno.ENOENT, ObjectNotFoundError),
        (errno.ENOTDIR, ObjectNotFoundError),
        (errno.EXDEV, StorageError),
        (errno.EMFILE, StorageError),
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
    ],
)
def test_each_code_has_its_kind(code: int, kind: type[StorageError]) -> None:
    cause = OSError(code, os.strerror(code))
    with (
        pytest.raises(StorageError) as caught,
        StorageErrors("write a.tar", "file:///data", needed_bytes=1_234_567),
    ):
        raise cause
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause
    assert str(caught.value).startswith("cannot write a.tar in bucket file:///data: ")
    assert ("1,234,567 bytes" in str(caught.value)) == (kind is StorageFullError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.hint) == (str(caught.value), caught.value.hint)


def test_an_unknown_failure_keeps_the_words_of_the_system() -> None:
    assert "Input/output error" in str(storage_error_of(OSError(errno.EIO, ""), "read a", "b"))
    assert "what happened" in str(storage_error_of(OSError("what happened"), "read a", "b"))


@pytest.mark.parametrize("error", [StorageError("as it is"), KeyError("a"), KeyboardInterrupt()])
def test_other_errors_pass_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, StorageErrors("write a", "b"):
        raise error
    assert caught.value is error
    assert isinstance(error, DsortError) or caught.value.__cause__ is None


SIGNED = "http://h/b/a.tar?X-Amz-Signature=5ec2e7&X-Amz-Credential=AKIA5ec2e7"


def reply(code: str, status: int, message: str = "") -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "GetObject",
    )


def translated(error: BaseException) -> StorageError:
    with pytest.raises(StorageError) as caught, S3Errors("read a.tar in bucket s3://b"):
        raise error
    assert caught.value.message.startswith("cannot read a.tar in bucket s3://b: ")
    assert caught.value.__suppress_context__  # the library's own may hold a signed URL
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (reply("SlowDown", 503, "Please reduce your request rate."), TransientStorageError),
        (reply("InternalError", 500), TransientStorageError),
        (reply("InternalError", 200), TransientStorageError),  # of CompleteMultipartUpload
        (reply("BadGateway", 502), TransientStorageError),
        (reply("503", 503), TransientStorageError),
        (reply("504", 504), TransientStorageError),
        (reply("TooManyRequests", 429), TransientStorageError),
        (reply("RequestTimeout", 400), TransientStorageError),
        (reply("IncompleteBody", 400), TransientStorageError),
        (reply("BadDigest", 400), TransientStorageError),
        (reply("ConditionalRequestConflict", 409), TransientStorageError),
        (reply("NoSuchKey", 404), ObjectNotFoundError),
        (reply("NoSuchBucket", 404), ObjectNotFoundError),
        (reply("404", 404), ObjectNotFoundError),
        (reply("AccessDenied", 403), StorageAccessError),
        (reply("403", 403), StorageAccessError),
        (reply("InvalidAccessKeyId", 403, "AKIA5ec2e7 is unknown"), StorageAccessError),
        (reply("SignatureDoesNotMatch", 403), StorageAccessError),
        (reply("ExpiredToken", 400), StorageAccessError),
        (reply("PreconditionFailed", 412), PreconditionError),
        (reply("412", 412), PreconditionError),
        (reply("InvalidRange", 416), PreconditionError),
        (reply("QuotaExceeded", 403), StorageFullError),
        (reply("StorageFull", 507), StorageFullError),
        (reply("NotImplemented", 501), StorageError),
        (reply("InvalidBucketName", 400), StorageError),
        (boto.EndpointConnectionError(endpoint_url=SIGNED), TransientStorageError),
        (boto.ConnectTimeoutError(endpoint_url=SIGNED), TransientStorageError),
        (boto.ReadTimeoutError(endpoint_url=SIGNED), TransientStorageError),
        (boto.ConnectionClosedError(endpoint_url=SIGNED), TransientStorageError),
        (boto.ProxyConnectionError(proxy_url=SIGNED), TransientStorageError),
        (boto.ResponseStreamingError(error=SIGNED), TransientStorageError),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), TransientStorageError),
        (urllib3.exceptions.ProtocolError(SIGNED), TransientStorageError),
        (urllib3.exceptions.IncompleteRead(1, 2), TransientStorageError),
        (ConnectionResetError(SIGNED), TransientStorageError),
        (TimeoutError(), TransientStorageError),
        (ssl.SSLEOFError(SIGNED), TransientStorageError),
        (boto.SSLError(endpoint_url="h", error="EOF occurred"), TransientStorageError),
        (boto.SSLError(endpoint_url="h", error="CERTIFICATE_VERIFY_FAILED"), StorageError),
        (boto.NoCredentialsError(), StorageAccessError),
        (boto.PartialCredentialsError(provider="env", cred_var="X"), StorageAccessError),
        (boto.ProfileNotFound(profile="absent"), StorageAccessError),
        (boto.SSOTokenLoadError(error_msg="x"), StorageAccessError),
        (boto.CredentialRetrievalError(provider="p", error_msg="x"), StorageAccessError),
        (boto.ParamValidationError(report="x"), StorageError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:60],
)
def test_each_error_of_boto_has_its_meaning(error: BaseException, kind: type[StorageError]) -> None:
    meant = translated(error)
    assert type(meant) is kind
    assert "5ec2e7" not in meant.message + meant.hint


def test_access_that_is_denied_comes_with_a_hint() -> None:
    for error in (reply("AccessDenied", 403), reply("403", 403), boto.NoCredentialsError()):
        assert "credentials" in translated(error).hint


def test_what_the_store_said_is_reported_on_one_line_without_queries() -> None:
    meant = translated(reply("Odd", 400, f"no\n  {SIGNED} there"))
    assert meant.message.endswith("the store reports Odd: no http://h/b/a.tar there")


@pytest.mark.parametrize("error", [KeyError("x"), StorageError("x"), KeyboardInterrupt()])
def test_what_is_no_error_of_boto3_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), S3Errors("read"):
        raise error


URL = "https://h/b/a?sig=5ec2e7"


def generic(text: str) -> obs.GenericError:
    return obs.GenericError(f"Generic GCS error: Error performing GET {URL} in 1ms - {text}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(URL), ObjectNotFoundError),
        (obs.PermissionDeniedError(URL), StorageAccessError),
        (obs.UnauthenticatedError(URL), StorageAccessError),
        (obs.AlreadyExistsError(URL), PreconditionError),
        (obs.PreconditionError(URL), PreconditionError),
        (obs.NotSupportedError(URL), StorageError),
        (generic("Server returned non-2xx status code: 503 Unavailable: x"), TransientStorageError),
        (generic("Server returned non-2xx status code: 429 Too Many"), TransientStorageError),
        (generic("Server returned non-2xx status code: 400 Bad Request"), StorageError),
        (generic("HTTP error: error sending request"), TransientStorageError),
        (generic("HTTP error: operation timed out"), TransientStorageError),
        (generic("error decoding response body"), TransientStorageError),
        (generic("Error performing token request"), StorageAccessError),
        (obs.GenericError("Generic MicrosoftAzure error: Account must be specified"),
         StorageAccessError),
        (generic("something new"), StorageError),
        (ConnectionResetError(URL), TransientStorageError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[-40:],
)  # fmt: skip
def test_each_error_of_obstore_has_its_meaning(
    error: BaseException, kind: type[StorageError]
) -> None:
    with pytest.raises(StorageError) as caught, ObstoreErrors("read a in bucket gs://b"):
        raise error
    assert type(caught.value) is kind
    assert caught.value.message.startswith("cannot read a in bucket gs://b: ")
    assert "5ec2e7" not in caught.value.message + caught.value.hint


def test_what_is_no_error_of_obstore_passes() -> None:
    with pytest.raises(KeyError), ObstoreErrors("read"):
        raise KeyError
