"""The records of a view with the ranges of input shards that have the content of their members."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from dsort.errors import InputError
from dsort.naming.names import readable
from dsort.reading.places import ShardPlace
from dsort.reading.record_index import RecordIndex
from dsort.reading.shard import ALL_BYTES, Shard
from dsort.reading.view import Extents, ViewBucket
from dsort.storage.registry import parse_address

__all__ = ["MemberRange", "ViewRecord", "get_batch_requests", "view_of_places", "view_records"]

_AIS: Final = "ais"
_TAR: Final = ".tar"


class MemberRange(Struct, frozen=True):
    """Bytes of the member ``member``: ``length`` bytes of input shard number ``shard`` from
    ``offset`` on, or the bytes ``literal``, which no input has, if ``shard`` is -1."""

    member: bytes
    shard: int
    offset: int
    length: int
    literal: bytes = b""


class ViewRecord(Struct, frozen=True):
    """A record of a view. ``position``: its number in the view, from 0 on."""

    position: int
    key: str
    ranges: tuple[MemberRange, ...]

    def to_json(self, view: ViewBucket) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "position": self.position,
            "key": readable(self.key.encode("utf-8", "surrogateescape")),
            "ranges": [_range_json(each, view) for each in self.ranges],
        }


def _range_json(part: MemberRange, view: ViewBucket) -> dict[str, Any]:
    member = readable(part.member)
    if part.shard < 0:
        return {"member": member, "base64": b64encode(part.literal).decode()}
    shard = view.input_uri(part.shard)
    return {"member": member, "shard": shard, "offset": part.offset, "bytes": part.length}


def view_of_places(places: Sequence[ShardPlace], what: str) -> ViewBucket:
    """The view to which the shards ``places`` belong. If the shards belong to no view, an
    ``InputError`` names ``what``."""
    view = places[0].bucket if places else None
    if not isinstance(view, ViewBucket):
        text = f"{what} is no view: it holds shards"
        raise InputError(text, hint="output: view, or --view, makes a view")
    return view


def view_records(
    view: ViewBucket, places: Iterable[ShardPlace], first: int = 0
) -> Iterator[ViewRecord]:
    """The records of the shards ``places`` of ``view``, from number ``first`` on. Only the headers
    of members are read, and the index of one shard is in memory at a time."""
    position = 0
    for place in places:
        count = place.records or 0
        if first < position + count:
            yield from _of_shard(view, place, position, max(0, first - position))
        position += count


def _of_shard(
    view: ViewBucket, place: ShardPlace, position: int, first: int
) -> Iterator[ViewRecord]:
    with Shard(place) as shard:
        index = shard.stored_index
        if index is None:
            text = f"members of {place.name} are compressed: no range of an input has their content"
            raise InputError(text, hint="`dsort materialize` writes the shards of the view")
        extents = view.extents(place.name)
        for number in range(first, len(index)):
            files = range(*index.offsets[number : number + 2].tolist())
            ranges = (part for at in files for part in _ranges(shard, index, extents, at))
            yield ViewRecord(position + number, shard.keys[number], tuple(ranges))


def _ranges(shard: Shard, index: RecordIndex, extents: Extents, file: int) -> Iterator[MemberRange]:
    """The ranges that have the content of a file, in order."""
    name, start, size = index.names[file], int(index.start[file]), int(index.size[file])
    if start < 0 or not size:
        yield MemberRange(name, -1, 0, size, shard.read_file(file, 0, ALL_BYTES))
        return
    for input_shard, begin, length in extents.parts(start, size):
        literal = bytes(extents.literals[begin : begin + length]) if input_shard < 0 else b""
        yield MemberRange(name, input_shard, begin, length, literal)


def get_batch_requests(
    view: ViewBucket, records: Iterable[ViewRecord], size: int
) -> Iterator[dict[str, Any]]:
    """Requests of AIStore's GetBatch, each for ``size`` records. The response has the ranges in the
    order of the request; ``opaque`` is the name of the member. Members without bytes are left out:
    for AIStore a length of 0 means the whole object. ``InputError`` for an input outside AIStore,
    and for content that no input has."""
    left = iter(records)
    while some := [*islice(left, size)]:
        parts = [part for each in some for part in each.ranges if part.length]
        if parts:
            yield {"in": [_entry(part, view) for part in parts], "mime": _TAR}


def _entry(part: MemberRange, view: ViewBucket) -> dict[str, Any]:
    if part.shard < 0:
        text = f"the content of {readable(part.member)} is a range of no input"
        raise InputError(text, hint="use --jsonl, whose lines hold this content themselves")
    bucket, name = view.input_at(part.shard)
    scheme, _, _ = bucket.uri.partition("://")
    if scheme != _AIS:
        text = f"input {name} is in {bucket.uri}, which is no bucket of AIStore"
        hint = "make the view of ais://BUCKET, or use --jsonl"
        raise InputError(text, hint=hint)
    holder, _, prefix = parse_address(bucket.uri).path.partition("/")
    return {
        "objname": f"{prefix}/{name}" if prefix else name,
        "bucket": holder,
        "provider": _AIS,
        "start": part.offset,
        "length": part.length,
        "opaque": b64encode(part.member).decode(),
    }
