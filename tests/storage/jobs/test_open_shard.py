"""``dsort.open``: records of one shard by number and key, as ``read_shards`` has them in order."""

from __future__ import annotations

import threading
import tracemalloc
import zipfile
from pathlib import Path

import pytest

import dsort
from tests.support.container_kinds import KINDS, some_records
from tests.support.internals import NoSuchRecordError
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server
from tests.support.tars import tar_of


def tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(members))
    return path


def hundred(path: Path, payload_bytes: int = 10) -> Path:
    members = []
    for number in range(100):
        payload = bytes([number]) * payload_bytes
        members += [(f"a/{number:03d}.cls", b"%d" % number), (f"a/{number:03d}.seg.png", payload)]
    return tar(path, members)


def test_every_container_gives_what_reading_in_order_gives(tmp_path: Path) -> None:
    for kind in KINDS:
        directory = tmp_path / kind.suffix[1:]
        directory.mkdir(exist_ok=True)
        if kind.beside is not None:
            (directory / kind.beside[0]).write_bytes(kind.beside[1])
        path = directory / f"shard-0{kind.suffix}"
        path.write_bytes(kind.write(some_records(4, 9)))
        wanted = [(each.key, each.members) for each in dsort.read_shards(path)]
        with dsort.open(path) as shard:
            assert len(shard) == len(wanted) == 9, kind
            for number in (8, 0, 4):
                record = shard[number]
                assert (record.key, record.members) == wanted[number], kind
                assert record.sizes == {n: len(x) for n, x in wanted[number][1].items()}, kind
                assert shard[record.key].members == record.members, kind


def test_records_are_found_by_number_slice_and_key(tmp_path: Path) -> None:
    with dsort.open(hundred(tmp_path / "s.tar")) as shard:
        assert [shard[at].key for at in (0, -1, 42)] == ["a/000", "a/099", "a/042"]
        assert [record.key for record in shard[97:]] == ["a/097", "a/098", "a/099"]
        assert list(shard.keys)[:2] == ["a/000", "a/001"]
        assert "a/007" in shard
        assert "a/7" not in shard
        record = shard["a/007"]
        assert (record.index, record.size_bytes, list(record)) == (7, 11, ["cls", "seg.png"])
        assert record["cls"] == record["a/007.cls"] == b"7"
        assert record.read("seg.png", 2, 3) == bytes([7]) * 3
        assert dict(record) == {"cls": b"7", "seg.png": bytes([7]) * 10}
        with pytest.raises(KeyError):
            record["jpg"]
        with raises(IndexError, "100 records"):
            shard[100]


def test_a_key_that_is_not_there_names_the_shard_and_what_is_near(tmp_path: Path) -> None:
    with (
        dsort.open(hundred(tmp_path / "s.tar")) as shard,
        raises(NoSuchRecordError, "shard s.tar", "record a/0100", hint="a/010"),
    ):
        shard["a/0100"]


def test_names_that_come_again_begin_another_record(tmp_path: Path) -> None:
    members = [("a.x", b"1"), ("a.y", b"2"), ("a.x", b"3"), ("b", b"4"), ("a.x", b"5")]
    path = tar(tmp_path / "s.tar", members)
    with dsort.open(path) as shard:
        found = [(record.key, record.members) for record in shard]
        assert shard.numbers_of("a") == (0, 1, 3)
    assert found == [(each.key, each.members) for each in dsort.read_shards(path)]
    assert [key for key, _ in found] == ["a", "a", "b", "a"]


def test_a_shard_that_is_cut_off_or_missing_names_itself(tmp_path: Path) -> None:
    path = hundred(tmp_path / "s.tar")
    path.write_bytes(path.read_bytes()[:50_000])
    with dsort.open(path) as shard, raises(dsort.CorruptShardError, shard="s.tar", offset=49152):
        len(shard)
    with pytest.raises(dsort.ObjectNotFoundError, match=r"t\.tar"):
        dsort.open(tmp_path / "t.tar")


def test_of_a_member_that_inflates_to_much_no_more_is_made_than_is_asked_for(
    tmp_path: Path,
) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"0" * (32 << 20))
    with dsort.open(tmp_path / "bomb.zip") as shard:
        assert len(shard) == 1
        tracemalloc.start()
        try:
            assert shard[0].read("a.txt", 5, 100) == b"0" * 100
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        assert shard[0]["txt"] == b"0" * (32 << 20)


def test_a_shard_of_a_store_is_read_by_ranges_and_by_threads(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    path = hundred(tmp_path / "s.tar", 60_000)
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="s.tar", Body=path.read_bytes())
    with dsort.open(f"s3://{bucket}/s.tar") as shard:
        assert len(shard) == 100
        scanned = shard.bytes_read
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda at=at: found.append(shard[at]["seg.png"]))
            for at in (5, 50, 95)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [bytes([at]) * 60_000 for at in (5, 50, 95)]
        assert shard.bytes_read - scanned == 3 * 60_000
