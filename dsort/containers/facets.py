"""The facets of containers: features of some formats. A container without a feature has None in its
attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:  # the registry is read with every spec, and works without numpy
    from dsort.containers.base import Container
    from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt32s
    from dsort.data.members import MemberTable


class CompressedPayloads(Struct, frozen=True):
    """Payloads that may be compressed in the shard, with CRC-32s. A payload that is taken out of
    its shard is compared with its CRC-32.

    ``decompressed(members, row, pieces)``: returns the payload of a compressed row (see
    ``MemberTable``), a part of bounded size at a time. ``pieces``: the bytes of the payload in the
    shard; if these are invalid, the function raises ``ValueError`` with the reason, at the latest
    after the last part. ``checksum(members, row)``: returns the CRC-32 of a payload that is stored
    unchanged, None if the shard does not have it. ``checksums(members)``: returns (rows, CRC-32s),
    shape ``(rows,)`` each, of the members that are stored unchanged and have a CRC-32 in the
    shard."""

    decompressed: Callable[[MemberTable, int, Iterable[memoryview | bytes]], Iterator[bytes]]
    checksum: Callable[[MemberTable, int], int | None]
    checksums: Callable[[MemberTable], tuple[Int64s, Int64s]]


class Seals(Struct, frozen=True):
    """Each record ends in a seal of ``size_bytes``: a checksum of the bytes before it, without the
    first ``skips_bytes``. The checksum is cheaper to make when the record is copied, because the
    bytes of the record are then in the processor's cache.

    ``checksum``: returns the checksum after a piece of a record, given the checksum before it, at
    first 0. ``of``: returns the seals, shape ``(n, size_bytes)``, given their checksums."""

    size_bytes: int
    skips_bytes: int
    checksum: Callable[[memoryview | bytes, int], int]
    of: Callable[[UInt32s], UInt8s]


class Hop(NamedTuple):
    """What a reader that passes over payload sees in one header: where the next header begins, and
    the name of the member, which is b"" if the header only extends the next one."""

    next_at: int
    name: bytes


class Hops(Struct, frozen=True):
    """Headers whose first ``header_bytes`` show where the next header is. ``read``: returns what
    the header in these bytes shows; None if the bytes are no header. The result of ``read`` is a
    guess, for reading ahead, and is not checked further."""

    header_bytes: int
    read: Callable[[bytes, int], Hop | None]


class Overwriting(Struct, frozen=True):
    """Names in the last ``block_bytes`` of the headers, which can be overwritten without a change
    of length.

    ``fits(header_bytes, names, read)``: returns which members can get these ``names``, shape
    ``(n,)``; ``header_bytes`` are the lengths of their headers, and ``read`` returns the headers of
    some rows. ``write(blocks, names)``: overwrites the names in the last blocks of the headers of
    each member, one after the other, in place."""

    block_bytes: int
    fits: Callable[[Int64s, BytesColumn, Callable[[Int64s], BytesColumn]], Bools]
    write: Callable[[UInt8s, BytesColumn], None]


class Names(Struct, frozen=True):
    """Names in the headers of members. The headers of a member are all bytes before its payload.

    ``renamed(headers, names)``: returns the headers, each with the name in the same row;
    ``ValueError`` for a text that cannot be a name. ``other_of``: returns the name that some
    readers see in the given headers instead of the scanned name; b"" if all readers see the same.
    ``target_of``: returns the target of the symbolic link with the given headers. ``retargeted``:
    returns the given headers of a link, with another target."""

    renamed: Callable[[BytesColumn, BytesColumn], BytesColumn]
    other_of: Callable[[bytes], bytes] = lambda headers: b""
    target_of: Callable[[bytes], bytes] = lambda headers: b""
    retargeted: Callable[[bytes, bytes], bytes] = lambda headers, target: headers
    overwriting: Overwriting | None = None

    @staticmethod
    def beside() -> Names:
        """The names of members whose headers hold no names. New names leave the headers
        unchanged."""
        return Names(lambda headers, names: headers)


class Entries(Struct, frozen=True):
    """What the end of a shard lists of its members. ``renewed(headers, entries)``: returns the
    entries of members that get new headers (a new name, another target of a link), given the
    previous entries."""

    renewed: Callable[[BytesColumn, BytesColumn], BytesColumn]


class Head(Struct, frozen=True):
    """The bytes of an output shard before its first member, for a container with a schema.
    ``size_bytes``: returns the length of the head, given the number of records of its shard.
    ``of``: returns the head, given the stored bytes of each record, shape ``(records,)``.
    ``shard_bytes_max``: the longest shard that a head can describe."""

    size_bytes: Callable[[int], int]
    of: Callable[[Int64s], bytes]
    shard_bytes_max: int


class OutputFile(Struct, frozen=True):
    """An output shard as it is stored. ``name``: in its directory. ``xxh3``: the checksum of the
    file, in hexadecimal digits. ``container_bytes``: the length of the decoded file."""

    name: str
    records: int
    payload_bytes: int
    container_bytes: int
    file_bytes: int
    xxh3: str


class ShardIndex(Struct, frozen=True):
    """The file ``name`` that readers need beside the output shards of one directory. ``of``:
    returns the bytes of the file, given the output shards in their order.

    ``codecs``: the suffixes of the codecs that the index can record as the compression of a shard.
    ``compressed``: returns the container for shards with one of these suffixes. That container
    equals the plain one, because their records are the same."""

    name: str
    of: Callable[[Sequence[OutputFile]], bytes]
    codecs: tuple[str, ...] = ()
    compressed: Callable[[str], Container] | None = None


class Schemas(Struct, frozen=True):
    """Schemas: descriptions that all records of a shard share. ``Container.with_schema`` receives
    one.

    ``of_members``: returns the schema of converted records whose members have these extensions,
    sorted. ``difference(schema, other)``: returns how the schema ``other`` of a shard differs, in
    words that follow the name of the shard ("has no column a"). ``file``: the name of the file in a
    directory of input shards that has their schema, if the shards do not have it themselves.
    ``in_file``: returns the schema in such a file; ``ValueError`` with the reason for an invalid
    file."""

    of_members: Callable[[Sequence[str]], str]
    difference: Callable[[str, str], str]
    file: str = ""
    in_file: Callable[[bytes], str] = bytes.decode


class Payloads(Protocol):
    """The payloads of a bare member table. Payloads may be read more than once, in any order.

    ``are_sealed_later``: whether the seals of the records are made when the records are copied.
    ``packed`` then leaves room for the seals (see ``Container.seals``), and the records that it
    makes begin with a literal; records that are moved unchanged do not. ``shard_bytes``: the length
    of the shard in which the payloads are."""

    @property
    def are_sealed_later(self) -> bool: ...

    @property
    def shard_bytes(self) -> int: ...

    def pieces(self, row: int) -> Iterator[memoryview | bytes]:
        """The payload of a row, from first to last byte, in pieces of bounded size. Each piece is
        valid until the next one."""

    def each(self, rows: Int64s) -> Iterator[Iterable[memoryview | bytes]]:
        """Yield :meth:`pieces` of each of ``rows``, in order. The pieces of a row are valid until
        those of the next row are requested."""

    def checksums(
        self, rows: Int64s, update: Callable[[memoryview | bytes, int], int], begun: UInt32s
    ) -> UInt32s:
        """The checksum of each of ``rows``, shape ``(n,)``, continued from the checksum in
        ``begun``. ``update``: returns the checksum after some bytes, given the checksum before
        them."""
