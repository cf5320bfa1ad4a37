"""The buckets that fail on purpose fail as they are told, and the same way every time."""

from __future__ import annotations

import pytest

from dsort.errors import (
    TransientStorageError,
)
from dsort.storage.bucket import Bucket
from tests.support.faulty_bucket import (
    TRANSIENT,
    Fault,
    FaultyBucket,
    RandomFaults,
)
from tests.support.memory_bucket import MemoryBucket


def read_into(bucket: Bucket, name: str, size_bytes: int = 10) -> bytearray:
    buffer = bytearray(b"?" * size_bytes)
    with bucket.open(name) as opened:
        opened.read_into(memoryview(buffer), 0)
    return buffer


def staged(bucket: Bucket, *pieces: bytes) -> int:
    """Publishes ``pieces`` as "a"; returns how long it was said to be."""
    with bucket.stage(".dsort/j/0", name="a") as opened:
        offset = 0
        for piece in pieces:
            opened.write_at(offset, [piece])
            offset += len(piece)
        reported_bytes = opened.size_bytes()
        receipt = opened.finish()
    bucket.publish(".dsort/j/0", "a", overwrite=True, receipt=receipt)
    return reported_bytes


def outcomes(bucket: FaultyBucket, calls: int) -> list[str]:
    found = []
    for number in range(calls):
        try:
            found.append(bucket.read(f"shard-{number % 3}").decode())
        except TransientStorageError as error:
            found.append(error.message.split(": ")[-1])
    return found


def test_a_script_is_kept_to() -> None:
    """The third read of shard-2 fails twice."""
    faulty = FaultyBucket(MemoryBucket(), [Fault("read_into", "503", "shard-2", first=3, times=2)])
    for name in ("shard-1", "shard-2"):
        faulty.write(name, bytes(10))
    seen = []
    for _ in range(6):
        read_into(faulty, "shard-1")
        try:
            read_into(faulty, "shard-2")
            seen.append("")
        except TransientStorageError as error:
            seen.append(error.message)
    message = "read_into of shard-2 in memory://test: 503 SlowDown"
    assert seen == ["", "", message, message, "", ""]
    assert faulty.struck == [("read_into", "shard-2", "503")] * 2


@pytest.mark.parametrize("kind", TRANSIENT)
def test_transient_faults_strike_before_anything_is_done(kind: str) -> None:
    faulty = FaultyBucket(MemoryBucket(), [Fault("write", kind)])
    with pytest.raises(TransientStorageError, match="write of a in memory://test: "):
        faulty.write("a", b"x")
    assert list(faulty.inner.list()) == []


def test_a_lost_reply_is_lost_after_the_effect() -> None:
    operations = ["write", "write_new", "publish", "delete"]
    faulty = FaultyBucket(MemoryBucket(), [Fault(each, "reply lost") for each in operations])
    with pytest.raises(TransientStorageError):
        faulty.write("w", b"x")
    with pytest.raises(TransientStorageError):
        faulty.write_new("n", b"x")
    with pytest.raises(TransientStorageError):
        staged(faulty, b"x")
    with pytest.raises(TransientStorageError):
        faulty.delete("w")
    assert [info.name for info in faulty.list()] == ["a", "n"]


def test_sizes_and_etags_lie_by_every_door() -> None:
    doors = ("stat", "stat_many", "list", "open")
    for kind in ("size", "etag"):
        faulty = FaultyBucket(MemoryBucket(), [Fault(door, kind) for door in doors])
        faulty.write("a", b"x")
        true = faulty.inner.stat("a")
        seen = [faulty.stat("a"), faulty.stat_many(["a"])["a"], *faulty.list()]
        with faulty.open("a") as opened:
            seen.append(opened.info)
        for info in seen:
            assert (info.size_bytes == 2, info.etag == true.etag) == (
                kind == "size",
                kind == "size",
            )
        assert faulty.stat("a") == true


def test_what_is_stored_is_shorter_and_nobody_tells() -> None:
    faulty = FaultyBucket(
        MemoryBucket(), [Fault("write", "short"), Fault("write_at", "short", first=2)]
    )
    faulty.write("w", b"123")
    assert faulty.inner.read("w") == b"12"
    assert staged(faulty, b"123", b"456", b"789") == 9
    assert faulty.inner.read("a") == b"12345"


# --- by chance ---------------------------------------------------------------------------------


def test_chance_is_the_same_for_the_same_seed_only(capsys: pytest.CaptureFixture[str]) -> None:
    memory = MemoryBucket()
    for number in range(3):
        memory.write(f"shard-{number}", b"fine")
    runs = [outcomes(FaultyBucket(memory, RandomFaults(seed, rate=0.5)), 60) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert {"fine", "503 SlowDown", "the connection was reset"} <= set(runs[0])
    assert "seed=2" in capsys.readouterr().err


@pytest.mark.parametrize("in_a_row_max", [1, 2, 5])
def test_chance_never_strikes_too_often_in_a_row(in_a_row_max: int) -> None:
    faults = RandomFaults(3, rate=1.0, in_a_row_max=in_a_row_max)
    struck = [faults.due("read", "a") is not None for _ in range(30)]
    assert struck == ([True] * in_a_row_max + [False]) * (30 // (in_a_row_max + 1))


# --- slow --------------------------------------------------------------------------------------
