"""Shards that a crash or a broken download left: cut at any block, or zeros from a page on. Under
the default reactions each is refused, or reported, or all of its members are read."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset

from dsort.containers.base import refusal
from dsort.containers.tar.oddities import ODDITIES
from dsort.errors import CorruptShardError
from tests.support.tar_builder import END, member
from tests.support.tar_reading import scan, scan_in_windows
from tests.support.tars import tar_of

PAGE_BYTES = 4096
RECORD_BYTES = 10240  # what tarfile and GNU tar pad to


def payloads(rng: random.Random, records: int) -> list[tuple[str, bytes]]:
    """Members of records: large ones without a zero byte at the end, and small ones."""
    found = []
    for number in range(records):
        found.append((f"{number:05d}.jpg", rng.randbytes(rng.randrange(20_000)) + b"\xd9"))
        found.append((f"{number:05d}.cls", b"%d" % (number % 10)))
    return found


def by_tarfile(members: list[tuple[str, bytes]], directory: Path) -> bytes:
    return tar_of(members)


def by_webdataset(members: list[tuple[str, bytes]], directory: Path) -> bytes:
    out = io.BytesIO()
    writer = webdataset.TarWriter(out)
    for (name, image), (_, label) in zip(members[::2], members[1::2], strict=True):
        writer.write({"__key__": name[:5], "jpg": image, "cls": label})
    writer.close()
    return out.getvalue()


def by_gnu_tar(members: list[tuple[str, bytes]], directory: Path) -> bytes:
    for name, payload in members:
        (directory / name).write_bytes(payload)
    names = [name for name, _ in members]
    tar = ["tar", "-C", str(directory), "-cf", "-", *names]
    return subprocess.run(tar, capture_output=True, check=True).stdout


def unpadded(members: list[tuple[str, bytes]], directory: Path) -> bytes:
    """As dsort, Go and Rust write it."""
    return b"".join(member(name.encode(), payload) for name, payload in members) + END


WRITERS = [by_tarfile, by_webdataset, by_gnu_tar, unpadded]
Writer = Callable[[list[tuple[str, bytes]], Path], bytes]


def names_read(data: bytes) -> list[bytes] | None:
    """The members that a job takes under the default reactions; None if it refuses the shard, or
    says that it may not be whole."""
    try:
        table = scan("s.tar", data)
    except CorruptShardError:
        return None
    if refusal(ODDITIES, table.notes, "abort", "read") or table.notes.unusual_padding:
        return None
    assert len(data) > 300_000 or scan_in_windows(data, [8192]).notes == table.notes
    return table.names.tolist()


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__)
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    writer: Writer = request.param
    seed = f"torn {writer.__name__}"
    print(seed)
    return writer(payloads(random.Random(seed), 60), tmp_path)


def test_a_whole_shard_is_read(shard: bytes) -> None:
    assert len(names_read(shard) or []) == 120


@pytest.mark.sample(keep=1)
def test_a_shard_cut_at_any_block_is_refused_or_read_whole(shard: bytes) -> None:
    whole = names_read(shard)
    refused = 0
    for cut in range(0, len(shard), 512):
        found = names_read(shard[:cut])
        assert found is None or found == whole
        refused += found is None
    assert refused > 1000


@pytest.mark.sample(keep=1)
def test_zeros_from_any_page_on_are_refused_or_said_or_all_is_read(shard: bytes) -> None:
    """But for members that begin in the last record of a padded tar: what is there then is what a
    writer of fewer members would have written, byte for byte."""
    members = scan("s.tar", shard)
    starts = dict(zip(members.names.tolist(), members.range_start.tolist(), strict=True))
    last_record = len(shard) - RECORD_BYTES - len(END) if len(shard) % RECORD_BYTES == 0 else None
    refused = 0
    for tear in range(0, len(shard), PAGE_BYTES):
        found = names_read(shard[:tear].ljust(len(shard), b"\0"))
        refused += found is None
        for name in [] if found is None else starts.keys() - {*found}:
            assert last_record is not None
            assert starts[name] >= last_record
    assert refused > 120


@pytest.mark.sample(keep=2)
def test_a_preallocated_shard_is_refused_or_said_or_read_whole(shard: bytes) -> None:
    whole = names_read(shard)
    for more in (PAGE_BYTES, 10 * PAGE_BYTES, 100 * PAGE_BYTES, 1000 * PAGE_BYTES):
        size_bytes = len(shard) + more
        if size_bytes % RECORD_BYTES == 0:  # a tar that is padded to there, for all that one sees
            size_bytes += 512
        for cut in range(0, len(shard), 3 * PAGE_BYTES):
            found = names_read(shard[:cut].ljust(size_bytes, b"\0"))
            assert found is None or found == whole
