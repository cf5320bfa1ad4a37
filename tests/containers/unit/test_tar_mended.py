"""Headers that a reader would stop at are mended on their way to an output shard, and said; what
cannot be mended without a guess is refused. What a global header says goes with every member
that it governs, at no cost without limit."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsort.containers.tar import member as tar_member
from dsort.errors import CorruptShardError
from tests.support.refusals import raises
from tests.support.tar_builder import END, checksum, gnu_long, header, member, old_gnu_sparse, pax
from tests.support.tar_reading import as_plain, listed, scan, scan_by_the_book, scan_in_windows
from tests.support.tar_torture import LONG, rewritten

FIELDS = {"mode": 100, "uid": 108, "gid": 116, "mtime": 136, "devmajor": 329, "devminor": 337}
WIDTHS = {"mtime": 12}


def with_field(blocks: bytes, at: int, value: bytes) -> bytes:
    """``blocks`` with ``value`` in the field at ``at`` of the first header, its checksum right."""
    block = blocks[:at] + value + blocks[at + len(value) : 512]
    return checksum(block) + blocks[512:]


def filled(field: str, value: bytes) -> bytes:
    return value.ljust(WIDTHS.get(field, 8), b"\0")


def read(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(info, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("raw", [b"zzz", b"12 34", b"9", b"\x81\1\2\3", b" x", b"\t7z"])
def test_an_unreadable_number_is_mended_and_reported(field: str, raw: bytes) -> None:
    bad = with_field(member(b"b.jpg", b"bb"), FIELDS[field], filled(field, raw))
    data = member(b"a.jpg", b"a") + bad + member(b"c.jpg", b"ccc") + END
    assert len(read(data)) == 1  # tarfile stops there
    table = scan("s.tar", data)
    assert table.notes.mended == (1,)
    assert as_plain(table) == as_plain(scan_by_the_book(data))
    assert as_plain(table) == as_plain(scan_in_windows(data, [1024]))
    back = read(rewritten(data, table))
    assert [(info.name, payload) for info, payload in back] == [
        ("a.jpg", b"a"),
        ("b.jpg", b"bb"),
        ("c.jpg", b"ccc"),
    ]
    assert listed(rewritten(data, table)) == b"a.jpg\nb.jpg\nc.jpg\n"
    assert getattr(back[1][0], field) == (0o644 if field == "mode" else 0)
    others = set(FIELDS) - {field}
    assert all(getattr(back[1][0], other) == getattr(back[0][0], other) for other in others)


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("uid", b"\x80" + (1 << 40).to_bytes(7, "big")),
        ("mtime", b"\x80" + (1 << 40).to_bytes(11, "big")),
        ("mtime", b"\xff" * 12),
        ("mode", b"000644 \0"),
        ("mode", b"   644 \0"),
        ("gid", b"1750\0\0\0\0"),
        ("uid", b"       \0"),
        ("devmajor", b" " * 8),
        ("devminor", b"00000007"),
    ],
)
def test_every_form_that_readers_share_is_copied_raw(field: str, raw: bytes) -> None:
    data = with_field(member(b"a.jpg", b"a"), FIELDS[field], raw) + END
    table = scan("s.tar", data)
    assert (table.notes.mended, dict(table.literals)) == ((), {})
    assert rewritten(data, table)[: len(data)] == data


def test_a_shard_of_nothing_else_is_read_many_at_a_time_too() -> None:
    bad = b"".join(
        with_field(member(b"%04d.jpg" % i, b"x" * i), FIELDS["gid"], b"%dx" % i) for i in range(400)
    )
    table = scan("s.tar", bad + END)
    assert table.notes.mended == tuple(range(400))
    assert len(read(rewritten(bad + END, table))) == 400


def test_a_sparse_map_cannot_be_mended() -> None:
    sparse = old_gnu_sparse(b"s.bin", 9)
    for at, block in ((386, 0), (398, 0), (483, 0), (0, 1), (108, 1)):
        low = block * 512
        odd = bytearray(sparse)
        odd[low + at : low + at + 12] = b"garbage".ljust(12, b"\0")
        data = checksum(bytes(odd[:512])) + bytes(odd[512:]) + END
        with raises(CorruptShardError, shard="s.tar", offset=0):
            scan("s.tar", data)


@pytest.mark.parametrize(
    "records",
    [
        {b"GNU.sparse.size": b"x"},
        {b"GNU.sparse.size": b"4096", b"GNU.sparse.map": b"0,one"},
        {b"GNU.sparse.realsize": b"-4"},
        {b"GNU.sparse.size": b""},
    ],
)
def test_nor_can_numbers_in_sparse_records(records: dict[bytes, bytes]) -> None:
    data = pax(records) + member(b"a.jpg", b"x" * 512) + END
    with raises(CorruptShardError, "GNU.sparse.", shard="s.tar", offset=1024):
        scan("s.tar", data)


@pytest.mark.parametrize("typeflag", [b"1", b"2", b"5", b"3"])
def test_what_has_no_data_cannot_be_sparse(typeflag: bytes) -> None:
    records = pax({b"GNU.sparse.size": b"100", b"GNU.sparse.map": b"50,5"})
    data = member(b"a.jpg", b"aaaaa") + records + header(b"l.jpg", 0, typeflag, link=b"a.jpg") + END
    with raises(CorruptShardError, "'l.jpg'", shard="s.tar", offset=2048):
        scan("s.tar", data)
    governed = pax({b"GNU.sparse.size": b"100"}, b"g") + header(b"l", 0, typeflag, link=b"a") + END
    with raises(CorruptShardError, "'l'", shard="s.tar", offset=1024):
        scan("s.tar", governed)


def test_of_repeated_long_names_the_last_counts() -> None:
    """As Toybox's tar leaves them of files that it could not open: GNU tar takes the last one,
    tarfile the first."""
    other = LONG.replace(b"long.jpg", b"unreadable.jpg")
    data = (
        member(b"a.jpg", b"a")
        + gnu_long(other)
        + gnu_long(LONG)
        + member(LONG[:100], b"bb", style="gnu")
        + gnu_long(other)
        + gnu_long(LONG, b"K")
        + gnu_long(other)
        + gnu_long(LONG + b".l")
        + header(LONG[:100], 0, b"2", link=LONG[:100], style="gnu")
        + END
    )
    table = scan("s.tar", data)
    assert table.names.tolist() == [b"a.jpg", LONG, LONG + b".l"]
    assert table.notes.long_names_repeated == (1, 2)
    assert as_plain(table) == as_plain(scan_by_the_book(data))
    copy = rewritten(data, table)
    assert listed(data) == listed(copy) == b"a.jpg\n%b\n%b.l\n" % (LONG, LONG)
    with tarfile.open(fileobj=io.BytesIO(copy)) as archive:
        assert archive.getnames() == [name.decode() for name in table.names.tolist()]
        assert archive.getmembers()[2].linkname == LONG.decode()


def test_what_is_mended_takes_no_more_memory_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dsort.containers.tar import member as tar_member

    monkeypatch.setattr(tar_member, "FOLDED_BYTES_MAX", 1 << 20)
    bad = with_field(member(b"a.jpg"), FIELDS["gid"], b"garbage\0")
    with raises(CorruptShardError, "1 MiB", shard="s.tar", offset=1049088):
        scan("s.tar", bad * 3000 + END)


def pax_headers_after(data: bytes) -> dict[str, dict[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(rewritten(data, scan("s.tar", data)))) as archive:
        assert archive.pax_headers == {}
        return {info.name: dict(info.pax_headers) for info in archive}


def test_an_empty_global_name_or_size_is_refused() -> None:
    for records in ({b"path": b""}, {b"size": b""}):
        data = pax(records, b"g") + member(b"a") + END
        with raises(CorruptShardError, shard="s.tar", offset=1024):
            scan("s.tar", data)


def test_members_that_say_it_all_themselves_are_copied_raw() -> None:
    data = pax({b"mtime": b"1.5"}, b"g") + pax({b"mtime": b"2.5"}) + member(b"a") + END
    table = scan("s.tar", data)
    assert table.literals == {}
    assert table.range_start.tolist() == [1024]
    assert pax_headers_after(data) == {"a": {"mtime": "2.5"}}


def test_members_without_records_of_their_own_share_one_header() -> None:
    data = pax({b"mtime": b"1.5"}, b"g") + b"".join(member(b"%d" % i) for i in range(500)) + END
    table = scan("s.tar", data)
    assert len(table.literals) == 500
    assert len({id(literal) for literal in table.literals.values()}) == 1


def test_a_global_name_and_size_count_where_no_own_one_does() -> None:
    data = (
        pax({b"path": LONG, b"size": b"3"}, b"g")
        + header(b"short", 0)
        + b"abc".ljust(512, b"\0")
        + gnu_long(b"longer.jpg")
        + member(b"short", b"abc")
        + pax({b"path": b"own.jpg", b"size": b"4"})
        + member(b"short", b"abcd")
        + END
    )
    table = scan("s.tar", data)
    assert table.names.tolist() == [LONG, b"longer.jpg", b"own.jpg"]
    assert table.payload_bytes.tolist() == [3, 3, 4]
    assert scan("copy.tar", rewritten(data, table)).names.tolist() == table.names.tolist()


def test_counts_tell_folded_from_dropped() -> None:
    headers = [{b"comment": b"c"}, {b"GNU.volume.label": b"v"}, {b"gid": b"7"}, {b"comment": b"d"}]
    data = b"".join(pax(records, b"g") for records in headers) + member(b"a") + END
    notes = scan("s.tar", data).notes
    assert (notes.global_headers_folded, notes.global_headers_dropped) == (1, 3)


@pytest.mark.parametrize(
    "one",
    [
        pax({b"atime": b"1"}) + member(b"a"),
        gnu_long(b"name") + member(b"a"),
        header(b"l", 0, b"1", link=b"a"),
    ],
    ids=["own records", "own long name", "hard links"],
)
def test_hostile_global_headers_cannot_ask_for_more_memory_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, one: bytes
) -> None:
    monkeypatch.setattr(tar_member, "FOLDED_BYTES_MAX", 1 << 20)
    data = pax({b"uname": b"u" * 100_000}, b"g") + one * 20 + END
    with raises(CorruptShardError, "1 MiB", shard="s.tar"):
        scan("s.tar", data)


def test_nor_can_hostile_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_member, "FOLDED_BYTES_MAX", 1 << 20)
    data = pax({b"path": b"p" * 100_000}, b"g") + member(b"a") * 20 + END
    with raises(CorruptShardError, "1 MiB", shard="s.tar", offset=105472):
        scan("s.tar", data)


def test_nor_can_very_many_keywords() -> None:
    data = pax({b"k%d" % i: b"v" for i in range(300)}, b"g") + member(b"a") + END
    with raises(CorruptShardError, "256", shard="s.tar", offset=0):
        scan("s.tar", data)


@pytest.mark.parametrize(
    "records",
    [{b"linkpath": b"t" * (1 << 20) + b"t"}, {b"GNU.sparse.map": b"1," * 600 + b"1"}],
    ids=["values", "sparse map"],
)
def test_nor_can_values_that_each_member_looks_at_be_large(records: dict[bytes, bytes]) -> None:
    data = member(b"first") + pax(records, b"g") + member(b"a") + END
    with raises(CorruptShardError, shard="s.tar", offset=512):
        scan("s.tar", data)
