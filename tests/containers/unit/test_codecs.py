"""Codecs: all members of a file are read and checked, and what is written is read by others."""

from __future__ import annotations

import gzip
import random
import shutil
import struct
import subprocess
import time
import zlib

import pytest
import zstandard

from dsort.containers.codecs.decoding import (
    EXPANSION_FLOOR_BYTES,
    PART_BYTES_MIN,
    PARTS_MIN,
    format_of,
)
from dsort.containers.codecs.gzip import PADDING_MAX
from dsort.containers.codecs.zstd import PIECE_BYTES
from dsort.errors import CorruptShardError
from tests.support.datasets import small_dataset
from tests.support.encoded_files import (
    SUFFIXES,
    WRITTEN,
    codec,
    decoded,
    encoded,
    judged,
    made_elsewhere,
)
from tests.support.refusals import raises

_RANDOM = random.Random(5)
TEXT = b"".join(
    b'{"id": %d, "x": "%s"}\n' % (n, _RANDOM.randbytes(9).hex().encode()) for n in range(120)
)
LONG = _RANDOM.randbytes(700_000) + TEXT * 1200
"""Longer than a piece of any codec, and no multiple of one."""
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"notes"


def refused(suffix: str, data: bytes) -> CorruptShardError:
    with pytest.raises(CorruptShardError) as caught:
        decoded(suffix, data)
    assert caught.value.shard == f"a.tar{suffix}"
    assert 0 <= caught.value.offset <= len(data)
    return caught.value


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_all_members_are_read_also_behind_an_empty_one(suffix: str, step: int) -> None:
    members = [made_elsewhere(suffix, part) for part in (TEXT, b"", b"end")]
    assert decoded(suffix, b"".join(members), step=step) == TEXT + b"end"


@pytest.mark.parametrize("suffix", [".zst", ".lz4"])
def test_skippable_frames_are_passed_over_wherever_they_are(suffix: str) -> None:
    frame = made_elsewhere(suffix, TEXT)
    assert decoded(suffix, SKIPPABLE + frame + SKIPPABLE + frame + SKIPPABLE, step=3) == TEXT * 2
    assert "skippable" in refused(suffix, frame + SKIPPABLE[:-1]).reason
    assert "holds no" in refused(suffix, SKIPPABLE).reason


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_ends_too_early_is_refused_wherever_that_is(suffix: str) -> None:
    whole = made_elsewhere(suffix, TEXT)
    for end in range(len(whole)):
        assert refused(suffix, whole[:end]).offset <= end
    second = whole + whole
    for end in range(len(whole) + 1, len(second), 5):
        refused(suffix, second[:end])


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_no_other_content(suffix: str) -> None:
    whole = made_elsewhere(suffix, TEXT)
    for at in range(len(whole)):
        for bit in (0x01, 0x80):
            wrong = bytearray(whole)
            wrong[at] ^= bit
            try:
                assert decoded(suffix, bytes(wrong)) == TEXT  # a field that says nothing of it
            except CorruptShardError:
                continue


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_follows_the_last_member_is_refused(suffix: str) -> None:
    whole = made_elsewhere(suffix, TEXT)
    error = refused(suffix, whole + b"garbage")
    assert error.offset == len(whole)


def test_zeros_behind_a_gzip_file_are_padding_unless_they_are_many() -> None:
    whole = made_elsewhere(".gz", TEXT)
    assert decoded(".gz", whole + bytes(511)) == TEXT
    assert decoded(".gz", whole + bytes(511) + whole) == TEXT * 2
    assert "not written to its end" in refused(".gz", whole + bytes(PADDING_MAX + 1)).reason
    assert refused(".zst", made_elsewhere(".zst", TEXT) + bytes(512)).reason


