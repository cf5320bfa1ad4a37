"""The contract of a container format: bytes of a shard to members, and members to a shard.

To add a container, write a module with a child of :class:`Container` and add it to ``registry``.
A container turns the bytes of one shard into a ``MemberTable`` whose rows are byte ranges, writes
the headers of members that get a new name, and says what ends an output shard. It knows nothing of
buckets, paths, records or jobs; no other module knows how its shards are laid out.

An output shard is its head (most have none; it may say what all records have in common, their
*schema*), the stored bytes of its members, one after the other,
and then its end. A container whose end lists the members (a zip: its central directory) gives each
member an *entry* when it scans: what the end says of that member, apart from its place. Entries go
with their records through the plan; the end is built from them and from where the members lie.

Where inputs and outputs are of two containers, each input shard is converted as it is extracted:
its container makes a *bare* table (members whose stored bytes are their payload), and the
container of the outputs makes its own of that, with all that stands around payloads as literals
and tails. Payload stays what it is: ranges of the input shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # the registry is read with every spec, and need not load numpy for that
    from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt32s
    from dsort.data.entries import PlacedEntries
    from dsort.data.members import MemberTable, ScanNotes
    from dsort.data.records import FormedRecords

__all__ = [
    "Container",
    "ContainerOptions",
    "ForwardScanner",
    "Hop",
    "OddityKind",
    "OutputFile",
    "Payloads",
    "Scanner",
    "drive",
    "oddities_in",
    "refusal",
    "shortfall_in",
]


class Hop(NamedTuple):
    """What one header says to whoever passes over payload: where the next one begins, and the name
    of its member; b"" of a header that belongs to the next one."""

    next_at: int
    name: bytes


@dataclass(frozen=True, slots=True)
class OddityKind:
    """One thing that may be odd about a shard, and all that is said of it.

    ``note``: the attribute of the shard's ``ScanNotes`` that counts it: a number, or the rows that
    have it. A container with notes of its own makes a child of ``ScanNotes``.
    """

    note: str
    kind: str = ""  # what a job counts it as, in reports and manifests; "": not by itself
    warning: str = ""  # a job's warning, with {count} and {names}; "": it is counted silently
    by_shard: bool = False  # a job counts the shards that have it
    inspected: str = ""  # what `dsort inspect` calls it; "": not listed
    text: str = ""  # and says of it, behind the count
    shortfall: str = ""  # why members may be missing then, with {count}
    refused: str = ""  # what a shard is that `concatenated_shards: abort` refuses, with {archives}
    unless: str = ""  # another note: the shard has that, and this says no more


class Scanner(Protocol):
    """Reads the members of one shard from windows on its bytes: :func:`drive` feeds it. It may ask
    for the windows in any order: a zip may begin with its end."""

    @property
    def next_offset(self) -> int:
        """The first byte that the next window has to hold."""

    @property
    def window_bytes_min(self) -> int:
        """How many bytes the next window must hold at least."""

    @property
    def done(self) -> bool:
        """Whether no more windows are needed."""

    def feed(self, window: memoryview | bytes | UInt8s, offset: int) -> None:
        """Read on in ``window``, the bytes from ``offset`` on. ``CorruptShardError``."""

    def finish(self) -> MemberTable:
        """The members of the whole shard. ``CorruptShardError``."""


def drive(
    scanner: Scanner,
    size_bytes: int,
    read: Callable[[int, int], memoryview],
    *,
    window_bytes: int,
    align: int = 1,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Feed ``scanner`` what it asks for of a shard of ``size_bytes``, up to its end or ``until``.

    ``read(offset, size)`` gives a window. Windows have ``window_bytes`` where the scanner does not
    need more, and the shard goes on so far; they begin at multiples of ``align``.
    """
    while not scanner.done and not until():
        offset = scanner.next_offset // align * align
        needed = scanner.next_offset - offset + scanner.window_bytes_min
        size = min(max(window_bytes, needed), size_bytes - offset)
        if size <= 0:
            return
        scanner.feed(read(offset, size), offset)


