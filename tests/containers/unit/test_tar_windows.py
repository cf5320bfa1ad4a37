"""A shard may be scanned in windows that end anywhere: nothing of a window is kept, the memory
asked for has a limit, and many headers are read at once as one by one."""

from __future__ import annotations

import mmap
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsort.containers.base import Scan, drive
from dsort.containers.tar import member as member_module
from dsort.containers.tar.container import TAR
from dsort.containers.tar.fields import HeaderFields
from dsort.containers.tar.header import odd_numbers, parse_header
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind
from tests.support.refusals import raises
from tests.support.tar_builder import END, checksum, gnu_long, header, member
from tests.support.tar_reading import scan


def test_headers_of_more_than_32_mib_are_refused_before_anyone_reads_them() -> None:
    size = (32 << 20) + 1
    for typeflag in (b"x", b"g", b"L", b"K"):
        begun = Scan(TAR.scanner("s.tar", 1 << 40))
        with raises(CorruptShardError, "32 MiB", shard="s.tar", offset=0):
            begun.feed(header(b"h", size, typeflag) + bytes(512), 0)


def test_a_sparse_map_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2 << 20  # of the 32 MiB that it is, each block takes a tenth of a millisecond
    assert limit < member_module.EXTENSION_BYTES_MAX == 32 << 20
    monkeypatch.setattr(member_module, "EXTENSION_BYTES_MAX", limit)
    head = header(b"s", 0, b"S", style="gnu", tail=bytes(137) + b"\1")
    more = (bytes(504) + b"\1").ljust(512, b"\0")
    data = np.zeros(limit + 2048, np.uint8)
    data[:512] = np.frombuffer(head, np.uint8)
    data[512:].reshape(-1, 512)[:] = np.frombuffer(more, np.uint8)
    with raises(CorruptShardError, shard="s.tar", offset=0):
        scan("s.tar", data)


def test_an_unaligned_window_is_not_copied() -> None:
    data = bytearray(b"?" + member(b"a.jpg", bytes(8_000_000)) + member(b"b.jpg") * 300 + END)
    tracemalloc.start()
    scan("s.tar", memoryview(data)[1:])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4_000_000


def test_nothing_of_a_window_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(b"".join(member(b"%d.jpg" % i, b"x") for i in range(300)) + END)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        with memoryview(mapped) as view:
            table = scan("s.tar", view)
        mapped.close()  # BufferError if the table still looked at it
    assert table.names.tolist() == [b"%d.jpg" % i for i in range(300)]
    assert set(table.kind.tolist()) == {MemberKind.FILE}


@pytest.mark.parametrize("directory", [b"", b"long/" * 30])
def test_a_reused_buffer_leaves_earlier_members_alone(directory: bytes) -> None:
    names = [b"%b%d" % (directory, number) for number in range(50)]
    heads = [gnu_long(name) if directory else b"" for name in names]
    bodies = [member(name[:100], b"x" * 600) for name in names]
    data = b"".join(map(bytes.__add__, heads, bodies)) + END
    buffer = bytearray(2560)

    def read(at: int, size: int) -> memoryview:
        buffer[:size] = data[at : at + size]
        return memoryview(buffer)[:size]

    table = drive(TAR.scanner("s.tar", len(data)), len(data), read, window_bytes=len(buffer))
    assert table.names.tolist() == names


@pytest.mark.parametrize("typeflags", [b"L", b"K", b"LK"])
def test_a_chain_of_long_names_is_read_a_few_times_at_most(typeflags: bytes) -> None:
    chain = b"".join(gnu_long(b"n" * 200, bytes((flag,))) for flag in typeflags)
    data = chain * (6000 // len(typeflags)) + header(b"a", 0, b"2", style="gnu") + END
    fed = 0

    def read(at: int, size: int) -> memoryview:
        nonlocal fed
        fed += size
        return memoryview(data)[at : at + size]

    table = drive(TAR.scanner("s.tar", len(data)), len(data), read, window_bytes=64 << 10)
    assert fed < 4 * len(data)
    assert len(table) == 1


def test_all_headers_of_a_member_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "EXTENSION_BYTES_MAX", 1 << 20)
    chain = gnu_long(b"n" * 200) * 1100 + member(b"a", style="gnu") + END
    with raises(CorruptShardError, "1 MiB", shard="s.tar", offset=512):
        scan("s.tar", member(b"first") + chain)
    data = (member(b"first") + gnu_long(b"n" * 200) * 1000 + member(b"a", style="gnu")) + END
    assert scan("s.tar", data).names.tolist() == [b"first", b"n" * 200]


