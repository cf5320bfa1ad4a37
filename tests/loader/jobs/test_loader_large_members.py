"""``dsort.loader`` on large members of files, which are read with no buffer between: whatever lies
between them, from byte to byte, and with the checksum of the shard."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

import dsort
from dsort.loader import Loader
from tests.support.internals import Int64s, forward_tar, loader, shard_file, shard_source

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
ODD = ("", "none", "long", "pax", "global", "directory", "hardlink", "tar", "dot-d")


@pytest.fixture
def read_directly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is read directly. Windows begin small, so that small shards have many."""
    found: list[int] = []
    read = shard_file.DirectFile.read

    def noted(self: shard_file.DirectFile, start: int, size_bytes: int) -> bytes:
        found.append(size_bytes)
        return read(self, start, size_bytes)

    monkeypatch.setattr(shard_file.DirectFile, "read", noted)
    monkeypatch.setattr(forward_tar, "FIRST_BYTES", 48 << 10)
    return found


def write_odd_tar(path: Path, records: int, odd: str, kind: int, rng: random.Random) -> None:
    """Large pictures and small texts, and in the midst of them what ``odd`` says."""
    path.parent.mkdir(exist_ok=True)
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:  # payload that looks like a shard
        for number in range(90):
            archive.addfile(tarfile.TarInfo(f"fake/{number}.jpg"))
    with tarfile.open(path, "w", format=kind) as archive:
        for number in range(records):
            stem = f"{number:04d}"
            is_odd = number % 7 == 5
            if is_odd and odd == "long" and kind != tarfile.USTAR_FORMAT:
                stem += "-" + "x" * 140
            parts = [("jpg", rng.randbytes(rng.randrange(17 << 10, 60 << 10)))]
            parts += [("txt", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000])))]
            if is_odd and odd == "tar":
                parts += [("tar", inner.getvalue() * 2)]
            rng.shuffle(parts)
            for extension, payload in parts:
                info = tarfile.TarInfo(f"{stem}.{extension}")
                info.size = len(payload)
                if is_odd and odd == "pax" and kind == tarfile.PAX_FORMAT:
                    info.pax_headers = {"comment": "é" * 700}
                archive.addfile(info, io.BytesIO(payload))
            if not is_odd:
                continue
            between = tarfile.TarInfo("between")
            if odd == "directory":
                between.type = tarfile.DIRTYPE
                archive.addfile(between)
            elif odd == "hardlink" and number > 20:
                between.name, between.type = f"{stem}.link", tarfile.LNKTYPE
                between.linkname = f"{stem}.jpg"
                archive.addfile(between)
            elif odd == "dot-d":  # a file by its kind, a directory by its name
                between.name, between.type = "between/", tarfile.REGTYPE
                archive.addfile(between)
            elif odd == "global" and kind == tarfile.PAX_FORMAT:
                block = between.create_pax_global_header({"comment": "all"})
                archive.fileobj.write(block)  # type: ignore[union-attr]
                archive.offset += len(block)


def as_tuples(samples: list[dict[str, Any]]) -> list[Any]:
    return [(s["__key__"], sorted((n, v) for n, v in s.items() if n[0] != "_")) for s in samples]


