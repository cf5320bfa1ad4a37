"""Random and hostile tars: a shard is either refused or read as ``tarfile`` reads it, and always
the same however it is read. No crash, no hang, no member lost in silence, whatever the bytes."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind, MemberTable
from tests.support.sampling import examples
from tests.support.tar_builder import (
    END,
    checksum,
    gnu_long,
    header,
    member,
    old_gnu_sparse,
    pax,
    pax_record,
)
from tests.support.tar_reading import (
    as_plain,
    members_in,
    scan,
    scan_by_the_book,
    scan_in_windows,
)
from tests.support.tar_torture import LONG, rewritten

SETTINGS = settings(max_examples=examples(250), suppress_health_check=[HealthCheck.too_slow])

NAMES = st.one_of(
    st.integers(0, 999).map(lambda number: b"%03d.jpg" % number),
    st.binary(min_size=1, max_size=100).map(lambda raw: raw.replace(b"\0", b"_") + b".jpg"),
    st.integers(1, 600).map(lambda length: b"long/" * (length // 5) + b"x.jpg"),
)
PAYLOADS = st.integers(0, 4000).map(lambda size: bytes(i % 251 for i in range(size)))
TIMES = st.dictionaries(
    st.sampled_from([b"mtime", b"atime", b"ctime"]),
    st.sampled_from([b"1", b"1700000000.123456789", b"-5.25"]),
    min_size=1,
)
OTHERS = st.dictionaries(
    st.sampled_from([b"uname", b"comment", b"SCHILY.xattr.a", b"mtime", b"time"]),
    st.binary(max_size=600),
    min_size=1,
)


class Shard(bytes):
    """Bytes that a failing test does not print: the seed says enough."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@st.composite
def groups(draw: st.DrawFn) -> bytes:
    """One member with all its headers, or what else stands between members."""
    name, payload = draw(NAMES), draw(PAYLOADS)
    short = name[:100].rstrip(b"/") or b"x"
    style = draw(st.sampled_from(["posix", "posix", "gnu", "v7"]))
    sort = draw(st.sampled_from(["plain"] * 6 + ["prefix", "times", "pax", "L", "odd", "kind"]))
    if sort == "prefix":
        return member(short, payload, prefix=draw(NAMES)[:155])
    if sort == "times":
        return pax(draw(TIMES)) + member(short, payload)
    if sort == "pax":
        return pax({b"path": name, **draw(st.one_of(TIMES, OTHERS))}) + member(b"x", payload)
    if sort == "L":
        return gnu_long(name) + member(name[:100], payload, style="gnu")
    if sort == "kind":
        return header(name[:100], 0, draw(st.sampled_from([b"2", b"3", b"5", b"6"])))
    if sort == "odd":
        return draw(
            st.sampled_from(
                [
                    member(b"inner.tar", member(b"inner.jpg", payload) + END),
                    old_gnu_sparse(b"sparse", len(payload) % 40 + 1),
                    pax({b"comment": b"c"}, b"g"),
                    pax({b"size": b"%d" % len(payload)}) + member(short, payload),
                    checksum(header(b"signed\xff"), signed=True),
                    header(b"base-256", b"\x80" + bytes(11)),
                    member(b"vendor", payload, b"Q"),
                ]
            )
        )
    return member(short, payload, style=style)


@st.composite
def shards(draw: st.DrawFn) -> bytes:
    """A valid shard: some groups, runs of like members between them, and some end."""
    parts = []
    for group in draw(st.lists(groups(), max_size=12)):
        repeats = draw(st.sampled_from([1, 1, 1, 2, 40, 150]))
        parts.append(group * (repeats if len(group) < 4000 else 1))
    end = draw(st.sampled_from([END, END, b"", bytes(512), END + bytes(5000), END + b"junk"]))
    return Shard(b"".join([*parts, end]))


def outcome(read: Callable[[], MemberTable]) -> object:
    """The table, or the error, for comparison."""
    try:
        return as_plain(read())
    except CorruptShardError as error:
        return (error.offset, error.reason)