COUNT = 70
"""More than are compared at once."""
RANDOM = random.Random(7)


def _text(length: int) -> bytes:
    return bytes(RANDOM.randrange(1, 256) for _ in range(length))


def _with_junk(name: bytes) -> bytes:
    """A header whose name field goes on behind its end."""
    block = header(name)
    return checksum(name + b"\0" + _text(99 - len(name)) + block[100:])


KINDS: dict[str, Callable[[int], bytes]] = {
    "all alike": lambda number: header(b"a.jpg", 0),
    "names of one length": lambda number: header(b"%07d.jpg" % number, 512 * number),
    "names that end with a word": lambda number: header(b"%04d.jpg" % number, number),
    "names of all lengths": lambda number: header(_text(number + 1).replace(b"/", b"_")),
    "names that fill the field": lambda number: header(b"%0100d" % number, number),
    "names with junk behind them": lambda number: _with_junk(b"%05d.jpg" % number),
    "no names": lambda number: header(b"", number),
    "prefixes, which are read": lambda number: header(b"%d.jpg" % number, prefix=_text(155)),
    "prefixes, which are not": lambda number: header(
        b"%d" % number, tail=(b"%d/.." % number) * (number % 3), style="gnu"
    ),
    "times": lambda number: header(b"a", mtime=RANDOM.randrange(1 << 33)),
    "modes": lambda number: header(b"a", mode=number),
    "large": lambda number: header(b"a.bin", number << 20),
    "checksums that are wrong": lambda number: (
        header(b"%d" % (number + 10))[:511] + bytes([number % 5])
    ),
    "sizes that are odd": lambda number: header(
        b"a", [b"%011o\0" % number, b"%010o \0" % number, b"\x80" + bytes(11)][number % 3]
    ),
    "all words": lambda number: checksum(
        _text(100)
        + header(b"", number)[100:157]
        + _text(100)
        + header(b"")[257:265]
        + _text(64)
        + b"0000000\0" * 2
        + _text(167)
    ),
}

ODD = {"checksums that are wrong": 5, "sizes that are odd": 3}
"""Of so many headers, one is plain."""


@pytest.mark.parametrize("kind", KINDS)
def test_many_headers_are_read_as_one_by_one(kind: str) -> None:
    blocks = [KINDS[kind](number) for number in range(COUNT)]
    words = np.frombuffer(b"".join(blocks), "<u8").reshape(COUNT, 64).copy()
    fields = HeaderFields(words)
    sizes, plain = fields.sizes()
    names = fields.names(COUNT).tolist()
    assert (plain == (np.arange(COUNT) % ODD.get(kind, 1) == 0)).all()
    for number in np.flatnonzero(plain).tolist():
        alone = parse_header("s.tar", 0, blocks[number])
        assert (alone.name, alone.size_bytes) == (names[number], int(sizes[number]))
        assert int(np.resize(fields.typeflags(), COUNT)[number]) == alone.typeflag[0]
        numbers_are_plain = bool(np.resize(fields.plain_numbers(), COUNT)[number])
        assert numbers_are_plain is not odd_numbers(blocks[number])


def test_names_are_copies_of_what_is_overwritten_next() -> None:
    for count in (1, 2):
        blocks = b"".join(header(b"%07d.jpg" % number) for number in range(count))
        words = np.frombuffer(blocks, "<u8").reshape(count, 64).copy()
        names = HeaderFields(words).names(count)
        words[:] = 0
        assert names.tolist() == [b"%07d.jpg" % number for number in range(count)]
