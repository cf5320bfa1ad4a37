"""Several objects of a bucket that one request removes: by their names, a template, or a prefix.

All names are checked before the first object is removed: if a request includes an object that a
running job needs, or a name that requests may not change, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from dsort.errors import SpecError, SpecProblem
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import check_object_name, is_internal
from dsort.service.database.engine import Database
from dsort.service.objects.in_use import refuse_in_use
from dsort.service.objects.listing import PageAsked
from dsort.service.objects.places import check_changed_name
from dsort.storage.bucket import Bucket

__all__ = ["REMOVED_MAX", "RemovalAsked", "remove_objects"]

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