@pytest.mark.parametrize("zeros", range(1, 10))
def test_zeros_behind_an_xz_stream_are_padding_by_fours_as_xz_has_it(zeros: int) -> None:
    whole = made_elsewhere(".xz", TEXT)
    for padded, text in ((whole + bytes(zeros), TEXT), (whole + bytes(zeros) + whole, 2 * TEXT)):
        if shutil.which("xz"):
            judged = subprocess.run(["xz", "-dc"], input=padded, capture_output=True, check=False)
            assert (judged.returncode == 0) is (zeros % 4 == 0)
        if zeros % 4 == 0:
            assert decoded(".xz", padded) == text
        else:
            assert f"{zeros} zeros follow" in refused(".xz", padded).reason


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file_is_no_encoded_one(suffix: str) -> None:
    assert "holds no" in refused(suffix, b"").reason


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("other", SUFFIXES)
def test_a_file_of_another_codec_is_called_what_it_is(suffix: str, other: str) -> None:
    if suffix == other:
        return
    error = refused(suffix, made_elsewhere(other, TEXT))
    assert error.offset == 0
    assert error.reason.startswith(f"the file is {codec(other).name}, but")
    assert other in error.hint


def test_a_plain_tar_is_called_what_it_is() -> None:
    tar = bytearray(1024)
    tar[257:262] = b"ustar"
    assert format_of(bytes(tar)) == ("tar", ".tar")
    assert "is tar, but" in refused(".gz", bytes(tar)).reason


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_a_bomb_is_refused_before_it_goes_off(suffix: str) -> None:
    bomb = made_elsewhere(suffix, bytes(3 * EXPANSION_FLOOR_BYTES))
    error = refused(suffix, bomb)
    assert "decodes to more than" in error.reason
    assert "max_expansion" in error.hint
    assert len(decoded(suffix, bomb, max_expansion=1e6)) == 3 * EXPANSION_FLOOR_BYTES


def test_many_tiny_frames_that_say_little_are_no_way_around_that() -> None:
    block = struct.pack("<I", 1 | 1 << 1 | 131072 << 3)[:3] + b"\0"  # RLE: 128 KiB of zeros
    frame = b"\x28\xb5\x2f\xfd\x00\x38" + block
    assert decoded(".zst", frame) == bytes(131072)
    assert "decodes to more" in refused(".zst", frame * 1000).reason


@pytest.mark.parametrize("content", [b"", b"a"], ids=["empty", "a byte"])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.sample(keep=2)
def test_very_many_members_are_refused_or_as_cheap_as_others(suffix: str, content: bytes) -> None:
    """A byte of theirs would take microseconds."""
    one, count = made_elsewhere(suffix, content), 3 * PARTS_MIN
    started_s = time.process_time()
    if count * (len(one) + len(content)) < 2 * PARTS_MIN * PART_BYTES_MIN:
        refusal = refused(suffix, one * count)
        assert "empty or of a few bytes" in refusal.reason
        assert refusal.offset > PARTS_MIN * len(one)
    else:
        assert decoded(suffix, one * count) == content * count
    assert time.process_time() - started_s < 10


def test_empty_blocks_take_no_longer_the_more_of_them_come_at_once() -> None:
    taken_s = []
    for count in (20_000, 800_000):
        decoder = codec(".zst").decoder(1 << 20)
        data = b"\x28\xb5\x2f\xfd\0\0" + b"\0\0\0" * count + b"\1\0\0"
        started_s = time.process_time()
        while not decoder.eof:
            assert decoder.decompress(data, 1 << 20) == b""
            data = b""
        taken_s.append(time.process_time() - started_s)
    assert taken_s[1] < 3 * 40 * taken_s[0]


@pytest.mark.parametrize("suffix", [".zst", ".lz4"])
def test_very_many_skippable_frames_are_refused(suffix: str) -> None:
    empty = struct.pack("<II", 0x184D2A53, 0)
    frame = made_elsewhere(suffix, TEXT)
    assert decoded(suffix, empty * 1000 + frame + empty * 1000) == TEXT
    assert "of a few bytes" in refused(suffix, frame + empty * 200_000).reason