@runtime_checkable
class ForwardScanner(Scanner, Protocol):
    """A scanner that tells of members before it has read the whole shard.

    No result depends on the bytes of a payload whose length ``plain_payload`` tells: a window need
    not have them."""

    def found(self, first: int) -> MemberTable:
        """The members from number ``first`` on of those that were read so far, with names, kinds,
        ranges and payloads alone. Nothing says yet whether the shard is whole."""

    def plain_payload(self, header: bytes) -> int | None:
        """How long the payload behind ``header`` is, the block at which an entry begins; None where
        that depends on more than this block."""


class Payloads(Protocol):
    """The payloads of a bare member table. They may be read more than once, in any order.

    ``are_sealed_later``: whether who copies the records asks for their seals: then ``packed``
    leaves room for these (``Container.seal_bytes``), and what it makes begins with a literal, as no
    record does that is moved as it is. ``shard_bytes``: how long the shard is that they are in."""

    @property
    def are_sealed_later(self) -> bool: ...

    @property
    def shard_bytes(self) -> int: ...

    def pieces(self, row: int) -> Iterator[memoryview | bytes]:
        """The payload of a row, from first to last byte, in pieces of bounded size. Each is valid
        until the next."""

    def each(self, rows: Int64s) -> Iterator[Iterable[memoryview | bytes]]:
        """:meth:`pieces` of each of ``rows``, in their order; each valid until the next."""

    def checksums(
        self, rows: Int64s, update: Callable[[memoryview | bytes, int], int], begun: UInt32s
    ) -> UInt32s:
        """The checksum of each of ``rows``, shape ``(n,)``, which goes on from that in ``begun``.
        ``update``: the checksum behind some bytes, from that before them."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """An output shard as it is stored. ``name``: in its directory. ``xxh3``: of all its bytes, in
    hexadecimal digits. ``container_bytes``: how long it is once it is decoded."""

    name: str
    records: int
    payload_bytes: int
    container_bytes: int
    file_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """What a job says of how shards are read and written; each container has use for some of it.

    ``key_field``: where a record's key stands, for containers that have no names of members: a JSON
    pointer, a feature, a column. "": records are numbered (see ``naming.names.position_key``).
    ``strip_final_newline``: payloads that become lines lose one line feed at their end.
    ``member_defaults``: (extension, payload) of members that a record gets if it lacks them.
    ``row_group_rows``, ``row_group_bytes``: how large the row groups of tables are at most, in rows
    and in bytes of their values. ``compression``: of columns; "": what suits the container.
    """

    key_field: str = ""
    strip_final_newline: bool = False
    member_defaults: tuple[tuple[str, bytes], ...] = ()
    row_group_rows: int | None = None
    row_group_bytes: int = 64 << 20
    compression: str = ""


class Container(ABC):
    """One container format. Instances are small, immutable and can be pickled: workers get one."""

    suffixes: tuple[str, ...]
    """The ends of shard names that mean this container."""

    oddities: tuple[OddityKind, ...] = ()
    """All that may be odd about a shard without making it unreadable."""

    lists_members: bool = False
    """Whether the end needs entries: then ``MemberTable.entries`` is not None."""

    is_of_members: bool = False
    """Whether a record is its members, one after the other, each with its own name: then one record
    can be put together of several."""

    is_columnar: bool = False
    """Whether records are rows of tables: jobs that write such shards move rows, not bytes."""

    plans_sizes: bool = True
    """Whether the size of an output shard is known before it is written. Where bytes are encoded on
    their way it is not, and is taken from what was written."""

    has_short_records: bool = False
    """Whether records may be of some tens of bytes: what is known of each weighs as much as the
    record then, and is ordered in small parts."""

    has_head: bool = False
    """Whether something stands before the first member: then ``head_bytes`` and ``head`` are asked
    for, and the sizes of all records of an output shard are gathered before it is begun."""

    begins_bare: bool = False
    """Whether a shard begins with a payload as it is, which may be anything: then its first bytes
    alone do not say that a codec is around the shard."""

    hop_bytes: int = 0
    """So many bytes of a header say where the next one is: then ``hop`` tells it, and a scan reads
    headers alone. 0: a scan reads all there is."""

    shard_bytes_max: int = 0
    """How long a shard may be; 0: as long as can be."""

    may_compress: bool = False
    """Whether a shard may have compressed members: whoever reads their payloads decompresses."""

    has_checksums: bool = False
    """Whether shards say the CRC-32 of payloads: then ``checksum`` tells it, and whoever takes a
    payload out of its shard compares it."""

    name_block_bytes: int = 0
    """How long the last block of a member's headers is, if a name can be written over another there
    without making them longer or shorter; 0: it cannot."""

    index_codecs: tuple[str, ...] = ()
    """The suffixes of codecs that ``directory_files`` can say a shard is compressed by."""

    schema_file: str = ""
    """The file in a directory of input shards that says their schema, if they do not say it
    themselves: then ``schema_in`` reads it."""

    strips_final_newline: bool = False
    """Whether a payload of another container loses one line feed at its end before ``packed`` gets
    it, as the spec asks for."""

    needs_like_members: bool = False
    """Whether all records of a shard must have members of the same extensions."""

    member_defaults: tuple[tuple[str, bytes], ...] = ()
    """(extension, payload) of the members that a record of another container gets before ``packed``
    gets it, if it lacks them, as the spec asks for."""

    packs_others: bool = False
    """Whether shards of other containers can be converted to this one: it has ``packed``."""

    keeps_keys: bool = False
    """Whether records of other containers keep their keys in ``__key__``, for they are in no
    names."""

    seal_bytes: int = 0
    """How long the *seal* of a record is: its last bytes, where these are a checksum of all others
    but the first ``seal_skips_bytes``. It is cheaper to make when the record is copied, out of the
    processor's cache. 0: records have none."""

    seal_skips_bytes: int = 0

    def with_options(self, options: ContainerOptions) -> Container:
        """The same container, reading and writing as ``options`` say."""
        return self

    def load(self) -> None:  # noqa: B027 - most need none
        """Load the libraries that it reads and writes by, which is done once before workers are
        forked."""

    def within(self, decoded_max: float) -> Container:
        """The same container, whose ``scanner`` refuses a shard that takes more than so many bytes
        once it is decoded while it is scanned, or once its hard links are copies."""
        return self

    def with_codec(self, suffix: str) -> Container:
        """The same container, for shards that are compressed: ``suffix`` is one of
        ``index_codecs``. It equals what it is made of, for its records are the same."""
        return self

    def with_schema(self, schema: str) -> Container:
        """The same container, for shards of records that have ``schema`` in common."""
        return self

    def schema_in(self, data: bytes) -> str:
        """The schema in a ``schema_file``. ``ValueError`` says what is wrong with it."""
        raise NotImplementedError(f"{self.suffixes[0]} shards say their schema themselves")

    def schema_difference(self, schema: str, other: str) -> str:
        """How two schemas differ, in words that follow the name of a shard ("has no column a"):
        ``other`` is the one of that shard."""
        return "has another schema"

    def schema_of_members(self, extensions: Sequence[str]) -> str:
        """The schema of converted records whose members have these ``extensions``, sorted. Asked of
        containers that need like members."""
        raise NotImplementedError(f"{self.suffixes[0]} records may have any members")

    can_rename: bool = True
    """Whether a record can get another key: it is in the names of members. Else it stands in the
    record, or there is none."""

    @property
    def numbers_records(self) -> bool:
        """Whether record keys are but positions in a shard, as options and shards say no other: a
        record that moves gets another key."""
        return False

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        """What reads the shard ``shard``, which is ``size_bytes`` long."""

    def scan(self, shard: str, data: memoryview | bytes | UInt8s) -> MemberTable:
        """The members of a whole shard, whose bytes are ``data``. ``CorruptShardError``."""
        scanner = self.scanner(shard, len(data))
        view = memoryview(data)  # type: ignore[arg-type]
        drive(scanner, len(view), lambda offset, _: view[offset:], window_bytes=len(view))
        return scanner.finish()

    def hop(self, header: bytes, at: int) -> Hop | None:
        """What the header at byte ``at`` says, by its first ``hop_bytes``; None where there is
        none. A guess for whoever wants to read ahead: it is checked no further."""
        return None

    def checksums(self, members: MemberTable) -> tuple[Int64s, Int64s]:
        """(rows whose payload is stored as it is and whose CRC-32 the shard says, these CRC-32s),
        shape ``(rows,)`` each. Asked where ``has_checksums``."""
        raise NotImplementedError(f"{self.suffixes[0]} shards say no checksums")

    # -- conversion ------------------------------------------------------------------------------

    def decompressed(
        self, members: MemberTable, row: int, pieces: Iterable[memoryview | bytes]
    ) -> Iterator[bytes]:
        """The payload of a row that is compressed in the shard (see ``MemberTable``), in pieces of
        bounded size. ``pieces``: what the shard has of it. ``ValueError`` says what is wrong, at
        the latest behind the last piece."""
        raise NotImplementedError(f"{self.suffixes[0]} shards have no compressed members")

    def checksum(self, members: MemberTable, row: int) -> int | None:
        """The CRC-32 of the payload of a row, of a shard where it is stored as it is; None if the
        shard does not say."""
        return None

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        """What another container needs of a shard that was scanned as ``members``: the members that
        it holds, with their payloads alone (see ``MemberTable``). ``read``: bytes of the shard,
        from where and how many. ``CorruptShardError``."""
        from dsort.data.members import bare_table

        return bare_table(members)

    def seal_checksum(self, piece: memoryview | bytes, before: int) -> int:
        """The checksum that a seal is made of, behind a ``piece`` of its record; ``before``: the
        one before that, at first 0."""
        raise NotImplementedError(f"{self.suffixes[0]} records have no seals")

    def seals(self, checksums: UInt32s) -> UInt8s:
        """The seals of records with these ``checksums``, shape ``(n, seal_bytes)``."""
        raise NotImplementedError(f"{self.suffixes[0]} records have no seals")

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        """``members``, a bare table, with all that this container stores around the payloads of the
        ``records`` (literals and tails), and entries. ``ConversionError`` names a record that this
        container cannot hold."""
        raise NotImplementedError(f"{self.suffixes[0]} shards cannot be made of others")

    # -- headers: all bytes of a member before its payload ---------------------------------------

    @abstractmethod
    def renamed(self, headers: bytes, new_name: bytes) -> bytes:
        """The headers of one member, for the name ``new_name``. ``ValueError`` for no name."""

    def renamed_headers(self, headers: BytesColumn, names: BytesColumn) -> BytesColumn:
        """:meth:`renamed` of each row."""
        from dsort.data.columns import BytesColumn

        return BytesColumn.of(list(map(self.renamed, headers.tolist(), names.tolist())))

    def overwritable(
        self,
        header_bytes: Int64s,
        names: BytesColumn,
        read: Callable[[Int64s], BytesColumn],
    ) -> Bools:
        """Which members, whose headers are of ``header_bytes``, can get these ``names`` by
        :meth:`overwrite`; shape ``(n,)``. ``read``: the headers of some rows. Asked of containers
        that have ``name_block_bytes``."""
        raise NotImplementedError(f"{self.suffixes[0]} shards have no names to write over")

    def overwrite(self, blocks: UInt8s, names: BytesColumn) -> None:
        """Give members other names in place. ``blocks``: the last ``name_block_bytes`` of the
        headers of each, one after the other."""
        raise NotImplementedError(f"{self.suffixes[0]} shards have no names to write over")

    def entries_for(self, headers: BytesColumn, entries: BytesColumn) -> BytesColumn:
        """:meth:`entry_for` of each row."""
        from dsort.data.columns import BytesColumn

        return BytesColumn.of(list(map(self.entry_for, headers.tolist(), entries.tolist())))

    def entry_for(self, headers: bytes, entry: bytes) -> bytes:
        """The entry of a member that gets new ``headers``: a new name, another target of a link.
        ``entry``: the one that it had."""
        return entry

    def link_target(self, headers: bytes) -> bytes:
        """Where the symbolic link with these headers leads. Asked for such members only."""
        raise NotImplementedError(f"{self.suffixes[0]} shards have no links in their headers")

    def retargeted(self, headers: bytes, target: bytes) -> bytes:
        """The headers of a symbolic link, leading to ``target``."""
        raise NotImplementedError(f"{self.suffixes[0]} shards have no links in their headers")

    def other_name(self, headers: bytes) -> bytes:
        """The name that some readers see in place of the one that was scanned; b"" if none do."""
        return b""

    # -- writing ---------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        """A new member as an output shard stores it: (its bytes in pieces, its entry)."""

    def head_bytes(self, records: int) -> int:
        """How long the head of an output shard of so many records is. Asked of a container that has
        its schema, where ``has_head``."""
        return 0

    def head(self, stored_bytes: Int64s) -> bytes:
        """The head of an output shard, before its first member. ``stored_bytes``: of each record,
        shape ``(records,)``."""
        return b""

    def directory_files(self, outputs: Sequence[OutputFile]) -> Mapping[str, bytes]:
        """The files, by name, that readers need beside the ``outputs`` of one directory, in their
        order."""
        return {}

    @abstractmethod
    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        """How long the end of an output shard is whose ``members`` take ``stored_bytes`` and have
        entries of ``entries_bytes`` in all. Known before it is written: plans have exact sizes."""

    def file_bytes(self, records: int, members: int, entries_bytes: int, stored_bytes: int) -> int:
        """How long an output shard is, with head and end."""
        end_bytes = self.end_bytes(members, entries_bytes, stored_bytes)
        return self.head_bytes(records) + stored_bytes + end_bytes

    @abstractmethod
    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        """What follows the last member. ``entries``: in the order of the members; empty unless
        ``lists_members``."""


