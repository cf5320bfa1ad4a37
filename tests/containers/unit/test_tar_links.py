"""A resolved hard link is a file of its own: its own name, mode and times, its target's data."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsort.containers.tar.container import TAR
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind
from tests.support.tar_builder import END, header, member, pax
from tests.support.tar_reading import scan
from tests.support.tar_torture import LONG, rewritten


def members_after(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(rewritten(data, scan("s.tar", data)))) as archive:
        return [(info, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]


def test_it_keeps_its_own_metadata() -> None:
    data = (
        member(b"a.jpg", b"payload" * 99, mode=0o600, mtime=5)
        + header(b"l.jpg", 0, b"1", link=b"a.jpg", mode=0o755, mtime=77)
        + END
    )
    (_, _), (link, payload) = members_after(data)
    assert (link.name, link.mode, link.mtime, link.type) == ("l.jpg", 0o755, 77, tarfile.REGTYPE)
    assert (link.size, link.linkname, link.uname) == (693, "", "user")
    assert payload == b"payload" * 99


def test_it_keeps_its_own_pax_records() -> None:
    records = {b"mtime": b"7.5", b"linkpath": b"a.jpg", b"path": LONG, b"SCHILY.xattr.user.a": b"b"}
    data = member(b"a.jpg", b"x") + pax(records) + header(b"short", 0, b"1", link=b"no") + END
    (_, _), (link, payload) = members_after(data)
    assert link.name == LONG.decode()
    assert link.pax_headers == {
        "mtime": "7.5",
        "path": LONG.decode(),
        "SCHILY.xattr.user.a": "b",
    }
    assert (link.mtime, payload) == (7.5, b"x")


def test_its_row_points_at_its_targets_payload() -> None:
    data = member(b"a.jpg", b"x" * 700) + header(b"l.jpg", 0, b"1", link=b"a.jpg") + END
    table = scan("s.tar", data)
    assert table.kind.tolist() == [MemberKind.FILE] * 2
    assert table.payload_start.tolist() == [512, 512]
    assert table.range_start.tolist() == [0, 512]
    assert table.payload_bytes.tolist() == [700, 700]
    assert table.range_length.tolist() == [1536, 1024]
    assert list(table.literals) == [1]
    assert len(table.literals[1]) == 512


def test_long_chains_of_links_cost_no_more_than_their_number() -> None:
    count = 5_000  # pairwise this would be 10**7 steps
    forward = b"".join(
        header(b"%d" % i, 0, b"1", link=b"%d" % (i + 1)) for i in range(count)
    ) + member(b"%d" % count, b"the end")
    same = member(b"same", b"again") + header(b"same", 0, b"1", link=b"same") * count
    for data in (forward, same):
        table = scan("s.tar", data + END)
        assert table.notes.hardlinks_resolved == count
        assert len(set(table.payload_start.tolist())) == 1


def test_copies_for_links_are_bounded() -> None:
    links = [header(b"%d.jpg" % i, 0, b"1", link=b"a.jpg") for i in range(9)]
    data = member(b"a.jpg", b"x" * 1000) + b"".join(links) + END
    assert TAR.within(10_000).scan("s.tar", data).payload_bytes.tolist() == [1000] * 10
    with pytest.raises(CorruptShardError, match="hard links") as refusal:
        TAR.within(9_999).scan("s.tar", data)
    assert refusal.value.offset == 512 + 1024 + 8 * 512  # the header of the last link
    assert "max_expansion" in refusal.value.hint


def test_payload_without_links_is_not_bounded_by_what_links_may_copy() -> None:
    data = member(b"a.jpg", b"x" * 1000) + member(b"b.jpg", b"x" * 1000) + END
    assert len(TAR.within(1_999).scan("s.tar", data)) == 2
