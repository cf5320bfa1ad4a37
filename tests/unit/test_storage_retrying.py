"""What may succeed is tried again: soon enough, not for ever, and never so that it harms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from dsort.errors import (
    InvariantError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket, ObjectInfo, ReadObject
from dsort.storage.retry import ReadCutShortError, RetryingBucket
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import ALWAYS, TRANSIENT, Fault, FaultyBucket
from tests.support.hooked_bucket import HookedBucket, HookedReadObject
from tests.support.memory_bucket import MemoryBucket


def longest(low: float, high: float) -> float:
    assert low <= high
    return high


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def policy(clock: FakeClock) -> RetryPolicy:
    """The defaults, with the longest delays that may be."""
    return RetryPolicy(clock=clock.now, sleep=clock.sleep, uniform=longest)


def retrying(policy: RetryPolicy, *faults: Fault, inner: Bucket | None = None) -> RetryingBucket:
    return RetryingBucket(FaultyBucket(inner or MemoryBucket(), faults), policy)


# --- the bucket --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRANSIENT)
def test_every_operation_gets_over_every_transient_fault(
    policy: RetryPolicy, clock: FakeClock, kind: str
) -> None:
    operations = ["exists", "create", "stat", "stat_many", "list", "open", "read", "write"]
    operations += [
        "write_new",
        "delete",
        "stage",
        "publish",
        "make_durable",
        "discard",
        "read_into",
    ]
    bucket = retrying(policy, *(Fault(operation, kind, times=7) for operation in operations))
    bucket.create()
    assert bucket.exists()
    bucket.write("a", b"one")
    assert bucket.write_new("b", b"two")
    assert not bucket.write_new("b", b"three")
    assert bucket.stat("a").size_bytes == 3
    assert sorted(bucket.stat_many(["a", "b", "c"])) == ["a", "b"]
    with bucket.open("b") as opened:
        data = bytearray(3)
        opened.read_into(memoryview(data), 0)
        assert data == b"two"
    with bucket.stage(".dsort/j/0", name="c") as staged:
        staged.write_at(0, [b"three"])
        receipt = staged.finish()
    bucket.publish(".dsort/j/0", "c", overwrite=False, receipt=receipt)
    bucket.make_durable()
    bucket.discard(".dsort/j/", names=["c"])
    assert bucket.read("c") == b"three"
    bucket.delete("a")
    assert [info.name for info in bucket.list()] == ["b", "c"]
    assert len(clock.slept) == 7 * len(operations)


def test_a_fault_that_stays_names_the_object(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("stat", "503", "train/a.tar", times=ALWAYS))
    with pytest.raises(
        StorageError,
        match=r"cannot find train/a\.tar in bucket memory://test: tried 8 times .* 503 SlowDown",
    ):
        bucket.stat("train/a.tar")


@pytest.mark.parametrize(
    ("kind", "error"), [("denied", StorageAccessError), ("full", StorageFullError)]
)
def test_a_lasting_fault_is_reported_at_once(
    policy: RetryPolicy, clock: FakeClock, kind: str, error: type[StorageError]
) -> None:
    bucket = retrying(policy, Fault("write", kind))
    with pytest.raises(error):
        bucket.write("a", b"x")
    assert len(clock.slept) == 0


def test_what_a_backend_offers_besides_is_reached_through_inner(policy: RetryPolicy) -> None:
    memory = MemoryBucket()
    bucket = RetryingBucket(memory, policy)
    assert bucket.inner is memory
    assert (bucket.uri, bucket.seals_on_finish) == (memory.uri, memory.seals_on_finish)
    bucket.write("a", b"x")
    assert bucket.open("a").rereads_cheaply is memory.open("a").rereads_cheaply


# --- replies that were lost --------------------------------------------------------------------


def test_a_new_object_whose_reply_was_lost_is_ours(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("write_new", "reply lost", times=2))
    assert bucket.write_new("lease", b"held by 1")
    assert not bucket.write_new("lease", b"held by 2")
    assert bucket.read("lease") == b"held by 1"


def test_somebody_else_who_was_faster_has_won(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("write_new", "503", times=3))
    bucket.inner.write("lease", b"held by 2")
    assert not bucket.write_new("lease", b"held by 1")
    assert bucket.read("lease") == b"held by 2"


def test_no_doubt_no_reading_back(policy: RetryPolicy) -> None:
    """Without a lost reply even the same bytes are somebody else's."""
    bucket = retrying(policy, Fault("read", "denied", times=ALWAYS))
    bucket.inner.write("lease", b"the same")
    assert not bucket.write_new("lease", b"the same")