def oddities_in(table: Sequence[OddityKind], notes: ScanNotes) -> Iterator[tuple[OddityKind, int]]:
    """(what is odd, how often) of one shard, in the order of the ``table``."""
    for oddity in table:
        # A shard that was skipped has no notes of its container's own.
        if oddity.unless and getattr(notes, oddity.unless, None):
            continue
        found = getattr(notes, oddity.note, 0)
        count = len(found) if isinstance(found, tuple) else int(found)
        if count:
            yield oddity, count


def shortfall_in(table: Sequence[OddityKind], notes: ScanNotes) -> str:
    """Why members may be missing from a shard: the first reason of the ``table``; "" if none."""
    reasons = (
        oddity.shortfall.format(count=count)
        for oddity, count in oddities_in(table, notes)
        if oddity.shortfall
    )
    return next(reasons, "")


def refusal(
    table: Sequence[OddityKind], notes: ScanNotes, incomplete_shards: str, concatenated_shards: str
) -> tuple[str, str] | None:
    """(what is wrong with a shard's end, what would help), of a shard that the two reactions
    refuse; None if they do not. ``table``: the oddities of its container."""
    if notes.shortfall and incomplete_shards == "abort":
        return (
            f"may not be whole: {notes.shortfall}",
            "fetch or write it again; incomplete_shards: warn takes what can be read of it",
        )
    if concatenated_shards == "abort":
        for oddity, count in oddities_in(table, notes):
            if oddity.refused:
                reason = oddity.refused.format(archives=count + 1)
                return reason, "concatenated_shards: read takes all of them"
    return None
