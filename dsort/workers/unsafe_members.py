"""``unsafe_names``: finds and renames members that would be unpacked outside of their directory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.containers.facets import Names
from dsort.data.columns import BytesColumn
from dsort.data.members import MemberKind, MemberTable
from dsort.data.tally import Tally
from dsort.errors import UnsafeNameError
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.naming.safe_names import new_safe_names, safe_name, unsafe_links, unsafe_rows
from dsort.workers.headers import headers_of, with_new_headers


class UnsafeNames(Struct, frozen=True):
    """The unsafe members of one shard: ``rows`` with unsafe names, ``targets`` (row → target) of
    unsafe symbolic links, ``others`` (row → name) with unsafe names that only some readers see."""

    rows: list[int]
    targets: dict[int, bytes]
    others: dict[int, bytes] = field(default_factory=dict)

    @property
    def all_rows(self) -> list[int]:
        """The rows of all unsafe members, ascending."""
        return sorted({*self.rows, *self.targets, *self.others})

    def __len__(self) -> int:
        return len(self.all_rows)


def settle_unsafe_names(
    reaction: str, shard: ShardBytes, members: MemberTable, tally: Tally
) -> MemberTable:
    """``members`` with the names that the job allows. ``reaction``: warn, rename or abort."""
    found = _find_unsafe(shard, members)
    if not len(found):
        return members
    settled = _with_safe_names(shard, members, found) if reaction == "rename" else members
    names = [f"{shard.name}: {text}" for text in _shown_changes(members, settled, found)]
    if reaction == "abort":
        first = names[0].removeprefix(f"{shard.name}: ")
        raise UnsafeNameError(
            f"shard {shard.name} has {len(found)} members that lead out of the directory they "
            f"are unpacked in, the first is {first}",
            hint="unsafe_names: rename makes their names safe, warn keeps them as they are",
        )
    kind = "unsafe_names_renamed" if reaction == "rename" else "unsafe_names"
    tally.add(kind, len(found), names)
    return settled


def _find_unsafe(shard: ShardBytes, members: MemberTable) -> UnsafeNames:
    """The unsafe members. There are none if the shard does not contain their names: then names only
    repeat the keys of records that the container separates."""
    if members.record_of is not None and shard.container is not BARE:
        return UnsafeNames([], {})
    names = shard.container.names
    if names is None:
        return UnsafeNames([], {})
    rows, others = unsafe_rows(members.names), {}
    for row in members.notes.unsafe_prefixes:
        if name := names.other_of(headers_of(shard, members, row)):
            others[row] = name
    return UnsafeNames(rows, _unsafe_targets(names, shard, members, rows), others)


def _unsafe_targets(
    in_headers: Names, shard: ShardBytes, members: MemberTable, rows: list[int]
) -> dict[int, bytes]:
    """Row → target of the links that are unsafe once ``rows`` have safe names."""
    symlinks = np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist()
    if not symlinks:
        return {}
    new_names = new_safe_names(members.names, rows)
    targets, links = {}, []
    for row in symlinks:
        headers = headers_of(shard, members, row)
        targets[row] = in_headers.target_of(headers)
        links.append((row, new_names.get(row, members.names[row]), targets[row]))
        if other := in_headers.other_of(headers):
            links.append((row, safe_name(other), targets[row]))
    return {row: targets[row] for row in unsafe_links(links)}


def _with_safe_names(shard: ShardBytes, members: MemberTable, found: UnsafeNames) -> MemberTable:
    """``members`` with safe names and targets in place of the unsafe ones in ``found``."""
    if not len(found):
        return members
    names = new_safe_names(members.names, found.rows)
    headers = {row: headers_of(shard, members, row) for row in found.all_rows}
    in_headers = shard.container.names
    assert in_headers is not None  # else no name is unsafe
    for row, target in found.targets.items():
        headers[row] = in_headers.retargeted(headers[row], safe_name(target))
    # ``others`` get the name that other readers see
    new = {row: names.get(row, members.names[row]) for row in sorted({*names, *found.others})}
    if new:
        old = BytesColumn.of([headers[row] for row in new])
        renamed = in_headers.renamed(old, BytesColumn.of([*new.values()]))
        headers.update(zip(new, renamed.tolist(), strict=True))
    all_names, key_bytes = members.names, members.key_bytes
    if names:
        texts = all_names.tolist()
        for row, name in names.items():
            texts[row] = name
        all_names = BytesColumn.of(texts)
        if key_bytes is not None:  # extensions do not change
            key_bytes = key_bytes + (all_names.lengths - members.names.lengths)
    named = replace(members, names=all_names, key_bytes=key_bytes)
    return with_new_headers(shard.container, named, headers)


def _shown_changes(before: MemberTable, after: MemberTable, found: UnsafeNames) -> Iterator[str]:
    """A text for each unsafe member: the name, its target, and the new name if it has one."""
    for row in found.all_rows:
        old, new = before.names[row], after.names[row]
        text = readable(old)
        if row in found.others:
            text += f" ({readable(found.others[row])} for some readers)"
        if row in found.targets:
            text += f" (a link to {readable(found.targets[row])})"
        yield text if old == new else f"{text} → {readable(new)}"
