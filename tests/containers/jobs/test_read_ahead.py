"""A worker fetches the next shard from a store while it scans and spills one: with the same
requests and the same bytes, for any worker that gets that shard."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import ChangedInputError
from dsort.storage.bucket import ReadObject
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.given_shards import note_given_shards
from tests.support.hooked_bucket import HookedBucket, HookedReadObject
from tests.support.internals import (
    ExtractTask,
    InputShard,
    PayloadBuffer,
    ReadAhead,
    Stage,
)
from tests.support.memory_bucket import MemoryBucket
from tests.support.runtime_work import make_work
from tests.support.seaweedfs import S3Server

KIB = 1 << 10


class Noting(HookedBucket):
    """Notes what is opened, and lets reads of ``held`` go on once ``freed``."""

    def __init__(self, inner: MemoryBucket) -> None:
        super().__init__(inner)
        self.opened_names: Counter[str] = Counter()
        self.reading, self.freed = threading.Event(), threading.Event()
        self.held = ""

    def opened(self, inner: ReadObject) -> HookedReadObject:
        self.opened_names[inner.info.name] += 1
        return HookedReadObject(inner, self)

    def around(self, operation: str, name: str, action: Any) -> Any:
        if operation == "read_into" and name == self.held:
            self.reading.set()
            assert self.freed.wait(60)
        return action()


@pytest.fixture
def bucket() -> Noting:
    made = MemoryBucket()
    made.create()
    for number in range(4):
        made.write(f"{number}.tar", bytes([number]) * 100 * KIB)
    return Noting(made)


def reader(
    bucket: Noting, directory: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> ReadAhead:
    infos = [bucket.stat(f"{number}.tar") for number in range(4)]
    known = [InputShard(each.name, each.size_bytes, each.mtime_ns, each.etag) for each in infos]
    monkeypatch.setattr("dsort.workers.header_reader.read_inputs", lambda _: known)
    nothing: Any = None
    setup = make_work(directory).setup
    return ReadAhead(setup, bucket, nothing, PayloadBuffer(buffer_bytes))


def task(bucket: Noting, number: int, following: int) -> ExtractTask:
    info = bucket.stat(f"{number}.tar")
    return ExtractTask(
        shard=number,
        name=info.name,
        size_bytes=info.size_bytes,
        etag=info.etag,
        stage=Stage("index", spill=True),
        next_shard=following,
    )


def content(ahead: ReadAhead, wanted: ExtractTask) -> bytes:
    source, buffer = ahead.opened(wanted)
    with source:
        view = buffer.view(wanted.size_bytes)
        source.read_into(view, 0)
        return bytes(view)


def test_the_next_shard_is_read_while_one_is_worked_on(
    bucket: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = reader(bucket, tmp_path, monkeypatch, 1 << 20)
    bucket.held = "2.tar"
    first = content(ahead, task(bucket, 0, 2))
    assert bucket.reading.wait(60), "it is being read"
    bucket.freed.set()
    assert first == bytes(100 * KIB)
    assert content(ahead, task(bucket, 2, 3)) == b"\2" * 100 * KIB
    assert content(ahead, task(bucket, 3, -1)) == b"\3" * 100 * KIB
    ahead.close()
    assert bucket.opened_names == Counter({"0.tar": 1, "2.tar": 1, "3.tar": 1})


def test_a_shard_that_another_worker_got_is_let_go(
    bucket: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = reader(bucket, tmp_path, monkeypatch, 1 << 20)
    content(ahead, task(bucket, 0, 2))
    assert content(ahead, task(bucket, 1, 3)) == b"\1" * 100 * KIB
    bucket.write("3.tar", b"changed" * 100 * KIB)
    ahead.settled()
    ahead.close()
    stale = task(bucket, 1, -1)
    bucket.write("1.tar", b"changed")
    with pytest.raises(ChangedInputError):
        content(ahead, stale)


def test_without_room_for_two_nothing_is_read_ahead(
    bucket: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = reader(bucket, tmp_path, monkeypatch, 150 * KIB)
    assert content(ahead, task(bucket, 0, 1)) == bytes(100 * KIB)
    ahead.close()
    assert bucket.opened_names == Counter({"0.tar": 1})


def test_a_fetch_that_no_thread_could_begin_is_not_made_later(
    bucket: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then, another shard is in the place of its bytes."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead = reader(bucket, tmp_path, monkeypatch, 1000 * KIB)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert content(ahead, task(bucket, 0, 1)) == bytes([0]) * 100 * KIB
    for number, following in ((1, 2), (2, 3), (3, -1)):
        assert content(ahead, task(bucket, number, following)) == bytes([number]) * 100 * KIB
    ahead.close()
    assert set(bucket.opened_names.values()) == {1}


def test_a_job_asks_a_store_for_each_shard_once(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    shards = {}
    for number in range(7):
        members = [Member(f"{number}-{key}.cls", bytes([key]) * 5000) for key in range(9)]
        shards[f"in-{number}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    for path in (tmp_path / "in").iterdir():
        client.put_object(Bucket=bucket, Key=f"in/{path.name}", Body=path.read_bytes())
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 4}, output_shard_records=10)
    run_local(tmp_path, spec)
    given = note_given_shards(monkeypatch)
    run_local(tmp_path, {**spec, "input_bck": f"s3://{bucket}/in", "output_bck": "far"})
    assert files_of(tmp_path / "far", "*") == files_of(tmp_path / "out", "*")
    assert sorted(each.shard for each in given) == list(range(7))
    assert {each.follows for each in given} - {-1}, "something is fetched ahead"
    in_turn = [each for each in given if each.fetched == each.shard]
    assert len(in_turn) >= 4, "most of what is fetched ahead is what the worker gets"


def test_encoded_shards_of_a_store_come_out_whole(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    shards = {}
    for number in range(5):
        text = b"".join(b"%d-%d " % (number, each) for each in range(200_000))
        tar = Shard((Member(f"{number}.txt", text),))
        shards[f"in-{number}.tgz"] = gzip.compress(tar.data, 1)
    write_shards(tmp_path / "in", shards)
    for path in (tmp_path / "in").iterdir():
        client.put_object(Bucket=bucket, Key=f"in/{path.name}", Body=path.read_bytes())
    spec = spec_of(input_extension=".tgz", output_extension=".tar", output_shard_records=2)
    run_local(tmp_path, spec)
    run_local(tmp_path, {**spec, "input_bck": f"s3://{bucket}/in", "output_bck": "far"})
    assert files_of(tmp_path / "far", "*") == files_of(tmp_path / "out", "*")
