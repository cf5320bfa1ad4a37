"""The bucket or object that a request names, and whether the caller may use it.

A path is ``/v1/records/BUCKET/NAME``. The bucket is one part of it: a name as in a spec, or a URI
whose slashes are encoded (``s3%3A%2F%2Fdata%2Fimages``). The path that the web server decoded is
not used, because encoded slashes look like others in it. In ``/v1/shards/BUCKET`` the bucket is all
that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from dsort.errors import (
    ForbiddenError,
    NotFoundError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.service.config import ServiceConfig
from dsort.service.security.guard import check_bucket, check_object, policy_of_bucket
from dsort.service.security.policy import SpecPolicy
from dsort.service.security.spec_text import bounded_problems
from dsort.service.security.tokens import Identity
from dsort.service.security.uris import joined_uris
from dsort.settings import resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.spec.hints import FieldError
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef

PATH_BYTES_MAX: Final = 8192


class Asking(Struct, frozen=True):
    """The caller of a request for a place, and its terms. ``provider``: of the bucket, if the
    request names one. ``writes``: whether the place is an output of
    the request."""

    identity: Identity
    config: ServiceConfig
    policy: SpecPolicy
    provider: str = ""
    writes: bool = False


class ObjectPlace(Struct, frozen=True):
    """A bucket that the caller may use, or an object in it. ``uri``: of the bucket, as in tokens.
    ``name``: "" for the bucket itself. ``asked``: the bucket in the caller's terms."""

    ref: BucketRef
    uri: str
    name: str
    asking: Asking
    asked: str

    def opened(self) -> Bucket:
        """The bucket of the place. Links that lead out of a directory are never followed, because
        tokens were checked against that directory."""
        run = self.asking.config.run
        ref = resolve_ref(self.ref, run.settings)
        limits = run.settings.limits(ref)
        return open_bucket(ref, root=run.root, limits=limits, policy=self.policy())

    def policy(self, file_uris: Iterable[str] = ()) -> FetchPolicy:
        """The fetch policy with the places where the bucket's files may really be. ``file_uris``:
        other files that are read."""
        return policy_of_bucket(self.uri, self.asking.policy, file_uris)

    @property
    def client(self) -> str:
        """The name of the caller."""
        return self.asking.identity.name

    @property
    def shown_bucket(self) -> str:
        """The bucket for a message, in the terms of the caller: clients read from the text what is
        missing."""
        provider = self.asking.provider
        return f"{provider}://{self.asked}" if provider else self.uri

    @property
    def shown(self) -> str:
        """The same with the name of the object."""
        return f"{self.shown_bucket}/{self.name}"


def object_of_path(path: bytes, asking: Asking) -> ObjectPlace:
    """The object that the path of a request names, as it was sent, without the part before the
    bucket. ``SpecError`` if there can be none, ``ForbiddenError`` if the caller may not use the
    bucket, whether it exists or not."""
    bucket, slash, name = path.partition(b"/")
    if not slash or not name:
        raise SpecError("no object is named", hint="the path ends in /BUCKET/NAME")
    ref, asked = _ref(path, bucket, asking)
    found = _text(name, "name")
    if found.endswith("/") and not asking.writes:  # a directory's name
        place = replace(bucket_of_path(bucket, asking), name=found)
        raise NotFoundError(f"there is no object {place.shown}")
    uri = check_object(ref, found, asking.policy)
    _allow(uri, asking)
    return ObjectPlace(ref, uri, found, asking, asked)


def bucket_of_path(path: bytes, asking: Asking) -> ObjectPlace:
    """The bucket that the path of a request names; errors as for ``object_of_path``."""
    ref, asked = _ref(path, path, asking)
    uri = check_bucket(ref, asking.policy)
    _allow(uri, asking)
    return ObjectPlace(ref, uri, "", asking, asked)


def _ref(path: bytes, bucket: bytes, asking: Asking) -> tuple[BucketRef, str]:
    if len(path) > PATH_BYTES_MAX:
        raise SpecError(f"the path has more than {PATH_BYTES_MAX:,} bytes")
    ais_is_there = asking.config.run.settings.ais_is_there
    text = _text(bucket, "bucket")
    given: object = {"name": text, "provider": asking.provider} if asking.provider else text
    with bounded_problems():
        try:
            return parse_bucket(given, ais_is_there=ais_is_there), text
        except FieldError as error:
            problems = [replace(each, path="bucket") for each in error.problems]
            raise SpecError(problems) from None
        except ValueError as error:
            raise SpecError([SpecProblem("bucket", str(error))]) from None


def _allow(uri: str, asking: Asking) -> None:
    identity = asking.identity
    may = identity.may_write if asking.writes else identity.may_read
    if not may(joined_uris([uri])):
        what = "output" if asking.writes else "input"
        raise ForbiddenError(
            f"the token of {identity.name} is not for the {what} {uri}",
            hint="`dsort token ls` shows what each token is for",
        )


def _text(part: bytes, field: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise SpecError([SpecProblem(field, "is not UTF-8")]) from None


def sent_path(request: HTTPConnection) -> bytes:
    """The path of a request as it was sent, without decoding."""
    path: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return path.partition(b"?")[0]


@contextmanager
def missing(place: ObjectPlace) -> Iterator[None]:
    """Turns the error of a missing object or bucket into a 404."""
    try:
        yield
    except ObjectNotFoundError:
        if not place.name:
            raise NotFoundError(f'bucket "{place.shown_bucket}" does not exist') from None
        raise NotFoundError(f"there is no object {place.shown}") from None
