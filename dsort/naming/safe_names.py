"""Member names that lead out of the directory where an archive is unpacked, and safe replacements
for them.

Unsafe are absolute names and names with a component ``..``. A symbolic link is unsafe, too, if its
target leads out of that directory, or may do so through another link of the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.records import split_name

UNSAFE_NAMES: Final = (
    "[member with an absolute name, or '..' in it|members with absolute names, or '..' in them]"
)
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
    pairs = np.zeros(len(dots) + 1, np.bool_)  # an empty name may begin where the last name ends
    np.logical_and(dots[:-1], dots[1:], out=pairs[: len(dots[1:])])
    if pairs.any():
        suspects = np.flatnonzero(np.logical_or.reduceat(pairs, names.offsets[:-1]))
        rows.update(row for row in suspects.tolist() if b".." in names[row].split(b"/"))
    return sorted(rows)


def safe_name(name: bytes) -> bytes:
    """``name`` without leading slashes, and without components ``..``. A slash at its end stays."""
    parts = [part for part in name.split(b"/") if part not in (b"", b"..")]
    return (b"/".join(parts) or _NAMELESS) + (b"/" if name[-1:] == b"/" else b"")


def target_escapes(name: bytes, target: bytes) -> bool:
    """Whether a symbolic link ``name`` (a safe name) to ``target`` leads out of the directory where
    it is unpacked."""
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
    """The rows of the unsafe ``links``, ascending. ``links``: all symbolic links of one archive as
    (row, safe name, target). A row may appear with several names.

    A target is unsafe if it leads out by itself. It is unsafe, too, if a ``..`` comes after another
    link of the archive, in the path of its own directory or in the target. Where that ``..`` leads
    depends on the other link, and on when it is unpacked. A link in a directory that is itself a
    link is unpacked under a name that the archive does not show, so every ``..`` in it might come
    after another link. All other targets stay inside, because every link on their way stays inside.
    Takes time proportional to the length of the names and targets.
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
    """A number for the root and for each directory on the path ``parts``. The number is a hash,
    because joining the parts at each step would take quadratic time."""
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
    """Row → safe name, for the unsafe ``rows`` of the members of one shard.

    Members of one record stay one record. If another record of the shard already has the safe key,
    the renamed record gets ``key-1``, or the next free number.
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
        if name[-1:] == b"/":  # a directory: several may have the same name
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
