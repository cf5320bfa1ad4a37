"""Which object of which bucket a request is about, and whether the caller may have it.

A path is ``/v1/objects/BUCKET/NAME``. The bucket is one part of it: a name as in a spec, or a URI
whose slashes are encoded (``s3%3A%2F%2Fdata%2Fimages``); AIStore's clients send a plain name and
``provider``. So what the web server decoded is not looked at: it does not tell these slashes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote_to_bytes

from dsort.errors import ForbiddenError, SpecError, SpecProblem
from dsort.service.config import ServiceConfig
from dsort.service.security.guard import SpecPolicy, bounded_problems, check_object
from dsort.service.security.tokens import Identity
from dsort.service.security.uris import joined_uris
from dsort.settings import resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.spec.hints import FieldError
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket, parse_address
from dsort.storage.ref import BucketRef

__all__ = ["ObjectPlace", "place_of_path"]

_PATH_BYTES_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """An object that the caller may read. ``uri``: of its bucket, as tokens have it."""

    ref: BucketRef
    uri: str
    name: str

    def opened(self, config: ServiceConfig, policy: SpecPolicy) -> Bucket:
        """Its bucket. Links that lead out of a directory are followed nowhere, for tokens were held
        against that directory."""
        settings, fetch = config.run.settings, policy.fetch_policy()
        if self.ref.is_directory:
            fetch = replace(fetch, roots=(parse_address(self.uri).path,), patterns=())
        ref = resolve_ref(self.ref, settings)
        return open_bucket(ref, root=config.run.root, limits=settings.limits(ref), policy=fetch)


def place_of_path(
    path: bytes, provider: str, identity: Identity, config: ServiceConfig, policy: SpecPolicy
) -> ObjectPlace:
    """The object that the path of a request names, as it was sent, without what is before the
    bucket. ``SpecError`` if there can be none, ``ForbiddenError`` if it is not for the caller,
    whether there is such a bucket or not."""
    bucket, slash, name = path.partition(b"/")
    if len(path) > _PATH_BYTES_MAX:
        raise SpecError(f"the path has more than {_PATH_BYTES_MAX:,} bytes")
    if not slash or not name:
        raise SpecError("no object is named", hint="/v1/objects/BUCKET/NAME")
    ais_is_there = config.run.settings.ais_is_there
    text = _text(bucket, "bucket")
    given: object = {"name": text, "provider": provider} if provider else text
    with bounded_problems():
        try:
            ref = parse_bucket(given, ais_is_there=ais_is_there)
        except FieldError as error:
            problems = [replace(each, path="bucket") for each in error.problems]
            raise SpecError(problems) from None
        except ValueError as error:
            raise SpecError([SpecProblem("bucket", str(error))]) from None
    found = _text(name, "name")
    uri = check_object(ref, found, policy)
    if not identity.may_read(joined_uris([uri])):
        raise ForbiddenError(
            f"the token of {identity.name} is not for the input {uri}",
            hint="`dsort token ls` shows what each token is for",
        )
    return ObjectPlace(ref, uri, found)


def _text(part: bytes, field: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise SpecError([SpecProblem(field, "is not UTF-8")]) from None
