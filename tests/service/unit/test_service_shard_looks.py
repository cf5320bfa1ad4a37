"""Members of shards by ranges; and headers of shards, which are read once."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.service.security.tokens import VIEWER
from tests.support.service_here import ServiceHere, service_here

SOUND = b"RIFF\x24\0\0\0WAVEfmt " + bytes(range(256)) * 20_000  # 5 MB
LONG_BYTES = 70 << 20
SHARD = "/v1/members/sounds/s.tar"
SOUND_AT = {"number": 0, "member": 0}
PIECE_BYTES = 4 << 20


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("ranges"), no_auth=False) as opened:
        sounds = opened.service.config.run.root / "sounds"
        sounds.mkdir()
        write_tar(sounds / "s.tar", {"0001.wav": SOUND, "0001.txt": b"a text", "0002.bin": b""})
        small = io.BytesIO()
        with tarfile.open(fileobj=small, mode="w") as archive:
            archive.addfile(entry("0001.wav", len(SOUND)), io.BytesIO(SOUND))
        (sounds / "s.tar.gz").write_bytes(gzip.compress(small.getvalue(), 1))
        with (sounds / "long.tar").open("wb") as file:  # a hole: nobody writes 70 MiB
            file.write(entry("0001.wav", LONG_BYTES).tobuf())
            file.write(SOUND)
            file.truncate(512 + LONG_BYTES + 1024)
        token = opened.service.tokens.add("vera", VIEWER, [str(sounds)], [])
        opened.client.headers["Authorization"] = f"Bearer {token}"
        yield opened


def entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, mode="w") as archive:
        for name, data in files.items():
            archive.addfile(entry(name, len(data)), io.BytesIO(data))


def kept(here: ServiceHere) -> set[Path]:
    return set((here.service.config.state_dir / "indexes").glob("*/*.col"))


def ranged(here: ServiceHere, text: str, path: str = SHARD, **more: str) -> Any:
    return here.client.get(path, params=SOUND_AT, headers={"Range": text, **more})


@pytest.mark.parametrize("path", [SHARD, f"{SHARD}.gz"])
def test_a_range_of_a_member_is_sent_and_no_more(here: ServiceHere, path: str) -> None:
    total = len(SOUND)
    for text, start, stop in (
        ("bytes=0-9", 0, 10),
        ("bytes=100000-100099", 100_000, 100_100),
        ("bytes=-7", total - 7, total),
        (f"bytes={total - 5}-{total + 5}", total - 5, total),
        ("bytes=0-", 0, PIECE_BYTES),  # the rest is asked for once it is wanted
    ):
        answer = ranged(here, text, path)
        assert (answer.status_code, answer.content) == (206, SOUND[start:stop]), text
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{total}"
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert answer.headers["Content-Type"] == "application/octet-stream"
    beyond = ranged(here, f"bytes={total}-", path)
    assert (beyond.status_code, beyond.content) == (416, b"")
    assert beyond.headers["Content-Range"] == f"bytes */{total}"
    for odd in ("bytes=0-1,5-6", "lines=1-2"):
        assert (ranged(here, odd, path).status_code, len(ranged(here, odd, path).content)) == (
            200,
            total,
        )


def test_a_range_is_of_the_shard_that_the_tag_names(here: ServiceHere) -> None:
    tag = ranged(here, "bytes=0-9").headers["ETag"]
    assert ranged(here, "bytes=5-9", **{"If-Range": tag}).content == SOUND[5:10]
    another = ranged(here, "bytes=5-9", **{"If-Range": '"another"'})
    assert (another.status_code, another.content) == (200, SOUND)


def test_of_a_member_that_is_too_large_to_be_sent_whole_any_range_is(here: ServiceHere) -> None:
    path = "/v1/members/sounds/long.tar"
    assert here.client.get(path, params=SOUND_AT).status_code == 413
    last = ranged(here, "bytes=-3", path)
    assert (last.status_code, last.content) == (206, b"\0\0\0")
    assert ranged(here, "bytes=8-11", path).content == b"WAVE"


def test_headers_of_a_shard_are_read_once_until_it_changes(here: ServiceHere) -> None:
    path = here.service.config.run.root / "sounds" / "kept.tar"
    write_tar(path, {"0001.bin": bytes(2 << 20), "0002.bin": b"two"})
    listed = "/v1/records/sounds/kept.tar"
    before = kept(here)
    assert here.client.get(listed).json()["total"] == 2
    (index,) = kept(here) - before
    os.utime(index, ns=(0, 0))
    second = here.client.get("/v1/members/sounds/kept.tar", params={"number": 1, "member": 0})
    assert (second.status_code, second.content) == (200, b"two")
    assert index.stat().st_mtime_ns > 0  # it was read
    write_tar(path, {"0003.bin": bytes(2 << 20)})
    assert [each["key"] for each in here.client.get(listed).json()["records"]] == ["0003"]
    assert len(kept(here) - before) == 2
    (another,) = kept(here) - before - {index}
    another.write_bytes(index.read_bytes())  # somebody's: its records are not in this shard
    assert here.client.get(listed).status_code < 500
