"""Member names that leave the directory that an archive is unpacked in, and safe ones for them.

Unsafe are absolute names and names with a component ``..``; so is the target of a symbolic link
that leads out of that directory, or that may do so by way of another link of the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.records import split_name

UNSAFE_NAMES: Final = "members with absolute names, or '..' in them"
_NAMELESS = b"_"
_SLASH, _DOT = 0x2F, 0x2E


def unsafe_rows(names: BytesColumn) -> list[int]:
    """The rows of ``names`` that are unsafe, ascending."""
    rows: set[int] = set()
    if bool((names.blob == _SLASH).any()):
        starts = np.minimum(names.offsets[:-1], len(names.blob) - 1)
        absolute = (names.blob[starts] == _SLASH) & (names.lengths > 0)
        rows.update(np.flatnonzero(absolute).tolist())
    dots = names.blob == _DOT
    pairs = np.flatnonzero(dots[:-1] & dots[1:])
    if len(pairs):
        suspects = np.unique(np.searchsorted(names.offsets, pairs, side="right") - 1)
        rows.update(row for row in suspects.tolist() if b".." in names[row].split(b"/"))
    return sorted(rows)


def safe_name(name: bytes) -> bytes:
    """``name`` without leading slashes and components ``..``; a slash at its end stays."""
    parts = [part for part in name.split(b"/") if part not in (b"", b"..")]
    return (b"/".join(parts) or _NAMELESS) + (b"/" if name[-1:] == b"/" else b"")


def target_escapes(name: bytes, target: bytes) -> bool:
    """Whether a symbolic link ``name`` (a safe one) to ``target`` leads out of the directory that
    it is unpacked in."""
    if target[:1] == b"/":
        return True
    depth = len([part for part in name.split(b"/")[:-1] if part not in (b"", b".")])
    for part in target.split(b"/"):
        if part not in (b"", b"."):
            depth += -1 if part == b".." else 1
        if depth < 0:
            return True
    return False


def unsafe_links(links: Sequence[tuple[int, bytes, bytes]]) -> list[int]:
    """The rows of the unsafe ones among ``links``, all symbolic links of one archive as (row, safe
    name, target); ascending. A row may be there with several names.

    Unsafe is a target that leads out as it is written, and one with a ``..`` behind another link of
    the archive, in its own directory's path or in the target: where ``..`` leads from there depends
    on that link, and on when it is unpacked. If another link is in a directory that is a link, it
    comes to stand under a name that the archive does not say, and any ``..`` may be behind that
    one. All others stay inside, for each link that they pass through does. Takes time as the names
    and targets are long.
    """
    places = {_places(_parts(name))[-1] for _, name, _ in links}
    found, left = set(), []
    for link in links:
        row, name, target = link
        if target_escapes(name, target) or _climbs_behind_a_link(name, target, places):
            found.add(row)
        else:
            left.append(link)
    if any(not places.isdisjoint(_places(_parts(name)[:-1])) for _, name, _ in left):
        found |= {row for row, _, target in left if b".." in _parts(target)}
    return sorted(found)


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _places(parts: Sequence[bytes]) -> list[int]:
    """What stands for the root and for each directory on the way that ``parts`` name. A hash, for
    to join the parts anew at each step would take a square of time."""
    places = [0]
    for part in parts:
        places.append(hash((places[-1], part)))
    return places


def _climbs_behind_a_link(name: bytes, target: bytes, links: set[int]) -> bool:
    if b".." not in target:
        return False
    places = _places(_parts(name)[:-1])
    behind = not links.isdisjoint(places)
    for part in _parts(target):
        if part != b"..":
            places.append(hash((places[-1], part)))
            behind |= places[-1] in links
        elif behind:
            return True
        elif len(places) > 1:
            places.pop()
    return False


def new_safe_names(names: BytesColumn, rows: list[int]) -> Mapping[int, bytes]:
    """Row → safe name, for the ``rows`` of one shard's members that are unsafe.

    Members of one record stay one record. A record whose safe key another record of the shard has
    gets ``key-1``, or the next number that is free.
    """
    if not rows:
        return {}
    unsafe = set(rows)
    taken = {split_name(name)[0] for row, name in enumerate(names.tolist()) if row not in unsafe}
    keys: dict[bytes, bytes] = {}
    last: dict[bytes, int] = {}
    renamed: dict[int, bytes] = {}
    for row in rows:
        name = names[row]
        if name[-1:] == b"/":  # a directory: there may be several of one name
            renamed[row] = safe_name(name)
            continue
        key = split_name(name)[0]
        if key not in keys:
            wanted = fresh = safe_name(key)
            while fresh in taken:
                last[wanted] = last.get(wanted, 0) + 1
                fresh = b"%b-%d" % (wanted, last[wanted])
            taken.add(fresh)
            keys[key] = fresh
        renamed[row] = keys[key] + name[len(key) :]
    return renamed
