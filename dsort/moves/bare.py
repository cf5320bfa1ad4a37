"""Bare tables of shards: payloads and names, without the headers of a container."""

from __future__ import annotations

from dataclasses import dataclass

from dsort.containers.base import Container, Scanner
from dsort.containers.facets import Names
from dsort.data.members import MemberTable
from dsort.errors import ConversionError
from dsort.moves.input_shard import ShardBytes


@dataclass(frozen=True, slots=True)
class BareContainer(Container):
    """The container of bare tables: members have names, but no headers that repeat them."""

    suffixes = ("",)
    names = Names.beside()

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        raise NotImplementedError("a bare table is made from a shard that a container has scanned")


BARE = BareContainer()


def payload_table(shard: ShardBytes, members: MemberTable) -> MemberTable:
    """Make a bare table of a scanned shard. If members are compressed, decompress ``shard``.
    ``CorruptShardError`` if a payload does not match its checksum in the shard."""
    if members.has_compressed:
        members = shard.decompress(members)
        shard.container = BARE
    else:
        shard.check_payloads(members)
    return bare_of(shard, members)


def bare_of(shard: ShardBytes, members: MemberTable) -> MemberTable:
    """See ``Container.bare``. ``ConversionError`` names the shard."""
    if not len(members):  # a corrupt shard that is left out has no table of its container
        return MemberTable.empty()
    try:
        return shard.container.bare(members, shard.at)
    except ConversionError as error:
        text = f"shard {shard.name}: {error.message}"
        raise ConversionError(text, hint=error.hint) from None
