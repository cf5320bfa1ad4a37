"""A renamed member has its new name for every reader and all its other metadata as before; new
names of many members at once are what they are one by one, however records are copied."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.containers.tar.container import TAR
from dsort.containers.tar.header import renamed
from dsort.containers.tar.header import renamed as tar_renamed
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.containers.zip.container import ZIP
from dsort.containers.zip.layout import (
    DESCRIBED,
    ENTRY,
    LARGE,
    LOCAL,
    UNICODE_NAME_ID,
    UTF8,
    without_extras,
)
from tests.support.internals import (
    JOINED_BYTES_MAX,
    NO_NEW_NAMES,
    BytesColumn,
    Int64s,
    MemberTable,
    NewNames,
    ShardBytes,
    cut_rows,
    decimals,
    form_records,
    renamed_slices,
    row_by_row,
    slices_of,
    with_names_written,
    with_new_names,
)
from tests.support.refusals import raises
from tests.support.tar_builder import gnu_long, header, member, old_gnu_sparse, pax
from tests.support.tar_reading import listed, scan
from tests.support.tar_torture import HUGE, LONG, TORN

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG_NAME = "long/" * 40 + "name.jpg"
NAMES = [b"a.jpg", b"d/" + b"x" * 98, b"d/" + b"x" * 99, b"p/" * 70 + b"q.cls", "ä.txt".encode()]


def tar_of(kind: str, names: list[str], *, mtime: float = 0, size: int = 700) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[kind]) as archive:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = size + number, mtime  # type: ignore[assignment]
            archive.addfile(info, io.BytesIO(bytes([number % 251]) * info.size))
    return file.getvalue()


def zip_of(names: list[str], *, extra: bytes = b"", comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(name)
            info.extra, info.comment = extra, comment
            archive.writestr(info, b"x" * number)
    return file.getvalue()


def zip_renamed(headers: bytes, new_name: bytes) -> bytes:
    """The headers of one member, for the name ``new_name``."""
    fields = list(LOCAL.unpack_from(headers))
    name_stop = LOCAL.size + fields[9]
    extra_stop = name_stop + fields[10]
    extra = without_extras(headers[name_stop:extra_stop], UNICODE_NAME_ID)
    if not new_name.isascii():
        fields[2] |= UTF8
    fields[9:11] = len(new_name), len(extra)
    return LOCAL.pack(*fields) + new_name + extra + headers[extra_stop:]


def entry_for(headers: bytes, entry: bytes) -> bytes:
    """The entry of one member that gets new ``headers``."""
    local, fields = LOCAL.unpack_from(headers), list(ENTRY.unpack_from(entry))
    name = headers[LOCAL.size : LOCAL.size + local[9]]
    name_stop = ENTRY.size + fields[10]
    extra_stop = name_stop + fields[11]
    extra, comment = entry[name_stop:extra_stop], entry[extra_stop:]
    if name != entry[ENTRY.size : name_stop]:
        extra = without_extras(extra, UNICODE_NAME_ID)
        if (fields[3] ^ local[2]) & UTF8 and not comment.isascii():
            comment = b""
    fields[3:5] = local[2], local[3]
    if not local[2] & DESCRIBED and LARGE not in local[7:9]:
        fields[7:10] = local[6:9]
    fields[10:13] = len(name), len(extra), len(comment)
    return ENTRY.pack(*fields) + name + extra + comment


class _Opened:
    """A shard in memory, as far as its headers are asked for."""

    name, ranges, at = "in.tar", ShardBytes.ranges, ShardBytes.at

    def __init__(self, container: Container, data: bytes) -> None:
        self.container, self.whole = container, memoryview(bytearray(data))
        self.is_whole = True


def headers_in(data: bytes, members: MemberTable) -> list[bytes]:
    bounds = zip(members.range_start.tolist(), members.payload_start.tolist(), strict=True)
    return [data[start:end] for start, end in bounds]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mtime", [0, 1.5])
@pytest.mark.parametrize("old", ["short.jpg", LONG_NAME, "ü.jpg"])
def test_tar_headers_are_renamed_together_as_one_by_one(kind: str, mtime: float, old: str) -> None:
    data = tar_of(kind, [f"{number}{old}" for number in range(len(NAMES))], mtime=mtime)
    headers = headers_in(data, TAR.scan("in.tar", data))
    found = TAR.renamed(BytesColumn.of(headers), BytesColumn.of(NAMES)).tolist()
    assert found == [tar_renamed(*pair) for pair in zip(headers, NAMES, strict=True)]


def test_a_prefix_that_some_reader_sees_goes_with_the_old_name() -> None:
    posix = tar_of("ustar", ["d/" * 60 + "x.jpg"])[:512]
    old_gnu = bytearray(tar_of("gnu", ["x.jpg"])[:512])
    old_gnu[345:350] = b"../up"
    headers = [posix, bytes(old_gnu), bytes(old_gnu[:345]) + b"12345" + bytes(162)]
    names = [b"new.jpg"] * 3
    found = TAR.renamed(BytesColumn.of(headers), BytesColumn.of(names)).tolist()
    # ``tar_renamed`` wants a checksum that holds.
    mended = [tar_renamed(posix, b"x"), *(_summed(header) for header in headers[1:])]
    assert found == [tar_renamed(*pair) for pair in zip(mended, names, strict=True)]
    assert b"../up" not in found[1]


def _summed(header: bytes) -> bytes:
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    return header[:148] + b"%06o\0 " % total + header[156:]


@pytest.mark.parametrize("extra", [b"", b"UT\1\0x", b"up\2\0xy", b"zz\2\0up"])
@pytest.mark.parametrize("comment", [b"", "ö".encode()])
def test_zip_headers_and_entries_are_renamed_together_as_one_by_one(
    extra: bytes, comment: bytes
) -> None:
    data = zip_of([f"{number}.jpg" for number in range(len(NAMES))], extra=extra, comment=comment)
    members = ZIP.scan("in.zip", data)
    assert members.entries is not None
    headers = BytesColumn.of(headers_in(data, members))
    found = ZIP.renamed(headers, BytesColumn.of(NAMES))
    pairs = zip(headers.tolist(), NAMES, strict=True)
    assert found.tolist() == [zip_renamed(*pair) for pair in pairs]
    entries = ZIP.entries.renewed(found, members.entries).tolist()
    each = zip(found.tolist(), members.entries.tolist(), strict=True)
    assert entries == [entry_for(*pair) for pair in each]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [10, 700, JOINED_BYTES_MAX + 1000])
@pytest.mark.parametrize("new", ["{}.new", "{}" + "n" * 95, "{}" + "n" * 96])
@pytest.mark.sample(keep=9)
def test_records_are_the_same_bytes_wherever_their_new_names_are_written(
    kind: str, size: int, new: str
) -> None:
    old = [f"{number:03d}.{end}" for number in range(40) for end in ("jpg", "cls", "x")]
    data = tar_of(kind, old, mtime=1.5, size=size)
    members = TAR.scan("in.tar", data)
    texts = [name if name.endswith("cls") else new.format(name).encode() for name in old]
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    named = replace(members, names=BytesColumn.of(texts))
    records = form_records(members, "keep")
    order = np.array(random.Random(size).sample(range(40), 40))

    def written(how: str) -> bytes:
        shard = _Opened(TAR, data)
        if how == "literals":
            table = with_new_names(shard, members, named, records.member_rows)  # type: ignore[arg-type]
            formed = records.stored_as(table)
        else:
            table, formed = with_names_written(
                shard,  # type: ignore[arg-type]
                members,
                named,
                records,
                in_place=how == "in place",
            )
        segments = formed.segments(table).take(order)
        if not len(segments.names):
            return b"".join(slices_of(memoryview(shard.whole), segments))
        stored, source = formed.stored_bytes[order], np.zeros(len(order), np.int32)
        runs = renamed_slices(TAR.names.overwriting, {0: shard.whole}, source, segments, stored)
        return b"".join(bytes(piece) for run in runs for piece in run)

    wanted = written("literals")
    assert written("in place") == wanted
    assert written("when they are copied") == wanted
    with tarfile.open(fileobj=io.BytesIO(wanted + bytes(1024))) as archive:
        found = [member.name.encode() for member in archive]
    assert found == [texts[3 * record + at] for record in order.tolist() for at in range(3)]


def test_names_go_with_their_records() -> None:
    def names_of(found: NewNames) -> list[list[tuple[int, bytes]]]:
        rows = list(zip(found.at.tolist(), found.names.tolist(), strict=True))
        bounds = found.offsets.tolist()
        return [rows[a:b] for a, b in pairwise(bounds)]

    names = NewNames(np.array([0, 2, 2, 3]), np.array([0, 9, 5]), BytesColumn.of([b"a", b"", b"c"]))
    each = [[(0, b"a"), (9, b"")], [], [(5, b"c")]]
    assert names_of(names) == each
    assert names_of(names.take(np.array([2, 0]))) == [each[2], each[0]]
    assert names_of(names.run(1, 3)) == each[1:]
    parts = [(names, 3), (NO_NEW_NAMES, 1), (names, 3)]
    assert names_of(NewNames.concat(parts)) == [*each, [], *each]


@pytest.mark.parametrize("lengths", [[3, 3, 3], [0, 7, 1, 30], [1, 200, 2], [0, 0], [90, 95, 0]])
@pytest.mark.parametrize("steps", [1, -1])
def test_rows_are_cut_out_of_a_blob_in_any_order(lengths: list[int], steps: int) -> None:
    blob = np.frombuffer(random.Random(1).randbytes(sum(lengths)), np.uint8)
    ends = np.cumsum(lengths)
    starts: Int64s = (ends - lengths)[::steps]
    sizes = np.array(lengths, np.int64)[::steps]
    found = cut_rows(blob, starts, sizes).tolist()
    data = blob.tobytes()
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    assert found == [data[start : start + size] for start, size in pairs]


@pytest.mark.parametrize("digits", [0, 1, 4, 9])
def test_numbers_have_at_least_so_many_digits(digits: int) -> None:
    numbers = [0, 9, 10, 99, 100, 12345]
    found = decimals(np.array(numbers, np.int64), digits).tolist()
    assert found == [b"%0*d" % (digits, number) for number in numbers]
    assert decimals(np.zeros(0, np.int64), digits).tolist() == []


def test_rows_that_are_made_apart_stand_where_they_belong() -> None:
    for apart in ([False] * 4, [True] * 4, [True, False, False, True]):
        found = row_by_row(
            np.array(apart),
            lambda row: b"one%d" % row,
            lambda rows: BytesColumn.of([b"%d" % row for row in rows.tolist()]),
        )
        wanted = [b"one%d" % row if alone else b"%d" % row for row, alone in enumerate(apart)]
        assert found.tolist() == wanted


BODY = b"payload".ljust(512, b"\0")

FORMS = {
    "ustar": header(b"dir/a.jpg", 7),
    "ustar with a prefix": header(b"a.jpg", 7, prefix=b"some/dir"),
    "GNU": header(b"dir/a.jpg", 7, style="gnu"),
    "V7": header(b"dir/a.jpg", 7, b"\0", style="v7"),
    "GNU long name": gnu_long(LONG) + header(LONG[:100], 7, style="gnu"),
    "pax path": pax({b"mtime": b"7.5", b"path": LONG}) + header(LONG[:100], 7),
    "pax, times only": pax({b"mtime": b"7.5"}) + header(b"dir/a.jpg", 7),
    "Solaris pax": pax({b"path": LONG}, b"X") + header(b"short", 7),
    "pax and GNU long name": pax({b"mtime": b"7.5"}) + gnu_long(LONG) + header(b"a", 7),
}
NEW_NAMES = {
    "short": b"dir/a-1.jpg",
    "100 bytes": b"n" * 100,
    "with room in the prefix": b"d" * 120 + b"/a-1.jpg",
    "too long for a header": b"n" * 101 + b"-1.jpg",
    "very long": HUGE,
    "no UTF-8": TORN,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NEW_NAMES)
def test_every_reader_sees_the_new_name_and_nothing_else_changed(form: str, name: str) -> None:
    headers, new_name = FORMS[form], NEW_NAMES[name]
    after = renamed(headers, new_name) + BODY + END_OF_ARCHIVE
    table = scan("s.tar", after)
    assert table.names.tolist() == [new_name]
    assert table.payload_bytes.tolist() == [7]
    assert table.literals == {}
    assert listed(after) == new_name + b"\n"
    old, new = (
        _info(blocks + BODY + END_OF_ARCHIVE) for blocks in (headers, renamed(headers, new_name))
    )
    assert new.name.encode("utf-8", "surrogateescape") == new_name
    for field in ("mode", "uid", "gid", "size", "mtime", "uname", "gname", "type"):
        assert getattr(new, field) == getattr(old, field), field
    assert _but_names(new) == _but_names(old)


@pytest.mark.parametrize("name", NEW_NAMES)
def test_headers_of_all_forms_are_renamed_together_as_one_by_one(name: str) -> None:
    headers, names = (
        BytesColumn.of([*FORMS.values()]),
        BytesColumn.of([NEW_NAMES[name]] * len(FORMS)),
    )
    found = TAR.renamed(headers, names).tolist()
    assert found == [renamed(each, NEW_NAMES[name]) for each in FORMS.values()]


def _info(data: bytes) -> tarfile.TarInfo:
    with tarfile.open(
        fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape"
    ) as archive:
        return archive.getmembers()[0]


def _but_names(info: tarfile.TarInfo) -> dict[str, str]:
    return {key: value for key, value in info.pax_headers.items() if key != "path"}


def test_a_name_that_fits_needs_no_header_of_its_own() -> None:
    for form in ("ustar", "ustar with a prefix", "GNU", "V7", "GNU long name"):
        assert len(renamed(FORMS[form], b"short.jpg")) == 512
        assert len(renamed(FORMS[form], b"n" * 101)) > 512
    long, prefix = b"n" * 100, b"p" * 155 + b"/"
    for fits, does_not in (
        (long, long + b"n"),
        (prefix + long, prefix + long + b"n"),
        (prefix + b"n", b"p" + prefix + b"n"),
    ):
        assert len(renamed(FORMS["ustar"], fits)) == 512 < len(renamed(FORMS["ustar"], does_not))


def test_a_name_goes_where_the_member_had_its_own() -> None:
    long = b"n" * 120
    assert renamed(FORMS["GNU"], long)[156:157] == b"L"
    assert renamed(FORMS["V7"], long)[156:157] == b"L"
    assert renamed(FORMS["GNU long name"], long)[156:157] == b"L"
    assert renamed(FORMS["ustar"], long)[156:157] == b"x"
    assert renamed(FORMS["pax, times only"], long)[156:157] == b"x"
    assert len(renamed(FORMS["pax, times only"], long)) == 1536


def test_links_and_targets_stay() -> None:
    headers = gnu_long(HUGE, b"K") + gnu_long(LONG) + header(b"s", 0, b"2", link=b"t", style="gnu")
    for name in (b"new", LONG + b"-1"):
        info = _info(renamed(headers, name) + END_OF_ARCHIVE)
        assert (info.name.encode(), info.linkname.encode()) == (name, HUGE)


def test_sparse_members_keep_their_maps() -> None:
    whole = old_gnu_sparse(b"s.bin", 30)
    table = scan("s.tar", whole + END_OF_ARCHIVE)
    start = int(table.payload_start[0])
    moved = renamed(whole[:start], b"new.bin") + whole[start:] + END_OF_ARCHIVE
    with (
        tarfile.open(fileobj=io.BytesIO(whole + END_OF_ARCHIVE)) as before,
        tarfile.open(fileobj=io.BytesIO(moved)) as after,
    ):
        old, new = before.extractfile("s.bin"), after.extractfile("new.bin")
        assert old is not None
        assert new is not None
        assert new.read() == old.read()


def test_pax_sparse_members_are_renamed_where_readers_look() -> None:
    records = {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": b"s.bin",
        b"GNU.sparse.realsize": b"4099",
    }
    headers = pax(records) + header(b"GNUSparseFile.1/s.bin", 515)
    stored = (b"1\n4096\n3\n".ljust(512, b"\0") + b"abc").ljust(1024, b"\0")
    data = renamed(headers, b"new.bin") + stored + END_OF_ARCHIVE
    assert scan("s.tar", data).names.tolist() == [b"new.bin"]
    assert listed(data) == b"new.bin\n"


@pytest.mark.parametrize("name", [b"", b"a\0b"])
def test_what_is_no_name_is_refused_also_among_others(name: bytes) -> None:
    with raises(ValueError, repr(name)):
        renamed(FORMS["ustar"], name)
    header = tar_of("pax", ["x.jpg"])[:512]
    with raises(ValueError, repr(name)):
        TAR.renamed(BytesColumn.of([header] * 2), BytesColumn.of([b"x", name]))


def test_the_headers_of_a_row_with_a_literal_are_renamed_alike() -> None:
    data = pax({b"uname": b"someone"}, b"g") + member(b"a.jpg", b"payload") + END_OF_ARCHIVE
    table = scan("s.tar", data)
    start = int(table.range_start[0])
    headers = table.literals[0] + data[start : int(table.payload_start[0])]
    info = _info(renamed(headers, b"new.jpg") + BODY + END_OF_ARCHIVE)
    assert (info.name, info.uname) == ("new.jpg", "someone")
