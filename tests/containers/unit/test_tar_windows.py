"""A shard may be scanned in windows that end anywhere: what a window does not hold is asked for
again, payload is passed over, nothing of a window is kept, the memory asked for has a limit."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsort.containers.base import Scan, drive
from dsort.containers.tar import member as member_module
from dsort.containers.tar.container import TAR
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.errors import CorruptShardError
from tests.support.internals import MemberKind
from tests.support.tar_builder import END, gnu_long, header, member, pax
from tests.support.tar_reading import as_plain, scan, scan_in_windows


def test_the_end_of_an_output_shard_is_two_zero_blocks() -> None:
    assert bytes(1024) == END_OF_ARCHIVE
    assert scan("s.tar", END_OF_ARCHIVE).notes.missing_end is False


def test_payload_need_not_be_in_any_window() -> None:
    data = member(b"a.jpg", b"a" * 100_000) + member(b"b.jpg", b"b") + END
    begun = Scan(TAR.scanner("s.tar", len(data)))
    begun.feed(data[:1024], 0)
    at = 512 + 196 * 512
    assert begun.need == (at, 1024)
    begun.feed(data[at:], at)
    assert begun.table.names.tolist() == [b"a.jpg", b"b.jpg"]


def test_headers_that_a_window_cuts_are_left_for_the_next_one(
    rounds: Callable[[int, int], int],
) -> None:
    group = gnu_long(b"n" * 600) + member(b"n" * 100, b"payload", style="gnu")
    data = member(b"a.jpg", b"a") + group + END
    ends = range(1024 + 1, 1024 + 512 + 1024 + 512)
    some = set(ends[:: rounds(32, 1)]) | {at for at in ends if (at + 2) % 512 <= 4}
    for end in sorted(some):
        begun = Scan(TAR.scanner("s.tar", len(data)))
        begun.feed(data[:end], 0)
        cut = begun.need
        assert cut is not None
        assert cut.offset == 1024
        assert end - 1024 < cut.at_least <= 2048
        begun.feed(data[1024 : 1024 + 2048], 1024)
        assert begun.need == (1024 + len(group), 1024)


def test_the_window_to_be_is_as_large_as_the_headers_are() -> None:
    group = pax({b"comment": b"c" * 3_000_000, b"path": b"long.jpg"}) + member(b"short", b"payload")
    data = group + END
    asked = []

    def read(at: int, size: int) -> memoryview:
        asked.append(size)
        return memoryview(data)[at : at + size]

    table = drive(TAR.scanner("s.tar", len(data)), len(data), read, window_bytes=0)
    assert asked == [1024, 512 + 3_000_320 + 512, 1024]
    assert table.names.tolist() == [b"long.jpg"]


def test_headers_of_more_than_32_mib_are_refused_before_anyone_reads_them() -> None:
    size = (32 << 20) + 1
    for typeflag in (b"x", b"g", b"L", b"K"):
        begun = Scan(TAR.scanner("s.tar", 1 << 40))
        with pytest.raises(CorruptShardError, match="the limit is 32 MiB"):
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
    with pytest.raises(CorruptShardError, match="has no end"):
        scan("s.tar", data)


def test_windows_may_be_any_buffer_at_any_address() -> None:
    data = b"".join(member(b"%04d.jpg" % i, b"x" * (i % 900)) for i in range(500)) + END
    whole = as_plain(scan("s.tar", data))
    unaligned = bytearray(b"?" + data)
    assert as_plain(scan("s.tar", memoryview(unaligned)[1:])) == whole
    array = np.frombuffer(unaligned, np.uint8)[1:]
    assert as_plain(scan("s.tar", array)) == whole
    assert as_plain(scan_in_windows(data, [5000], before=3)) == whole


def test_an_unaligned_window_is_not_copied() -> None:
    data = bytearray(b"?" + member(b"a.jpg", bytes(8_000_000)) + member(b"b.jpg") * 300 + END)
    tracemalloc.start()
    scan("s.tar", memoryview(data)[1:])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4_000_000


def test_a_window_must_hold_what_comes_next() -> None:
    begun = Scan(TAR.scanner("s.tar", 5000))
    for window, offset in ((b"", 0), (bytes(100), 100)):
        with pytest.raises(ValueError, match="does not hold byte 0"):
            begun.feed(window, offset)


def test_bytes_beyond_the_shard_are_not_its_own() -> None:
    data = member(b"a.jpg", b"a") + END
    begun = Scan(TAR.scanner("s.tar", len(data)))
    begun.feed(data + member(b"later.jpg", b"x"), 0)
    table = begun.table
    assert (table.names.tolist(), table.notes.trailing_bytes) == ([b"a.jpg"], 0)


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


def test_a_reused_buffer_leaves_earlier_members_alone() -> None:
    data = b"".join(member(b"%d" % i, b"x" * 600) for i in range(50)) + END
    buffer = bytearray(1536)

    def read(at: int, size: int) -> memoryview:
        buffer[:size] = data[at : at + size]
        return memoryview(buffer)[:size]

    table = drive(TAR.scanner("s.tar", len(data)), len(data), read, window_bytes=len(buffer))
    assert table.names.tolist() == [b"%d" % i for i in range(50)]


def test_what_stands_after_the_end_is_measured_in_windows_too() -> None:
    data = member(b"a.jpg", b"a") + END + bytes(3_000_000) + b"junk" + bytes(5000)
    for window_bytes in (1024, 1_000_000, 10_000_000):
        table = scan_in_windows(data, [window_bytes])
        assert (len(table), table.notes.trailing_bytes) == (1, 5004)


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
    with pytest.raises(CorruptShardError, match="more than 1 MiB") as refusal:
        scan("s.tar", member(b"first") + chain)
    assert refusal.value.offset == 512
    data = (member(b"first") + gnu_long(b"n" * 200) * 1000 + member(b"a", style="gnu")) + END
    assert scan("s.tar", data).names.tolist() == [b"first", b"n" * 200]
