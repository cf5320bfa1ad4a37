"""Hard links of a tar, resolved to the data they mean."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from dsort.containers.tar.headers import shown
from dsort.errors import CorruptShardError

__all__ = ["HardLinks", "resolve_links"]

HardLinks = Mapping[int, tuple[bytes, int]]
"""Row of a hard link → (its target's name, its offset in the shard)."""


def resolve_links(
    shard: str, names: Sequence[bytes], links: HardLinks, unfit: Mapping[int, str]
) -> dict[int, int]:
    """Each hard link's row → the row of the file that it means, through chains of links.

    A target is the last member of that name before the link, else the first after it: an archive
    is unpacked in order. Names are compared without leading slashes, ``./`` and doubled slashes,
    which writers drop from members and from targets at will. ``unfit`` says of rows why a link to
    them cannot be resolved. Raises ``CorruptShardError``: no such member, a cycle, an unfit one.
    """
    rows_of: dict[bytes, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(_plain(name), []).append(row)
    resolved: dict[int, int] = {}
    for link in links:
        chain: list[int] = []
        row = link
        while row in links and row not in resolved:
            target = links[row][0]
            chain.append(row)
            resolved[row] = row  # a step that comes back here has closed a cycle
            row = _target(rows_of.get(_plain(target), []), row)
            if row < 0:
                _fail(shard, names, chain[-1], links, "is not in this shard")
        final = resolved.get(row, row)
        if final in links:
            _fail(shard, names, link, links, "leads back to the link itself")
        if final in unfit:
            _fail(shard, names, link, links, unfit[final])
        for step in chain:
            resolved[step] = final
    return resolved


def _plain(name: bytes) -> bytes:
    """``name`` without what does not change where it points."""
    if b"//" not in name and b"./" not in name and name[:1] != b"/" and name[-1:] not in b"/.":
        return name
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _target(rows: list[int], link: int) -> int:
    """Of ``rows``, the last before ``link``, else the first after it, else -1."""
    at = bisect_left(rows, link)
    if at > 0:
        return rows[at - 1]
    later = rows[1:2] if rows[:1] == [link] else rows[:1]
    return later[0] if later else -1


def _fail(shard: str, names: Sequence[bytes], link: int, links: HardLinks, why: str) -> None:
    target, offset = links[link]
    what = f"the hard link {shown(names[link])} cannot be resolved"
    raise CorruptShardError(shard, offset, f"{what}: its target, {shown(target)}, {why}")