def test_what_was_won_and_removed_since_is_not_ours(policy: RetryPolicy) -> None:
    class Removing(HookedBucket):
        def read(self, name: str) -> bytes:
            self.inner.delete(name)
            return super().read(name)

    bucket = RetryingBucket(
        Removing(FaultyBucket(MemoryBucket(), [Fault("write_new", "reply lost")])), policy
    )
    assert not bucket.write_new("lease", b"held by 1")


@pytest.mark.parametrize("operation", ["write", "delete", "make_durable", "create", "discard"])
def test_what_took_effect_may_be_done_again(
    policy: RetryPolicy, clock: FakeClock, operation: str
) -> None:
    bucket = retrying(policy, Fault(operation, "reply lost", times=2))
    bucket.create()
    bucket.write("a", b"one")
    bucket.write("b", b"two")
    bucket.delete("b")
    bucket.make_durable()
    bucket.discard(".dsort/j/")
    assert [(info.name, info.size_bytes) for info in bucket.list()] == [("a", 3)]
    assert len(clock.slept) == 2


# --- reading and listing on --------------------------------------------------------------------


class NotingRanges(FaultyBucket):
    """Notes the ranges that it is asked for."""

    def __init__(self, inner: Bucket, faults: Sequence[Fault]) -> None:
        super().__init__(inner, faults)
        self.ranges: list[tuple[int, int]] = []

    def opened(self, inner: ReadObject) -> HookedReadObject:
        read_object = super().opened(inner)
        read_into = read_object.read_into

        def noted(buffer: memoryview, offset: int) -> None:
            self.ranges.append((offset, len(buffer)))
            read_into(buffer, offset)

        read_object.read_into = noted  # type: ignore[method-assign]
        return read_object


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("cut", [(2, 80), (42, 40), (62, 20), (72, 10)]),
        ("cut silently", [(2, 80)] * 4),
        ("reset", [(2, 80)] * 4),
    ],
)
def test_a_read_goes_on_where_it_stopped_if_that_is_known(
    policy: RetryPolicy, clock: FakeClock, kind: str, wanted: list[tuple[int, int]]
) -> None:
    faulty = NotingRanges(MemoryBucket(), [Fault("read_into", kind, times=3)])
    data = bytes(range(100))
    faulty.inner.write("a", data)
    with RetryingBucket(faulty, policy).open("a") as opened:
        buffer = bytearray(80)
        opened.read_into(memoryview(buffer), 2)
    assert buffer == data[2:82]
    assert faulty.ranges == wanted
    assert len(clock.slept) == 3


def test_a_backend_that_fills_more_than_there_is_has_a_bug(policy: RetryPolicy) -> None:
    class Overfilling(HookedBucket):
        def around(self, operation: str, name: str, action: Callable[[], object]) -> object:  # type: ignore[override]
            if operation == "read_into":
                raise ReadCutShortError("cut", filled_bytes=11)
            return action()

    bucket = RetryingBucket(Overfilling(MemoryBucket()), policy)
    bucket.write("a", bytes(10))
    with bucket.open("a") as opened, pytest.raises(InvariantError, match="11 bytes filled of 10"):
        opened.read_into(memoryview(bytearray(10)), 0)


def test_an_object_that_ends_too_soon_is_no_transient_fault(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    bucket = retrying(policy)
    bucket.write("a", bytes(10))
    with bucket.open("a") as opened, pytest.raises(StorageError, match="ended at byte 10, 11 exp"):
        opened.read_into(memoryview(bytearray(11)), 0)
    assert len(clock.slept) == 0


def test_a_listing_cut_short_gives_every_name_once(policy: RetryPolicy, clock: FakeClock) -> None:
    names = [f"shard-{number:03}" for number in range(20)] + ["é", "\U00010000"]
    bucket = retrying(policy, Fault("list", "cut", times=3), Fault("list", "503", first=4))
    for name in names:
        bucket.write(name, b"")
    assert [info.name for info in bucket.list()] == names
    assert len(clock.slept) == 4


def test_a_listing_is_asked_for_when_it_is_read_and_as_far_as_it_is(policy: RetryPolicy) -> None:
    given: list[str] = []

    class Noting(HookedBucket):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            for info in self.inner.list(prefix):
                given.append(info.name)
                yield info

    bucket = RetryingBucket(Noting(MemoryBucket()), policy)
    for name in ("a", "b", "c"):
        bucket.write(name, b"")
    listing = bucket.list()
    assert given == []
    assert next(listing).name == "a"
    assert given == ["a"]


def test_a_backend_that_lists_out_of_order_is_a_bug(policy: RetryPolicy) -> None:
    class Backwards(HookedBucket):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            yield from reversed(list(self.inner.list(prefix)))

    bucket = RetryingBucket(Backwards(MemoryBucket()), policy)
    for name in ("a", "b"):
        bucket.write(name, b"")
    with pytest.raises(InvariantError, match="lists 'a' too late"):
        list(bucket.list())
