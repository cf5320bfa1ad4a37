"""Every reader keeps to the law of ``dsort/bounds.py`` over archives whose headers are made to
harm."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.bounds import READERS, check_reader
from tests.support.tar_builder import END, gnu_long, header, member, pax, pax_record
from tests.support.zips import zip_of

HEADERS: Final = 8_000


def _long_names() -> bytes:
    return gnu_long(b"n" * 200) * HEADERS + member(b"a.jpg", style="gnu") + END


def _long_names_and_targets() -> bytes:
    both = gnu_long(b"n" * 200) + gnu_long(b"t" * 200, b"K")
    return both * (HEADERS // 2) + header(b"a.jpg", 0, b"2", link=b"b", style="gnu") + END


def _extended_members() -> bytes:
    return (pax({b"path": b"n" * 200}) + gnu_long(b"n" * 200) * 2 + member(b"a")) * (
        HEADERS // 4
    ) + END


def _short_records() -> bytes:
    return pax(b"5 a=\n" * 1_000_000) + member(b"a.jpg") + END


def _records_to_mend() -> bytes:
    """As many records as a header may have, in a member whose headers have to be written anew."""
    records = b"".join(pax_record(b"k%06d" % i, b"v" * 110) for i in range(1 << 18))
    return pax(records) + header(b"a.jpg", mode=-1) + END


def _path_of_many_parts() -> bytes:
    path = pax({b"path": b"ab//" * (7 << 20) + b"c"})
    return member(b"a.jpg") + path + member(b"b") + header(b"c.jpg", 0, b"1", link=b"a.jpg") + END


def _target_of_many_parts() -> bytes:
    return pax({b"linkpath": b"ab/" * (10 << 20) + b"c"}) + header(b"a.jpg", 0, b"2") + END


def _dotted_names() -> bytes:
    return header(b"." * 100, prefix=b"." * 155) * 100_000 + END


def _sparse_map() -> bytes:
    return pax({b"GNU.sparse.map": b"10," * (10 << 20) + b"1"}) + member(b"a.jpg", bytes(512)) + END


def _global_sparse_map() -> bytes:
    return pax({b"GNU.sparse.map": b"1," * 200_000 + b"1"}, b"g") + member(b"a") * HEADERS + END


def _sparse_maps() -> bytes:
    head = header(b"s", 0, b"S", style="gnu", tail=bytes(137) + b"\1")
    more = (bytes(504) + b"\1").ljust(512, b"\0")
    return head + more * HEADERS + bytes(512) + END


def _hard_links() -> bytes:
    """40 GB, if each link became a file of 10 MB."""
    links = b"".join(header(b"%d.jpg" % i, 0, b"1", link=b"a.jpg") for i in range(4_000))
    return member(b"a.jpg", bytes(10 << 20)) + links + END


ZOO: Final[dict[str, Callable[[], bytes]]] = {
    "long-names.tar": _long_names,
    "long-names-and-targets.tar": _long_names_and_targets,
    "extended-members.tar": _extended_members,
    "short-records.tar": _short_records,
    "records-to-mend.tar": _records_to_mend,
    "path-of-many-parts.tar": _path_of_many_parts,
    "target-of-many-parts.tar": _target_of_many_parts,
    "dotted-names.tar": _dotted_names,
    "sparse-map.tar": _sparse_map,
    "global-sparse-map.tar": _global_sparse_map,
    "sparse-maps.tar": _sparse_maps,
    "hard-links.tar": _hard_links,
    "items.msgpack": lambda: b"\xdd\0\x10\0\0" + b"\x91\1" * (1 << 20),
    "fields.msgpack": lambda: b"\xdf\0\x10\0\0" + b"\xa0\1" * (1 << 20),
    "nested.msgpack": lambda: b"\x91" * 512 * 1000 + b"\1",
    "items.cbor": lambda: b"\x9f" + b"\x9f\xff" * (1 << 20) + b"\xff",
    "empty-frames.tar.zst": lambda: bytes.fromhex("28b52ffd 2000 010000") * 200_000,
    "hard-links.tar.gz": lambda: gzip.compress(_hard_links(), 1),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("zoo")
    for name, made in ZOO.items():
        (directory / name).write_bytes(made())
    return directory


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("reader", READERS)
def test_readers_of_hostile_archives_keep_within_bounds(reader: str, name: str, zoo: Path) -> None:
    check_reader(reader, zoo / name)


@pytest.mark.parametrize("comment", [b"c", b"PK\1\2"])
@pytest.mark.sample(keep=2)
def test_a_zip_of_long_comments_is_refused_before_they_fill_the_memory(
    comment: bytes, tmp_path: Path
) -> None:
    entries = []
    for number in range(3_000):
        entry = zipfile.ZipInfo(f"{number}.bin")
        entry.comment = comment * (65_000 // len(comment))
        entries.append((entry, b""))
    path = tmp_path / "comments.zip"
    path.write_bytes(zip_of(entries))
    cost = check_reader("scan", path)
    assert cost.error == "CorruptShardError"
    assert "comments.zip is corrupt at byte" in cost.detail
    assert "over 1 KiB each" in cost.detail