@pytest.mark.exhaustive
def test_large_members_are_those_that_are_there_whatever_is_between_them(
    tmp_path: Path, read_directly: list[int]
) -> None:
    rng = random.Random(5)
    for kind in FORMATS:
        for odd in ODD:
            path = tmp_path / f"{odd}-{kind}.tar"
            write_odd_tar(path, 30, odd, kind, rng)
            wanted = [
                (r.key, sorted((n[len(r.key) + 1 :].lower(), x) for n, x in r.members.items()))
                for r in dsort.read_shards(path)
            ]
            read_directly.clear()
            by_way: dict[str, Any] = {}
            for way, cache in (("forward", ""), ("indexed", str(tmp_path / "kept"))):
                ranks = [
                    Loader([path], batch_size=2, rank=r, world_size=2, remainder="pad", cache=cache)
                    for r in range(2)
                ]
                steps = zip(*ranks, strict=True)
                samples = [s for step in steps for batch in step for s in batch]
                by_way[way] = as_tuples([s for s in samples if "__padding__" not in s])
                assert by_way[way] == wanted, (way, odd, kind)
            assert read_directly, (odd, kind)


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_checksum_of_a_shard_of_large_members_is_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers_here: None,
    read_directly: list[int],
    world_size: Literal[1, 3],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_odd_tar(tmp_path / "in" / "a.tar", 40, "none", tarfile.GNU_FORMAT, random.Random(1))
    spec = {"input_bck": "in", "output_bck": "out", "output_format": "s-%d"}
    report = dsort.run({**spec, "output_shard_count": 1, "algorithm": {"kind": "shuffle"}})
    (path,) = (tmp_path / "out").glob("*.tar")
    data = path.read_bytes()

    def samples() -> list[list[dict[str, Any]]]:
        options: dict[str, Any] = {"world_size": world_size, "cache": "", "remainder": "pad"}
        return [
            [s for batch in Loader(report, batch_size=2, rank=rank, **options) for s in batch]
            for rank in range(world_size)
        ]

    assert len({s["__key__"] for rank in samples() for s in rank}) == 40
    assert read_directly
    with tarfile.open(path) as archive:
        first, *_, last = [m for m in archive if m.size > 16 << 10]
    places = [first.offset_data + 5, last.offset_data + last.size - 1, last.offset_data - 20]
    for place in (*places, len(data) - 1):
        path.write_bytes(data)
        with path.open("r+b") as file:  # so that nothing but the content is another
            file.seek(place)
            file.write(bytes([data[place] ^ 1]))
        with pytest.raises((dsort.ChangedInputError, dsort.CorruptShardError, dsort.ShardEndError)):
            samples()


def test_a_shard_that_is_cut_while_it_is_read_names_itself(
    tmp_path: Path, read_directly: list[int]
) -> None:
    path = tmp_path / "a.tar"
    write_odd_tar(path, 200, "none", tarfile.GNU_FORMAT, random.Random(2))
    for cache in ("", str(tmp_path / "kept")):
        data = path.read_bytes()
        loader = Loader([path], batch_size=1, cache=cache, memory_bytes=1, threads=1)
        batches = iter(loader)
        next(batches)
        with path.open("r+b") as file:
            file.truncate(len(data) // 2)
        with pytest.raises(dsort.DsortError, match=r"a\.tar"):
            list(batches)
        path.write_bytes(data)
        assert len(list(Loader([path], cache=cache))) == 200


def test_large_members_of_one_shard_are_read_at_the_same_time_once_their_places_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "a.tar", str(tmp_path / "kept")
    write_odd_tar(path, 200, "none", tarfile.GNU_FORMAT, random.Random(3))
    wanted = list(Loader([path], batch_size=None, cache=cache))
    meeting, met = threading.Barrier(2, timeout=30), threading.Event()
    read = shard_file.DirectFile.read

    def meet(self: shard_file.DirectFile, start: int, size_bytes: int) -> bytes:
        if not met.is_set():
            meeting.wait()
            met.set()
        return read(self, start, size_bytes)

    monkeypatch.setattr(shard_file.DirectFile, "read", meet)
    assert list(Loader([path], batch_size=None, cache=cache, threads=2)) == wanted
    assert met.is_set()


def test_a_batch_larger_than_what_is_read_ahead_is_read_in_parts_of_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    write_odd_tar(path, 60, "none", tarfile.GNU_FORMAT, random.Random(5))
    wanted = list(Loader([path], batch_size=None, cache=""))
    taken: list[int] = []
    take = shard_source.ShardSource.take

    def noted(self: shard_source.ShardSource, ticket: int, rows: Int64s) -> list[Any]:
        taken.append(len(rows))
        return take(self, ticket, rows)

    monkeypatch.setattr(shard_source.ShardSource, "take", noted)
    monkeypatch.setattr(loader, "SMALL_BLOCK_BYTES", 256 << 10)
    (batch,) = Loader([path], batch_size=60, memory_bytes=768 << 10, cache="")
    assert batch == wanted
    assert max(taken) <= (256 << 10) // (path.stat().st_size // 60) < 60


TOUCHED = """
import resource
from dsort.loader import sample_stream
def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
for _ in range(2):  # the second time, glibc would take it from its heap
    before = faults()
    sample_stream._keep_memory()
    print(faults() - before, sample_stream.KEPT_BYTES // 4096)
"""
"""In a process of its own: what other tests have let go of is in glibc's heap."""


def test_to_have_the_memory_of_samples_kept_touches_none_of_it() -> None:
    script = [sys.executable, "-c", TOUCHED]
    ended = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        faults, kept_pages = map(int, line.split())
        assert faults < kept_pages / 8
