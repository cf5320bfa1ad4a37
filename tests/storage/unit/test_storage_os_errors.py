"""Each way in which the operating system fails means one thing to the user, reported by one
table."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from dsort.errors import (
    DsortError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from dsort.storage.directory.files import StorageErrors, storage_error_of


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
    assert ("1,234,567 bytes were needed" in str(caught.value)) == (kind is StorageFullError)
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
