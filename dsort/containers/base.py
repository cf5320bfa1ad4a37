"""The contract of a container format: it reads the members of a shard from its bytes, and writes
members as a shard.

To add a container, write a module with a child of :class:`Container` and add it to ``registry``. No
other module depends on the layout of the container's shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from msgspec import Struct

from dsort.containers.facets import (
    CompressedPayloads,
    Entries,
    Head,
    Hops,
    Names,
    Payloads,
    Schemas,
    Seals,
    ShardIndex,
)
from dsort.errors import ConversionError, InvariantError
from dsort.naming.names import readable

if TYPE_CHECKING:  # the registry is read with every spec, and works without numpy
    from dsort.data.columns import BytesColumn, UInt8s
    from dsort.data.members import MemberTable, PlacedEntries, ScanNotes
    from dsort.data.records import FormedRecords


class OddityKind(Struct, frozen=True):
    """One thing that may be odd about a shard, and all texts about it.

    ``note``: the attribute of the shard's ``ScanNotes`` that counts the oddity: a number, or the
    rows of the odd members. A container with notes of its own makes a child of ``ScanNotes``.
    """

    note: str
    kind: str = ""  # its name in counts of reports and manifests; "": not counted by itself
    warning: str = ""  # a job's warning, with {count}, {names}, [one|many]; "": none
    by_shard: bool = False  # a job counts the shards that have it
    inspected: str = ""  # what `dsort inspect` calls it; "": not listed
    text: str = ""  # the text that follows the count in `dsort inspect`, with [one|many]
    shortfall: str = ""  # why members may be missing if a shard has it, with {count}
    refused: str = ""  # what `concatenated_shards: abort` calls such a shard, with {archives}
    unless: str = ""  # another note: this oddity is not reported for shards that have that note


class Need(NamedTuple):
    """The bytes that a scanner reads next: at least ``at_least`` bytes from byte ``offset`` on. The
    shard has that many."""

    offset: int
    at_least: int = 1


Scanner: TypeAlias = "Generator[Need, memoryview, MemberTable]"
"""Reads the members of one shard, and returns them. ``window = yield Need(offset, at_least)`` is
the shard from byte ``offset`` on, as far as the shard has been read; the window is valid until the
next ``yield``. Bytes may be needed in any order: of a zip, the end comes first.
``CorruptShardError``."""


class Scan:
    """Runs a scanner, with the windows that are passed to ``feed``."""

    def __init__(self, scanner: Scanner) -> None:
        self._steps = _steps(scanner)
        self._step = next(self._steps)

    @property
    def need(self) -> Need | None:
        """The bytes that the next window has to hold; None at the end of the scan."""
        return self._step if isinstance(self._step, Need) else None

    @property
    def table(self) -> MemberTable:
        """The members of the whole shard, at the end of the scan."""
        if isinstance(self._step, Need):
            raise InvariantError(f"a scan still needs byte {self._step.offset} of its shard")
        return self._step

    def feed(self, window: memoryview | bytes | bytearray | UInt8s, offset: int) -> None:
        """Scan all of ``window``, which has bytes of the shard from ``offset`` on.
        ``CorruptShardError``."""
        before = self._step
        with memoryview(window) as view:  # type: ignore[arg-type]
            end = offset + len(view)
            while (
                isinstance(need := self._step, Need)
                and offset <= need.offset <= end - need.at_least
            ):
                # No name for the slice: the traceback of an error would keep it.
                self._step = self._steps.send(view[need.offset - offset :])
        if isinstance(before, Need) and self._step is before:
            bytes_end = before.offset + before.at_least
            raise ValueError(
                f"a window at {offset} does not hold byte {before.offset} to byte {bytes_end}"
            )


def _steps(scanner: Scanner) -> Generator[Need | MemberTable, memoryview, None]:
    yield (yield from scanner)


def drive(
    scanner: Scanner,
    size_bytes: int,
    read: Callable[[int, int], memoryview],
    *,
    window_bytes: int,
    align: int = 1,
) -> MemberTable:
    """The members of a shard of ``size_bytes``, from the windows that ``scanner`` needs.

    ``read(offset, size)`` returns a window. A window has ``window_bytes``, more if the scanner
    needs more, and less at the end of the shard. Windows begin at multiples of ``align``.
    """
    scan = Scan(scanner)
    while (need := scan.need) is not None:
        offset = need.offset // align * align
        needed = need.offset - offset + need.at_least
        size = min(max(window_bytes, needed), size_bytes - offset)
        scan.feed(read(offset, size), offset)
    return scan.table


class ContainerOptions(Struct, frozen=True):
    """The settings of a job for reading and writing shards; each container uses some of them.

    ``key_field``: the place of a record's key, for containers without names of members: a JSON
    pointer, a feature or a column. "": records are numbered (see ``naming.names.position_key``).
    ``strip_final_newline``: payloads that become lines lose one line feed at their end.
    ``member_defaults``: (extension, payload) of members that a record gets if it lacks them.
    ``row_group_rows``, ``row_group_bytes``: how large the row groups of tables are at most, in rows
    and in bytes of their values. ``compression``: the compression of columns; "": the default of
    the container. ``content_defined_chunks``: the values of a column decide where its pages end.
    """

    key_field: str = ""
    strip_final_newline: bool = False
    member_defaults: tuple[tuple[str, bytes], ...] = ()
    row_group_rows: int | None = None
    row_group_bytes: int = 64 << 20
    compression: str = ""
    content_defined_chunks: bool = False


class Container(ABC):
    """One container format. Instances are small, immutable and can be pickled: workers receive one.
    An attribute whose type is a class of ``facets`` is None for a format without that feature. A
    container does not depend on buckets, paths, records or jobs.

    A container turns the bytes of one shard into a ``MemberTable`` of byte ranges, writes the
    headers of members with new names, and makes the end of an output shard. A shard is a head, the
    stored bytes of its members, one after the other, and an end. Most containers have no head; a
    head may have the *schema*, which all records share. If the end lists the members, as the
    central directory of a zip does, a scan gives each member an *entry*: all that the end lists
    about the member, except its place. Entries go with their records through the plan; the end is
    built from them and from the places of the members.

    If inputs and outputs have different containers, each input shard is converted while it is
    extracted. The container of the inputs makes a *bare* table, in which the stored bytes of a
    member are its payload. From this the container of the outputs makes a table in which the bytes
    around payloads are literals and tails; payloads are still ranges of the input shard."""

    suffixes: tuple[str, ...]
    """The suffixes of shard names of this container."""

    oddities: tuple[OddityKind, ...] = ()
    """All oddities that a readable shard may have."""

    is_of_members: bool = False
    """Whether a record is a sequence of members, each with its own name. If a record is a sequence,
    one record can be made from several."""

    is_columnar: bool = False
    """Whether records are rows of tables: jobs that write such shards move rows, not bytes. Rows
    are encoded when they are written, so the size of a shard is not known before."""

    has_short_records: bool = False
    """Whether records may be of some tens of bytes. The index row of such a record takes as many
    bytes as the record, and rows are ordered in small parts."""

    begins_bare: bool = False
    """Whether a shard begins with a payload, which may be any bytes. If so, the first bytes alone
    do not prove that a codec is around the shard."""

    keeps_keys: bool = False
    """Whether records of other containers keep their keys in ``__key__``, because this container
    has no names of members that could have them."""

    no_other_name: tuple[str, str] = ("", "")
    """(why a record cannot become ``{name}``, what helps), of a container without ``names``."""

    names: Names | None = None
    """Names in the headers of members, so that a record can get another key. None: the key is in
    the payload, or the record has no key."""

    entries: Entries | None = None
    """Lists of the members at the end of a shard. With this facet, ``MemberTable.entries`` is not
    None."""

    hops: Hops | None = None
    """Headers that show where the next header is. With this facet, a scan reads only headers;
    without it, a scan reads all bytes."""

    payloads: CompressedPayloads | None = None
    """Payloads that may be compressed, and have checksums."""

    seals: Seals | None = None
    """Checksums at the ends of records."""

    schemas: Schemas | None = None
    """Descriptions that all records of a shard share. With this facet, all records must have
    members of the same extensions."""

    packed: Callable[[MemberTable, FormedRecords, Payloads], MemberTable] | None = None
    """Converts records of other containers to this one; None: it does not. ``packed(members,
    records, payloads)`` returns ``members``, a bare table, with all bytes that this container
    stores around the payloads of the ``records`` (literals and tails), and entries.
    ``ConversionError`` names a record that this container cannot hold."""

    strips_final_newline: bool = False
    """Whether payloads lose one line feed at their end before they are packed, as the spec sets."""

    member_defaults: tuple[tuple[str, bytes], ...] = ()
    """(extension, payload) of the members that the spec adds to records that lack them, before
    these records are packed."""

    encode: Callable[[bytes, bytes], tuple[Sequence[bytes], bytes]] | None = None
    """Makes a new member, given its name and its payload; returns (its bytes in an output shard, in
    pieces; its entry). None: members are only made together, by ``packed``."""

    @property
    def head(self) -> Head | None:
        """Bytes before the first member of an output shard. If a container has such bytes, the
        sizes of all records of a shard are gathered before the shard is begun."""
        return None

    @property
    def index(self) -> ShardIndex | None:
        """The file that readers need beside the output shards of a directory."""
        return None

    @property
    def numbers_records(self) -> bool:
        """Whether record keys are only positions in a shard, because neither the options nor the
        shards define other keys. If keys are positions, a record that moves gets another key."""
        return False

    def with_options(self, options: ContainerOptions) -> Container:
        """The same container, which reads and writes as set in ``options``."""
        return self

    def with_schema(self, schema: str) -> Container:
        """The same container, for shards of records that have ``schema`` in common."""
        return self

    def within(self, decoded_max: float) -> Container:
        """The same container with a limit: its ``scanner`` refuses a shard that is decoded to more
        than ``decoded_max`` bytes during the scan, or has more bytes once copies replace its hard
        links."""
        return self

    def load(self) -> None:  # noqa: B027 - most need none
        """Load the libraries that the container reads and writes with. Called once before workers
        are forked."""

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        """A scanner for the shard ``shard``, which has ``size_bytes``."""

    def scan(self, shard: str, data: memoryview | bytes | UInt8s) -> MemberTable:
        """The members of a whole shard, whose bytes are ``data``. ``CorruptShardError``."""
        scan = Scan(self.scanner(shard, len(data)))
        while scan.need is not None:
            scan.feed(data, 0)
        return scan.table

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        """The table of a scanned shard for another container: its ``members``, with their payloads
        only (see ``MemberTable``). ``read``: returns bytes of the shard, by offset and count.
        ``CorruptShardError``."""
        from dsort.data.members import bare_table

        return bare_table(members)

    def renamed(self, headers: BytesColumn, names: BytesColumn) -> BytesColumn:
        """``headers``, each with the name in the same row of ``names``. ``ConversionError`` if this
        container cannot rename records, ``ValueError`` for a text that cannot be a name."""
        if self.names is None:
            text, hint = self.no_other_name
            raise ConversionError(text.format(name=readable(names[0])), hint=hint)
        return self.names.renamed(headers, names)

    # -- writing ---------------------------------------------------------------------------------

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        """The length of the end of an output shard: its ``members`` take ``stored_bytes``, and
        their entries ``entries_bytes`` in all. The length is known before the shard is written,
        because plans have exact sizes."""
        return 0

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        """The bytes after the last member. ``entries``: the entries of the members, in order; empty
        if members have no entries."""
        return b""

    def file_bytes(self, records: int, members: int, entries_bytes: int, stored_bytes: int) -> int:
        """The length of an output shard, with head and end."""
        end_bytes = self.end_bytes(members, entries_bytes, stored_bytes)
        head_bytes = 0 if self.head is None else self.head.size_bytes(records)
        return head_bytes + stored_bytes + end_bytes


@dataclass(frozen=True, slots=True)
class KeyedContainer(Container):
    """The base of containers whose records may have their keys inside. ``key_field``: the place of
    the key in a record; "": records are numbered."""

    key_field: str = ""

    @property
    def numbers_records(self) -> bool:
        return not self.key_field

    def with_options(self, options: ContainerOptions) -> Self:
        return replace(self, key_field=options.key_field)


def oddities_in(table: Sequence[OddityKind], notes: ScanNotes) -> Iterator[tuple[OddityKind, int]]:
    """(oddity, how often it occurs) of one shard, in the order of the ``table``."""
    for oddity in table:
        # A shard that was skipped lacks the notes that only its container has.
        if oddity.unless and getattr(notes, oddity.unless, None):
            continue
        found = getattr(notes, oddity.note, 0)
        count = len(found) if isinstance(found, tuple) else int(found)
        if count:
            yield oddity, count


def shortfall_in(table: Sequence[OddityKind], notes: ScanNotes) -> str:
    """Why members may be missing from a shard: the first reason in the ``table``; "" if there is
    none."""
    reasons = (
        oddity.shortfall.format(count=count)
        for oddity, count in oddities_in(table, notes)
        if oddity.shortfall
    )
    return next(reasons, "")


def refusal(
    table: Sequence[OddityKind], notes: ScanNotes, incomplete_shards: str, concatenated_shards: str
) -> tuple[str, str] | None:
    """(fault of the shard's end, remedy) if ``incomplete_shards`` or ``concatenated_shards``
    refuses the shard; else None. ``table``: the oddities of its container."""
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
