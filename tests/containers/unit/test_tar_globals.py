"""What a pax global header says goes with every member that it governs, once the member has left
its shard; what says nothing that matters is dropped. Neither costs memory without limit."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsort.containers.tar import member as tar_member
from dsort.errors import CorruptShardError
from tests.support.tar_builder import END, gnu_long, header, member, pax
from tests.support.tar_reading import scan
from tests.support.tar_torture import LONG, rewritten


def pax_headers_after(data: bytes) -> dict[str, dict[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(rewritten(data, scan("s.tar", data)))) as archive:
        assert archive.pax_headers == {}
        return {info.name: dict(info.pax_headers) for info in archive}


def test_own_records_win_and_later_global_ones_override() -> None:
    data = (
        pax({b"mtime": b"1.5", b"uname": b"first", b"comment": b"dropped"}, b"g")
        + member(b"a")
        + pax({b"uname": b"own", b"atime": b"9"})
        + member(b"b")
        + pax({b"uname": b"second"}, b"g")
        + member(b"c")
        + pax({b"mtime": b"", b"uname": b""}, b"g")
        + member(b"d")
        + END
    )
    assert pax_headers_after(data) == {
        "a": {"mtime": "1.5", "uname": "first"},
        "b": {"mtime": "1.5", "uname": "own", "atime": "9"},
        "c": {"mtime": "1.5", "uname": "second"},
        "d": {"uname": ""},
    }


@pytest.mark.parametrize("keyword", ["uname", "gname"])
def test_an_empty_global_value_deletes_what_headers_say(keyword: str) -> None:
    """As POSIX has it, and as readers of the whole shard see it."""
    data = (
        member(b"a")
        + pax({keyword.encode(): b"first"}, b"g")
        + member(b"b")
        + pax({keyword.encode(): b""}, b"g")
        + member(b"c")
        + pax({keyword.encode(): b"own"})
        + member(b"d")
        + END
    )

    def owners(data: bytes) -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return [getattr(info, keyword) for info in archive]

    copy = rewritten(data, scan("s.tar", data))
    default = {"uname": "user", "gname": "group"}[keyword]
    assert owners(copy) == owners(data) == [default, "first", "", "own"]


def test_an_empty_global_name_or_size_is_refused() -> None:
    for records in ({b"path": b""}, {b"size": b""}):
        data = pax(records, b"g") + member(b"a") + END
        with pytest.raises(CorruptShardError, match=r"an empty name|is unreadable"):
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
    with pytest.raises(CorruptShardError, match="takes more than 1 MiB"):
        scan("s.tar", data)


def test_nor_can_hostile_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_member, "FOLDED_BYTES_MAX", 1 << 20)
    data = pax({b"path": b"p" * 100_000}, b"g") + member(b"a") * 20 + END
    with pytest.raises(CorruptShardError, match="takes more than 1 MiB"):
        scan("s.tar", data)


def test_nor_can_very_many_keywords() -> None:
    data = pax({b"k%d" % i: b"v" for i in range(300)}, b"g") + member(b"a") + END
    with pytest.raises(CorruptShardError, match="more than 256 keywords"):
        scan("s.tar", data)


@pytest.mark.parametrize(
    "records",
    [{b"linkpath": b"t" * (1 << 20) + b"t"}, {b"GNU.sparse.map": b"1," * 600 + b"1"}],
    ids=["values", "sparse map"],
)
def test_nor_can_values_that_each_member_looks_at_be_large(records: dict[bytes, bytes]) -> None:
    data = member(b"first") + pax(records, b"g") + member(b"a") + END
    with pytest.raises(CorruptShardError, match="global pax headers with") as refusal:
        scan("s.tar", data)
    assert refusal.value.offset == 512
