"""The buckets that fail on purpose fail as they are told, and the same way every time."""

from __future__ import annotations

import pytest

from dsort.errors import (
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.storage.bucket import Bucket
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import (
    ALWAYS,
    KINDS,
    RETRIED,
    TRANSIENT,
    Fault,
    FaultyBucket,
    LatencyBucket,
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


@pytest.mark.parametrize(
    ("kind", "error"), [("denied", StorageAccessError), ("full", StorageFullError)]
)
def test_lasting_faults_are_what_they_say(kind: str, error: type[StorageError]) -> None:
    faulty = FaultyBucket(MemoryBucket(), [Fault("write_at", kind)])
    with pytest.raises(error):
        staged(faulty, b"x")


def test_a_stream_that_is_cut_has_filled_half() -> None:
    faulty = FaultyBucket(MemoryBucket(), [Fault("read_into", "cut")])
    faulty.write("a", b"0123456789")
    buffer = bytearray(b"?" * 10)
    with faulty.open("a") as opened, pytest.raises(TransientStorageError):
        opened.read_into(memoryview(buffer), 0)
    assert buffer == b"01234" + bytes(5)


def test_a_listing_that_is_cut_gives_half_of_the_names() -> None:
    faulty = FaultyBucket(MemoryBucket(), [Fault("list", "cut")])
    for name in "abcd":
        faulty.write(name, b"")
    listing = faulty.list()
    assert [next(listing).name, next(listing).name] == ["a", "b"]
    with pytest.raises(TransientStorageError):
        next(listing)
    assert [info.name for info in faulty.list()] == list("abcd")


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


def test_what_cannot_strike_an_operation_cannot_be_written_down() -> None:
    with pytest.raises(AssertionError, match="short cannot strike read"):
        Fault("read", "short")


# --- by chance ---------------------------------------------------------------------------------


def test_chance_is_the_same_for_the_same_seed_only(capsys: pytest.CaptureFixture[str]) -> None:
    memory = MemoryBucket()
    for number in range(3):
        memory.write(f"shard-{number}", b"fine")
    runs = [outcomes(FaultyBucket(memory, RandomFaults(seed, rate=0.5)), 60) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert {"fine", "503 SlowDown", "the connection was reset"} <= set(runs[0])
    assert "seed=2" in capsys.readouterr().err


def test_the_order_of_other_calls_changes_no_chance() -> None:
    memory = MemoryBucket()
    for number in range(3):
        memory.write(f"shard-{number}", b"fine")
    alone, among = (FaultyBucket(memory, RandomFaults(7, rate=0.5)) for _ in range(2))
    mixed = outcomes(among, 60)
    assert mixed[::3] == [outcomes(alone, 1)[0] for _ in range(20)]


@pytest.mark.parametrize("in_a_row_max", [1, 2, 5])
def test_chance_never_strikes_too_often_in_a_row(in_a_row_max: int) -> None:
    faults = RandomFaults(3, rate=1.0, in_a_row_max=in_a_row_max)
    struck = [faults.due("read", "a") is not None for _ in range(30)]
    assert struck == ([True] * in_a_row_max + [False]) * (30 // (in_a_row_max + 1))


def test_chance_strikes_operations_with_what_can_strike_them() -> None:
    faults = RandomFaults(5, rate=1.0, kinds=tuple(KINDS), operations=RETRIED, in_a_row_max=ALWAYS)
    for operation in RETRIED:
        for number in range(50):
            assert operation in KINDS[faults.due(operation, str(number)) or ""]
    assert faults.due("write_at", "a") is None
    assert {kind for _, _, kind in faults.struck} == set(KINDS)


# --- slow --------------------------------------------------------------------------------------


def test_operations_take_as_long_as_they_are_asked_to() -> None:
    clock = FakeClock()
    slow = LatencyBucket(MemoryBucket(), {"write": 0.5, "read_into": 2.0, "list": 8.0}, clock.sleep)
    slow.write("a", bytes(10))
    slow.stat("a")
    read_into(slow, "a")
    assert len(list(slow.list())) == 1
    assert clock.slept == [0.5, 2.0, 8.0]
