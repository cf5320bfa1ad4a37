"""What obstore raises becomes dsort's errors by one table, and no URL gets into a message."""

from __future__ import annotations

import obstore.exceptions as obs
import pytest

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.objects import PreconditionError
from dsort.storage.obstore import ObstoreErrors

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
def test_each_error_has_its_meaning(error: BaseException, kind: type[StorageError]) -> None:
    with pytest.raises(StorageError) as caught, ObstoreErrors("read a in bucket gs://b"):
        raise error
    assert type(caught.value) is kind
    assert caught.value.message.startswith("cannot read a in bucket gs://b: ")
    assert "5ec2e7" not in caught.value.message + caught.value.hint


def test_what_is_no_error_of_the_library_passes() -> None:
    with pytest.raises(KeyError), ObstoreErrors("read"):
        raise KeyError
