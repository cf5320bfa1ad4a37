"""Buckets that requests make and remove, and several objects of a bucket that one request removes:
by their names, a template, or a prefix.

Only directories under the data root are made and removed. All names are checked before the first
object is removed: if a request includes an object that a running job needs, or a name that requests
may not change, nothing is removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from dsort.errors import (
    ConflictError,
    ForbiddenError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import check_object_name, check_output_name, is_internal
from dsort.service.aistore.in_use import refuse_bucket_in_use, refuse_in_use
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.objects.listing import PageAsked
from dsort.service.objects.places import ObjectPlace, check_changed_name
from dsort.service.security.policy import SpecPolicy
from dsort.storage.addresses import parse_address
from dsort.storage.bucket import Bucket

__all__ = [
    "REMOVED_MAX",
    "RemovalAsked",
    "create_bucket",
    "remove_bucket",
    "remove_objects",
]

REMOVED_MAX: Final = 100_000
_RANGE_SIGNS: Final = "{}@%"


class RemovalAsked(Struct, frozen=True):
    """The objects to remove: ``names``, or those that ``template`` stands for. Without a range the
    template is a prefix; an empty one means all objects that are not hidden. ``flat``: False leaves
    out objects below a ``/`` behind the prefix."""

    names: Sequence[str] = ()
    template: str = ""
    flat: bool = True


def remove_objects(bucket: Bucket, uri: str, database: Database, asked: RemovalAsked) -> int:
    """Remove those of the objects that exist; returns their number. ``SpecError`` for more than
    ``REMOVED_MAX`` and for names that requests may not change, ``ConflictError`` for objects that a
    running job needs, ``StorageError``."""
    names = [*islice(_names(bucket, asked), REMOVED_MAX + 1)]
    if len(names) > REMOVED_MAX:
        hint = "remove them in several requests, or the bucket with all that is in it"
        text = f"more than {REMOVED_MAX:,} objects"
        raise SpecError([SpecProblem("template" if not asked.names else "objnames", text, hint)])
    refuse_in_use(database, uri, names, lambda name: True)
    for name in names:
        bucket.delete(name)
    return len(names)


def _names(bucket: Bucket, asked: RemovalAsked) -> Iterator[str]:
    template = "" if asked.template == "*" else asked.template
    if not asked.names and not any(sign in template for sign in _RANGE_SIGNS):
        yield from _listed(bucket, template.removesuffix("*"), flat=asked.flat)
        return
    try:
        named = asked.names or islice(parse_input_template(template), REMOVED_MAX + 1)
        wanted = dict.fromkeys(named)
        for name in wanted:
            check_object_name(name)
            check_changed_name(name)
    except ValueError as error:
        raise SpecError(
            [SpecProblem("objnames" if asked.names else "template", str(error))]
        ) from None
    if len(wanted) > REMOVED_MAX:
        yield from wanted
        return
    there = bucket.stat_many([*wanted])
    yield from (name for name in wanted if name in there)


def _listed(bucket: Bucket, prefix: str, *, flat: bool) -> Iterator[str]:
    PageAsked(prefix=prefix).check()
    for info in bucket.list(prefix):
        rest = info.name.removeprefix(prefix)
        is_hidden = any(part.startswith(".") for part in info.name.split("/"))
        if not is_internal(info.name) and not is_hidden and (flat or "/" not in rest):
            yield info.name


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
    """Remove the directory ``place`` with everything in it, as AIStore's ``destroy-bck`` does.
    ``ConflictError`` if a job uses it,
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
