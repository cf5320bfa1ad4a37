"""The tar container: the interface of this folder to the rest of dsort.

The end of a tar is two zero blocks, which list nothing: members have no entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from dsort.containers.base import Container, Hop, Payloads
from dsort.containers.named import check_keys_in_names
from dsort.containers.tar.header import BLOCK_BYTES, link_target, other_name, renamed, retargeted
from dsort.containers.tar.hop import hop
from dsort.containers.tar.names import overwritable_names, overwrite_names, renamed_headers
from dsort.containers.tar.oddities import ODDITIES
from dsort.containers.tar.scan import END_OF_ARCHIVE, TarScanner, scan
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s
from dsort.data.entries import PlacedEntries
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords

__all__ = ["TAR", "Tar", "TarFormat"]

TarFormat = Literal["ustar", "gnu", "pax"]

_PADDING = bytes(BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Tar(Container):
    """Tars. ``written_as`` and ``modified_at_s`` (since 1970) are for new members; members of input
    shards are copied with their own headers, of any kind."""

    written_as: TarFormat = "pax"
    modified_at_s: float = 0
    _payload_max: float = field(default=math.inf, compare=False)

    suffixes = (".tar",)
    oddities = ODDITIES
    is_of_members = True
    packs_others = True
    name_block_bytes = BLOCK_BYTES
    hop_bytes = BLOCK_BYTES

    def scanner(self, shard: str, size_bytes: int) -> TarScanner:
        return TarScanner(shard, size_bytes, self._payload_max)

    def scan(self, shard: str, data: memoryview | bytes | UInt8s) -> MemberTable:
        return scan(shard, data, self._payload_max)

    def within(self, decoded_max: float) -> Tar:
        """The same container with a limit on payloads after hard links are resolved, because each
        hard link gets a copy of a payload."""
        return dataclasses.replace(self, _payload_max=decoded_max)

    def hop(self, header: bytes, at: int) -> Hop | None:
        return hop(header, at)

    def renamed(self, headers: bytes, new_name: bytes) -> bytes:
        return renamed(headers, new_name)

    def renamed_headers(self, headers: BytesColumn, names: BytesColumn) -> BytesColumn:
        return renamed_headers(headers, names)

    def overwritable(
        self,
        header_bytes: Int64s,
        names: BytesColumn,
        read: Callable[[Int64s], BytesColumn],
    ) -> Bools:
        return overwritable_names(header_bytes, names, read)

    def overwrite(self, blocks: UInt8s, names: BytesColumn) -> None:
        overwrite_names(blocks.reshape(len(names), BLOCK_BYTES), names)

    def link_target(self, headers: bytes) -> bytes:
        return link_target(headers)

    def retargeted(self, headers: bytes, target: bytes) -> bytes:
        return retargeted(headers, target)

    def other_name(self, headers: bytes) -> bytes:
        return other_name(headers)

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        check_keys_in_names(members, records, ".tar")
        names, sizes = members.names.tolist(), members.payload_bytes.tolist()
        literals, tails = {}, {}
        for row in records.member_rows.tolist():
            name = names[row]
            literals[row] = self._header(name, sizes[row]) + members.literals.get(row, b"")
            tails[row] = _PADDING[: -sizes[row] % BLOCK_BYTES]
        return replace(members, literals=literals, tails=tails, entries=None)

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        padding = _PADDING[: -len(payload) % BLOCK_BYTES]
        return (self._header(name, len(payload)), payload, padding), b""

    def _header(self, name: bytes, payload_bytes: int) -> bytes:
        import tarfile  # readers of tars do not need it

        formats: dict[TarFormat, Literal[0, 1, 2]] = {
            "ustar": tarfile.USTAR_FORMAT,
            "gnu": tarfile.GNU_FORMAT,
            "pax": tarfile.PAX_FORMAT,
        }
        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.size, info.mtime = payload_bytes, self.modified_at_s
        return info.tobuf(formats[self.written_as], "utf-8", "surrogateescape")

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        return len(END_OF_ARCHIVE)

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        return END_OF_ARCHIVE


TAR = Tar()
