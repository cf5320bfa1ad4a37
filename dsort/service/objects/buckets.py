"""Buckets of the service: listing, making and removing them.

Only directories under the data root are made and removed. A directory is removed with everything in
it, as AIStore's ``destroy-bck`` does, unless a job uses it or the service keeps files of its own
there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from dsort.errors import (
    ConflictError,
    ForbiddenError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
)
from dsort.naming.names import check_output_name
from dsort.naming.patterns import has_wildcard
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.objects.in_use import refuse_bucket_in_use
from dsort.service.objects.places import ObjectPlace
from dsort.service.security.guard import check_bucket
from dsort.service.security.policy import SpecPolicy
from dsort.service.security.tokens import Identity
from dsort.storage.addresses import parse_address
from dsort.storage.ref import BucketRef

__all__ = ["BUCKETS_MAX", "create_bucket", "known_buckets", "remove_bucket"]

BUCKETS_MAX: Final = 10_000


def known_buckets(identity: Identity, config: ServiceConfig, policy: SpecPolicy) -> list[str]:
    """The URIs of buckets that the caller may read: directories in the data root, and buckets that
    the operator has allowed without a wildcard. Buckets of a store that match an allowed pattern
    are not listed."""
    found = (uri for uri in _all_buckets(config, policy) if identity.may_read(uri))
    return [*islice(dict.fromkeys(found), BUCKETS_MAX)]


def _all_buckets(config: ServiceConfig, policy: SpecPolicy) -> Iterator[str]:
    root = config.run.root
    names = sorted(each.name for each in os.scandir(root) if each.is_dir()) if root.is_dir() else ()
    refs = [BucketRef("", name) for name in names if not name.startswith(".")]
    for pattern in policy.allow:
        if not has_wildcard(pattern):
            refs.append(parse_address(pattern))
    fetch = policy.fetch_policy()
    for ref in refs:
        try:
            yield check_bucket(ref, policy, fetch)
        except (ForbiddenError, SpecError):  # a directory of the service itself, or behind a link
            continue


def create_bucket(place: ObjectPlace, config: ServiceConfig, policy: SpecPolicy) -> None:
    """Make the directory ``place``. ``ConflictError`` if it exists, ``SpecError`` for an invalid
    name, ``NotSupportedError`` in a store."""
    _refuse_store(place)
    for each in place.ref.path.strip("/").split("/"):
        try:
            check_output_name(each)
        except ValueError as error:
            raise SpecError(f"bucket {error}") from None
    bucket = place.opened(config, policy)
    if bucket.exists():
        raise ConflictError(f'bucket "{place.shown_bucket}" already exists')
    try:
        bucket.create()
    except ObjectNotFoundError as error:  # an object is in the way
        raise ConflictError(error.message) from None


def remove_bucket(
    place: ObjectPlace, database: Database, config: ServiceConfig, policy: SpecPolicy
) -> None:
    """Remove the directory ``place`` with everything in it. ``ConflictError`` if a job uses it,
    ``ForbiddenError`` outside the data root and where the service keeps files of its own in it,
    ``NotSupportedError`` in a store, ``ObjectNotFoundError``."""
    _refuse_store(place)
    directory = Path(parse_address(place.uri).path)
    root = Path(os.path.realpath(config.run.root))
    written = root / place.ref.path if not place.ref.scheme else Path(place.ref.path)
    if root not in directory.parents or Path(os.path.normpath(written)) != directory:
        raise ForbiddenError(
            f"{place.uri} is no directory of its own under the data root",
            hint="its operator can remove it",
        )
    if any(directory in Path(own).parents for own in policy.fetch_policy().denied):
        raise ForbiddenError(
            f"the service keeps files of its own in {place.uri}",
            hint="its operator can remove the bucket",
        )
    refuse_bucket_in_use(database, place.uri)
    if not place.opened(config, policy).exists():
        raise ObjectNotFoundError(f"there is no bucket {place.shown_bucket}")
    try:
        shutil.rmtree(directory)
    except OSError as error:  # a file was created there meanwhile, or belongs to another user
        raise ConflictError(
            f"the bucket {place.asked} could not be removed whole: {error.strerror}",
            hint="see what is left in it, and remove it again",
        ) from None


def _refuse_store(place: ObjectPlace) -> None:
    if not place.ref.is_directory:
        raise NotSupportedError(
            f"{place.uri} is a bucket of a store", hint="make and remove it in the store itself"
        )
