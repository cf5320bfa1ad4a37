"""Test shards of all containers: random payload under unique keys, with the same bytes for the same
recipe."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.registry import codec_of, container_of
from dsort.containers.tar.container import Tar, TarFormat
from dsort.data.columns import BytesColumn, Int64s, UInt32s
from dsort.data.members import MemberKind, MemberTable, PlacedEntries, PlacedEntry
from dsort.data.records import form_records
from dsort.errors import NamesTakenError
from dsort.naming.extensions import DEFAULT_EXTENSION
from dsort.naming.names import archive_extension
from dsort.results.layout import generated_prefix
from dsort.results.report import Event, PhaseDone, Progress
from dsort.workers.encoder import encoded_pieces

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket

WRITE_BYTES_MAX = 4 << 20
MODIFIED_AT_S = 1_700_000_000


class ShardRecipe(Struct, frozen=True):
    """The content of each shard: ``records`` records with one member for each of ``extensions``;
    empty: one extension, which suits the container."""

    records: int = 5
    member_bytes: int = 1024
    extensions: tuple[str, ...] = ()
    tar_format: TarFormat = "ustar"
    seed: str = "0"


def generate_shards(
    bucket: Bucket,
    names: Sequence[str],
    recipe: ShardRecipe,
    *,
    overwrite: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> int:
    """Write one shard under each of ``names``; returns the number of bytes written.

    Without ``overwrite``, ``NamesTakenError`` if a name is taken: then nothing is written.
    """
    bucket.create()
    if not overwrite:
        _refuse_taken(bucket, names)
    tell = on_event or (lambda event: None)
    prefix = generated_prefix(uuid.uuid4().hex)
    began_s = monotonic()
    written = 0
    try:
        for ordinal, name in enumerate(names):
            written += _write_shard(bucket, f"{prefix}{ordinal}", name, ordinal, recipe, overwrite)
            records = recipe.records * (ordinal + 1)
            tell(
                Progress(
                    job_id="",
                    phase="generate",
                    shards_done=ordinal + 1,
                    shards_total=len(names),
                    records_done=records,
                    bytes_done=written,
                    bytes_total=0,
                    elapsed_s=monotonic() - began_s,
                )
            )
        bucket.make_durable()
    finally:
        bucket.discard(prefix, names=names)
    records = recipe.records * len(names)
    tell(PhaseDone("", "generate", monotonic() - began_s, len(names), records, written))
    return written


def shard_pieces(recipe: ShardRecipe, name: str, ordinal: int) -> Iterator[bytes]:
    """The bytes of the shard ``name``, the ``ordinal``-th of its set, piece by piece.

    A key is the record's number in the whole set, in at least six digits: unique, and easy to
    follow through a shuffle.
    """
    container, stored_bytes = _container(name, recipe.tar_format), 0
    members = _members(recipe, container, name, ordinal)
    if container.is_columnar:
        yield from table_pieces(name, list(members))
        return
    encode = container.encode
    if not encode:
        yield from packed_pieces(container, list(members))[1]
        return
    placed: list[PlacedEntry] = []
    for member in members:
        pieces, entry = encode(member.key + member.extension, member.payload)
        yield from pieces
        if container.entries:
            placed.append((stored_bytes, entry))
        stored_bytes += sum(map(len, pieces))
    yield container.end(PlacedEntries.of(placed), stored_bytes)


def extensions_of(recipe: ShardRecipe, container: Container) -> tuple[str, ...]:
    """The extensions of the members of each record of ``recipe``, in a shard of ``container``."""
    return recipe.extensions or (getattr(container, "member_extension", b".test").decode(),)


def _members(
    recipe: ShardRecipe, container: Container, name: str, ordinal: int
) -> Iterator[SyntheticMember]:
    source = random.Random(f"{recipe.seed}/{name}")
    extensions = extensions_of(recipe, container)
    for record in range(recipe.records):
        key = f"{ordinal * recipe.records + record:06d}"
        for extension in extensions:
            payload = source.randbytes(recipe.member_bytes)
            if container.begins_bare:  # a line of text, made of the payload
                text = payload.hex()[: recipe.member_bytes]
                is_json = extension == ".json"
                payload = (json.dumps({"key": key, "text": text}) if is_json else text).encode()
            yield SyntheticMember(key.encode(), extension.encode(), payload)


def _container(name: str, tar_format: TarFormat) -> Container:
    container = container_of(name)
    if container is not container_of(DEFAULT_EXTENSION):
        return container
    # Only a pax header can hold a fraction of a second, so each member gets such a header.
    return Tar(tar_format, MODIFIED_AT_S + (0.5 if tar_format == "pax" else 0))


def _write_shard(
    bucket: Bucket, token: str, name: str, ordinal: int, recipe: ShardRecipe, overwrite: bool
) -> int:
    offset = waiting_bytes = 0
    waiting: list[bytes] = []
    with bucket.stage(token, name=name) as staged:
        for piece in _stored_pieces(recipe, name, ordinal):
            waiting.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes >= WRITE_BYTES_MAX:
                staged.write_at(offset, waiting)
                offset += waiting_bytes
                waiting, waiting_bytes = [], 0
        staged.write_at(offset, waiting)
        staged.sync()
        receipt = staged.finish()
    bucket.publish(token, name, overwrite=overwrite, receipt=receipt)
    return offset + waiting_bytes


def _stored_pieces(recipe: ShardRecipe, name: str, ordinal: int) -> Iterator[bytes]:
    pieces = shard_pieces(recipe, name, ordinal)
    codec = codec_of(name)
    return encoded_pieces(codec, codec.default_level, pieces) if codec else pieces


def _refuse_taken(bucket: Bucket, names: Sequence[str]) -> None:
    wanted = set(names)
    # All names lie between the smallest and the largest, so all have the prefix of these two.
    both = zip(min(names), max(names), strict=False)
    common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], both))
    taken = [found.name for found in bucket.list(common) if found.name in wanted]
    if taken:
        raise NamesTakenError(
            f"{len(taken)} of the {len(names)} shards are in {bucket.uri} already, "
            f"the first is {taken[0]}",
            hint="use another name, or --overwrite to replace them",
        )


class SyntheticMember(Struct, frozen=True):
    """A member of a record; ``extension`` with its dot."""

    key: bytes
    extension: bytes
    payload: bytes


class _Payloads(Struct, frozen=True):
    """See ``containers.base.Payloads``."""

    are_sealed_later, shard_bytes = False, 0
    payloads: Sequence[bytes]

    def pieces(self, row: int) -> Iterator[memoryview | bytes]:
        yield self.payloads[row]

    def each(self, rows: Int64s) -> Iterator[Iterable[memoryview | bytes]]:
        for row in rows.tolist():
            yield (self.payloads[row],)

    def checksums(
        self, rows: Int64s, update: Callable[[memoryview | bytes, int], int], begun: UInt32s
    ) -> UInt32s:
        found = map(update, map(self.payloads.__getitem__, rows.tolist()), begun.tolist())
        return np.fromiter(found, np.uint32, len(rows))


def packed_pieces(
    container: Container, members: Sequence[SyntheticMember]
) -> tuple[str, Iterator[bytes]]:
    """(the schema of the records, the bytes of a shard that has them). ``ConversionError`` for a
    record that the container cannot hold."""
    payloads = [each.payload for each in members]
    count, nowhere = len(members), np.full(len(members), -1, np.int64)
    bare = MemberTable(
        names=BytesColumn.of([each.key + each.extension for each in members]),
        kind=np.full(count, MemberKind.FILE, np.uint8),
        payload_start=nowhere,
        payload_bytes=np.fromiter(map(len, payloads), np.int64, count),
        range_start=nowhere,
        range_length=np.zeros(count, np.int64),
        literals=dict(enumerate(payloads)),
    )
    records = form_records(bare, "keep")
    assert container.packed is not None
    packed = container.packed(bare, records, _Payloads(payloads))
    stored_bytes = records.stored_as(packed).stored_bytes
    made = container.with_schema(packed.own.schema)

    def pieces() -> Iterator[bytes]:
        if made.head:
            yield made.head.of(stored_bytes)
        for row in records.member_rows.tolist():
            yield packed.literals.get(row, b"")
            yield packed.tails.get(row, b"")
        yield made.end(PlacedEntries.of([]), int(stored_bytes.sum()))

    return packed.own.schema, pieces()


def table_pieces(name: str, members: Sequence[SyntheticMember]) -> Iterator[bytes]:
    """The bytes of the Parquet or Arrow shard ``name``: a row for each record."""
    from dsort.containers.columnar.blocks import GroupRows
    from dsort.containers.columnar.columns import ColumnKinds, batch_of_records, schema_of_kinds
    from dsort.containers.columnar.writer import open_writer

    kinds = ColumnKinds()
    for each in members:
        kinds.add(each.extension.decode().removeprefix("."), each.payload)
    schema = schema_of_kinds(kinds.kinds)
    by_key = [(key, list(own)) for key, own in groupby(members, lambda each: each.key)]
    rows = [[(each.extension, each.payload) for each in own] for _, own in by_key]
    made: list[bytes] = []
    writer = open_writer(
        archive_extension(name) or "",
        schema,
        ContainerOptions(),
        lambda slices: made.extend(map(bytes, slices)),
    )
    batch = batch_of_records(name, schema, [key for key, _ in by_key], rows)
    writer.write(GroupRows(batch))
    writer.close()
    yield from made
