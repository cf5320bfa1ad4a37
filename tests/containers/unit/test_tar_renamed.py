"""A renamed member has its new name for every reader, and all its other metadata as before."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsort.containers.tar.container import TAR
from dsort.containers.tar.header import renamed
from dsort.containers.tar.scan import END_OF_ARCHIVE
from tests.support.internals import BytesColumn
from tests.support.tar_builder import gnu_long, header, member, old_gnu_sparse, pax
from tests.support.tar_reading import listed, scan
from tests.support.tar_torture import HUGE, LONG, TORN

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
NAMES = {
    "short": b"dir/a-1.jpg",
    "100 bytes": b"n" * 100,
    "with room in the prefix": b"d" * 120 + b"/a-1.jpg",
    "too long for a header": b"n" * 101 + b"-1.jpg",
    "very long": HUGE,
    "no UTF-8": TORN,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_reader_sees_the_new_name_and_nothing_else_changed(form: str, name: str) -> None:
    headers, new_name = FORMS[form], NAMES[name]
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


@pytest.mark.parametrize("name", NAMES)
def test_headers_of_all_forms_are_renamed_together_as_one_by_one(name: str) -> None:
    headers, names = BytesColumn.of([*FORMS.values()]), BytesColumn.of([NAMES[name]] * len(FORMS))
    found = TAR.renamed(headers, names).tolist()
    assert found == [renamed(each, NAMES[name]) for each in FORMS.values()]


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
def test_what_is_no_name_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="not a member name"):
        renamed(FORMS["ustar"], name)


def test_the_headers_of_a_row_with_a_literal_are_renamed_alike() -> None:
    data = pax({b"uname": b"someone"}, b"g") + member(b"a.jpg", b"payload") + END_OF_ARCHIVE
    table = scan("s.tar", data)
    start = int(table.range_start[0])
    headers = table.literals[0] + data[start : int(table.payload_start[0])]
    info = _info(renamed(headers, b"new.jpg") + BODY + END_OF_ARCHIVE)
    assert (info.name, info.uname) == ("new.jpg", "someone")