def test_a_frame_that_wants_much_memory_is_refused() -> None:
    chosen = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    error = refused(".zst", stream.compress(TEXT) + stream.flush())
    assert "needs a window of 128 MiB" in error.reason


# -- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", TEXT, LONG], ids=["none", "byte", "text", "long"])
@pytest.mark.parametrize("suffix", WRITTEN)
def test_what_is_written_is_read_by_us_and_by_the_tool_of_the_format(
    suffix: str, data: bytes
) -> None:
    file = encoded(suffix, data)
    assert decoded(suffix, file) == data
    assert judged(suffix, file) == data


@pytest.mark.parametrize(("suffix", "level"), [(".gz", 3), (".gz", 9), (".zst", 19), (".lz4", 12)])
def test_levels_make_other_bytes_of_the_same_content(suffix: str, level: int) -> None:
    file = encoded(suffix, TEXT * 20, level)
    assert file != encoded(suffix, TEXT * 20)
    assert decoded(suffix, file) == TEXT * 20


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_level_that_a_codec_has_not_is_refused(suffix: str) -> None:
    with raises(ValueError, "99"):
        codec(suffix).level_or_default(99)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_the_bytes_do_not_depend_on_how_the_content_came(suffix: str) -> None:
    assert encoded(suffix, LONG, step=len(LONG)) == encoded(suffix, LONG, step=3333)


def test_gzip_is_one_member_with_a_header_that_says_nothing() -> None:
    file = encoded(".gz", LONG)
    assert file[:10] == bytes.fromhex("1f8b08000000000000ff")
    one = zlib.decompressobj(31)
    assert one.decompress(file) == LONG
    assert one.eof
    assert one.unused_data == b""
    assert gzip.decompress(file) == LONG


@pytest.mark.parametrize("level", [1, 2])
def test_gzip_has_the_same_bytes_wherever_in_memory_it_is_made(level: int) -> None:
    piece = bytearray(b"".join(shard.data for shard in small_dataset(5).values()))
    found, held = set(), []
    for _ in range(2500):  # encoders of ISA-L gave two results in 3,000 places
        found.add(codec(".gz").encoder(level).encode(piece).data)
        held.append(bytes(1 << 16))
    assert len(found) == 1


def test_zstd_is_frames_with_sizes_and_checksums_and_a_seek_table() -> None:
    file = encoded(".zst", LONG)
    count, descriptor, magic = struct.unpack("<IBI", file[-9:])
    assert (magic, descriptor) == (0x8F92EAB1, 0)
    table = file[-9 - 8 * count - 8 :]
    assert struct.unpack("<II", table[:8]) == (0x184D2A5E, 8 * count + 9)
    at, found = 0, b""
    for packed, size in struct.iter_unpack("<II", table[8:-9]):
        frame = file[at : at + packed]
        facts = zstandard.get_frame_parameters(frame)
        assert (facts.content_size, facts.has_checksum) == (size, True)
        found += zstandard.ZstdDecompressor().decompress(frame)
        at += packed
    assert found == LONG
    assert at == len(file) - len(table)
    assert count == -(-len(LONG) // PIECE_BYTES)


def test_lz4_is_one_frame_of_blocks_of_256_kib_with_a_checksum() -> None:
    import lz4.frame

    facts = lz4.frame.get_frame_info(encoded(".lz4", LONG))
    assert facts["block_size"] == 256 << 10
    assert not facts["block_linked"]
    assert facts["content_checksum"]
    frame = lz4.frame.LZ4FrameDecompressor()
    assert frame.decompress(encoded(".lz4", LONG)) == LONG
    assert frame.eof
    assert not frame.unused_data


@pytest.mark.parametrize("suffix", WRITTEN)
def test_the_manifest_gets_library_version_and_level(suffix: str) -> None:
    facts = codec(suffix).description(1)
    assert facts.keys() == {"name", "library", "version", "level"}
    assert all(facts.values())
