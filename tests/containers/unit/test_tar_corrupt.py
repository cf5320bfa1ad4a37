"""What is no tar, or not a whole one, is refused: with the shard, the byte and the reason in plain
words, the same however the shard is read. Nothing is ever read short in silence."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import pickle
from pathlib import Path

import pytest

from dsort.containers.base import Scan
from dsort.containers.tar.container import TAR
from dsort.containers.tar.scan import TarScan
from dsort.errors import CorruptShardError, InvariantError
from tests.support.refusals import raises
from tests.support.tar_builder import END, header, member, pax
from tests.support.tar_corrupt import CorruptCase, corrupt_cases
from tests.support.tar_reading import (
    ByTheBook,
    as_plain,
    scan,
    scan_by_the_book,
    scan_in_windows,
)

CASES = corrupt_cases()


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> CorruptCase:
    made: CorruptCase = request.param
    return made


def test_it_is_refused_with_place_and_reason(case: CorruptCase) -> None:
    with pytest.raises(CorruptShardError) as refused:
        scan("train/s-07.tar", case.data)
    error = refused.value
    assert (error.shard, error.offset) == ("train/s-07.tar", case.offset)
    assert case.reason in error.reason
    assert f"shard train/s-07.tar is corrupt at byte {case.offset}: " in str(error)


def test_it_is_refused_alike_in_windows_and_one_by_one(case: CorruptCase) -> None:
    with pytest.raises(CorruptShardError) as whole:
        scan("s.tar", case.data)
    with pytest.raises(CorruptShardError) as by_the_book:
        scan_by_the_book(case.data)
    assert str(by_the_book.value) == str(whole.value)
    for window_bytes in (1, 1024, 2048):
        with pytest.raises(CorruptShardError) as in_windows:
            scan_in_windows(case.data, [window_bytes])
        assert str(in_windows.value) == str(whole.value)


def test_a_tar_cut_anywhere_before_its_end_marker_is_refused_or_ends_with_a_member() -> None:
    members = [member(b"%d.jpg" % i, b"x" * (300 * i)) for i in range(4)]
    data = b"".join(members)
    borders = {sum(map(len, members[:i])): i for i in range(5)}
    for cut in range(0, len(data) + 1, 4):
        if cut in borders:
            table = scan("s.tar", data[:cut])
            assert (len(table), table.notes.missing_end) == (borders[cut], True)
        else:
            with pytest.raises(CorruptShardError):
                scan("s.tar", data[:cut])


@pytest.mark.exhaustive
def test_every_flipped_bit_of_a_plain_header_is_noticed() -> None:
    data = bytearray(member(b"a.jpg", b"payload") + member(b"b.jpg", b"payload") + END)
    whole = as_plain(scan("s.tar", bytes(data)))
    for at, bit in itertools.product(range(512), range(8)):
        data[at] ^= 1 << bit
        if 148 <= at < 156:  # blanks for zeros leave the checksum what it is
            with contextlib.suppress(CorruptShardError):
                assert as_plain(scan("s.tar", bytes(data))) == whole
        else:
            with pytest.raises(CorruptShardError):
                scan("s.tar", bytes(data))
        data[at] ^= 1 << bit


def test_a_shard_that_was_not_read_to_its_end_has_no_table() -> None:
    data = member(b"a.jpg", b"a" * 5000) + END
    begun = Scan(TAR.scanner("s.tar", len(data) + 10_000))
    begun.feed(data, 0)
    with raises(InvariantError, f"byte {len(data)}"):
        _ = begun.table


@pytest.mark.parametrize("scan_type", [TarScan, ByTheBook])
def test_an_error_does_not_keep_the_mapped_file_open(
    tmp_path: Path, scan_type: type[TarScan]
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(b"".join(member(b"%d" % i, b"x" * 900) for i in range(200)) + b"junk" * 512)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        begun = Scan(scan_type("s.tar", len(mapped)).scanner())
        view = memoryview(mapped)
        with pytest.raises(CorruptShardError) as refused:
            begun.feed(view, 0)
        view.release()
        mapped.close()  # BufferError if anything still looked at it
    assert refused.value.offset == 200 * 1536


def test_an_error_does_not_print_endless_names() -> None:
    data = pax({b"path": b"n" * 1_000_000}) + header(b"short", 700) + END
    with pytest.raises(CorruptShardError) as refused:
        scan("s.tar", data[:-1024])
    assert len(str(refused.value)) < 600


def test_an_error_survives_pickling() -> None:
    with pytest.raises(CorruptShardError) as refused:
        scan("s.tar", b"junk" * 512)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (str(copy), copy.offset, copy.reason) == (
        str(refused.value),
        refused.value.offset,
        refused.value.reason,
    )