def check_ways_agree(data: bytes, windows: list[int], before: int) -> MemberTable | None:
    """The table of ``data``, the same in every way to read it; None if it is refused."""
    whole = outcome(lambda: scan("s.tar", data))
    assert outcome(lambda: scan_by_the_book(data)) == whole
    assert outcome(lambda: scan_in_windows(data, windows, before=before)) == whole
    return scan("s.tar", data) if len(whole) > 2 else None  # type: ignore[arg-type]


WINDOWS = st.lists(st.integers(1, 20_000), min_size=1, max_size=6)


@SETTINGS
@given(shards(), WINDOWS, st.integers(0, 600))
def test_a_valid_shard_is_read_alike_in_every_way(
    data: bytes, windows: list[int], before: int
) -> None:
    table = check_ways_agree(data, windows, before)
    assert table is not None
    copy = rewritten(data, table)
    again = scan("copy.tar", copy)
    assert members_in(copy, again) == members_in(data, table)


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A shard after a few mutations; most keep the checksums right, to reach what is behind."""
    data = bytearray(draw(shards()))
    for _ in range(draw(st.integers(1, 4))):
        blocks = max(len(data) // 512, 1)
        at = draw(st.integers(0, blocks - 1)) * 512
        sort = draw(
            st.sampled_from(["field", "field", "field", "byte", "cut", "drop", "twice", "zero"])
        )
        if sort == "field":
            low, high = draw(st.sampled_from(FIELDS))
            raw = draw(st.sampled_from(FIELD_VALUES)) or draw(st.binary(max_size=high - low))
            raw = raw[: high - low]
            block = bytes(data[at : at + 512]).ljust(512, b"\0")
            data[at : at + 512] = checksum(block[:low] + raw + block[low + len(raw) :])
        elif sort == "byte" and data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        elif sort == "cut":
            del data[draw(st.integers(0, len(data))) :]
        elif sort == "drop":
            del data[at : at + 512]
        elif sort == "twice":
            data[at:at] = data[at : at + 512 * draw(st.integers(1, 3))]
        elif sort == "zero":
            data[at : at + 512] = bytes(512)
    return Shard(data)


FIELDS = [
    (0, 100),
    (124, 136),
    (124, 136),
    (156, 157),
    (156, 157),
    (157, 257),
    (257, 265),
    (345, 500),
]
FIELD_VALUES = [
    *(b"%011o\0" % size for size in (0, 1, 512, 513, 1000, 8**11 - 1)),
    b"\x80" + bytes(10) + b"\7",
    b"\xff" * 12,
    b"-0000000001\0",
    *(bytes([flag]) for flag in b"0\x001234567xgLKSVMDXN"),
    b"ustar\x0000",
    b"ustar  \0",
    b"000.jpg",
    b"dir/",
    None,
]  # fmt: skip


@SETTINGS
@given(mutants(), WINDOWS, st.integers(0, 600))
def test_a_mutated_shard_is_refused_or_read_as_tarfile_reads_it(
    data: bytes, windows: list[int], before: int
) -> None:
    table = check_ways_agree(data, windows, before)
    if table is None:
        return
    check_ranges(data, table)
    check_against_tarfile(data, table)
    copy = rewritten(data, table)
    assert members_in(copy, scan("copy.tar", copy)) == members_in(data, table)


@st.composite
def pax_payloads(draw: st.DrawFn) -> bytes:
    """The payload of a pax header, almost right."""
    lines = []
    for _ in range(draw(st.integers(0, 7))):
        keyword = draw(
            st.sampled_from([b"mtime", b"atime", b"ctime", b"path", b"path", *ODD_WORDS])
        )
        value = draw(st.sampled_from([b"1.5", b"1700000000.1", b"p.jpg", LONG, b"l" * 200, *ODD]))
        line = pax_record(keyword, value)
        if draw(st.integers(0, 9)) == 0:
            digits, blank, rest = line.partition(b" ")
            off = draw(st.integers(-2, 2))
            line = b"%0*d%b%b" % (len(digits), int(digits) + off, blank, rest)
        lines.append(line)
    return b"".join(lines) + draw(st.sampled_from([b""] * 9 + [b"\0", b"\n", b"7 "]))


ODD_WORDS = [b"mtimf", b"xtime", b"patH", b"pat", b"pathx", b"linkpath", b"comment", b"size"]
ODD = [b"", b"7", b"a\nb", b"a=b", b"a\0b", b"dir/"]


@SETTINGS
@given(st.lists(pax_payloads(), min_size=1, max_size=8), st.integers(0, 3))
def test_pax_records_are_read_alike_in_every_way(payloads: list[bytes], size: int) -> None:
    parts = [pax(payload) + member(b"short", b"x" * size) for payload in payloads]
    data = Shard(b"".join(parts) + END)
    table = check_ways_agree(data, [2048], 0)
    if table is not None:
        check_against_tarfile(data, table)


@SETTINGS
@given(st.binary(max_size=3000))
def test_random_bytes_are_refused_or_empty(data: bytes) -> None:
    table = check_ways_agree(data, [1024], 0)
    assert table is None or len(table) == 0


def check_ranges(data: bytes, table: MemberTable) -> None:
    """Ranges are inside the shard, hold the payload and do not overlap, but for those that hard
    links share with their targets. A range without headers has them in a literal."""
    starts, payloads = table.range_start.tolist(), table.payload_start.tolist()
    ends = (table.range_start + table.range_length).tolist()
    payload_ends = (table.payload_start + table.payload_bytes).tolist()
    rows = range(len(table))
    assert all(0 <= starts[row] <= payloads[row] <= payload_ends[row] <= ends[row] for row in rows)
    assert all(end <= len(data) for end in ends)
    bare = {row for row in rows if starts[row] == payloads[row]}
    assert all(literal and len(literal) % 512 == 0 for literal in table.literals.values())
    assert bare <= table.literals.keys()
    # Headers stand between two payloads: rows with one payload are a member and links to it.
    members = {payloads[row]: row for row in rows} | {
        payloads[row]: row for row in rows if row not in bare
    }
    assert len(table) - len(members) == table.notes.hardlinks_resolved
    links = set(rows) - set(members.values())
    assert links <= bare
    assert all(ends[row] == ends[members[payloads[row]]] for row in links)
    # Which of them is the member does not matter if none has headers in its range.
    own = [(starts[row], ends[row]) for _, row in sorted(members.items())]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))
    alone = [row for row in rows if row not in bare]
    assert alone == sorted(alone, key=payloads.__getitem__)
    odd = {*table.notes.mended, *table.notes.long_names_repeated}
    assert len(bare - odd) <= table.notes.hardlinks_resolved


def check_against_tarfile(data: bytes, table: MemberTable) -> None:
    """What ``tarfile`` reads to a proper end, it reads as ``table`` says."""
    try:
        archive = tarfile.open(  # noqa: SIM115 - closed below
            fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape"
        )
        infos = archive.getmembers()
    except (tarfile.TarError, ValueError, UnicodeError, OverflowError):
        return
    with archive:
        at = archive.offset
        if any(data[at : at + 512]) or "size" in archive.pax_headers:
            return  # it stopped at what is no header; it ignores a global size
        infos = [info for info in infos if info.type != b"V"]
        if table.notes.lone_zero_blocks or table.notes.concatenated:
            # It stops at the first zero block or end marker, as GNU tar does at a marker; we read
            # on and say so. What it has read must be all that we have read before that place.
            before = int((table.payload_start <= at).sum())  # a hard link has its target's
            assert len(infos) == before or table.notes.hardlinks_resolved
        else:
            assert len(infos) == len(table)
        for row, info in enumerate(infos):
            main = data[info.offset_data - 512 : info.offset_data]
            name = info.name.encode("utf-8", "surrogateescape").rstrip(b"/")
            if main[257:263] == b"ustar\0" or main[345] == 0:  # else it sees a wrong prefix
                assert table.names[row].rstrip(b"/") == name
            if info.islnk() or info.issparse() or "GNU.sparse.major" in info.pax_headers:
                continue
            start, size = int(table.payload_start[row]), int(table.payload_bytes[row])
            if info.isreg():
                assert (start, size) == (info.offset_data, info.size)
            assert (table.kind[row] == MemberKind.SYMLINK) == info.issym()


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1023, 1024, 1025])
@pytest.mark.parametrize("byte", [0, 32, 48, 255])
def test_shards_of_one_byte_value_are_refused_or_empty(size: int, byte: int) -> None:
    table = check_ways_agree(bytes([byte]) * size, [1], 0)
    assert (table is not None) == (size == 0 or (byte == 0 and size >= 512))
