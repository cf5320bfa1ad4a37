"""What may succeed is tried again: soon enough, not for ever, and never so that it harms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from obstore.store import MemoryStore

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import Fetched
from dsort.storage.obstore import ObstoreBucket
from dsort.storage.transport import Transport
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import ALWAYS, TRANSIENT, Fault
from tests.support.faulty_client import FaultyClient, stored_in_memory
from tests.support.refusals import raises


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


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def plain(store: MemoryStore) -> ObstoreBucket:
    """The same bucket without faults."""
    return stored_in_memory(FaultyClient(store=store))


def retrying(
    policy: RetryPolicy, *faults: Fault, store: MemoryStore | None = None
) -> ObstoreBucket:
    return stored_in_memory(FaultyClient(faults, store=store), policy=policy)


# --- the bucket --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRANSIENT)
def test_every_request_gets_over_every_transient_fault(
    policy: RetryPolicy, clock: FakeClock, kind: str
) -> None:
    requests = ["stat", "list", "read", "write", "delete", "publish", "keep_aside", "put_back"]
    requests += ["read_into"]
    bucket = retrying(policy, *(Fault(request, kind, times=7) for request in requests))
    bucket.write("a", b"one")
    assert bucket.write_new("b", b"two")
    assert not bucket.write_new("b", b"three")
    assert bucket.stat("a").size_bytes == 3
    assert sorted(bucket.stat_many(["a", "b", "c"])) == ["a", "b"]
    assert bucket.read("b") == b"two"
    with bucket.stage(".dsort/j/0", name="c") as staged:
        staged.write_at(0, [b"three"])
        receipt = staged.finish()
    bucket.publish(".dsort/j/0", "c", overwrite=False, receipt=receipt)
    bucket.make_durable()
    kept = bucket.keep_aside("c", ".dsort/j/1")
    bucket.put_back(".dsort/j/1", "c", receipt=kept)
    bucket.discard(".dsort/j/", names=["c"])
    assert bucket.read("c") == b"three"
    bucket.delete("a")
    assert [info.name for info in bucket.list()] == ["b", "c"]
    assert len(clock.slept) == 7 * len(requests)


def test_a_fault_that_stays_names_the_object(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("stat", "503", "train/a.tar", times=ALWAYS))
    with raises(StorageError, "train/a.tar", "memory://test", "8 times", "503 SlowDown"):
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


def test_each_of_several_objects_is_asked_for_until_it_answers(
    policy: RetryPolicy, clock: FakeClock, store: MemoryStore, plain: ObstoreBucket
) -> None:
    plain.write("a", b"x")
    plain.write("b", b"y")
    faults = [Fault("stat", "503", "a", times=7), Fault("stat", "503", "c", times=7)]
    bucket = retrying(policy, *faults, store=store)
    assert sorted(bucket.stat_many(["a", "b", "c"])) == ["a", "b"]
    assert len(clock.slept) == 14


# --- replies that were lost --------------------------------------------------------------------


def test_a_new_object_whose_reply_was_lost_is_ours(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("write", "reply lost", times=2))
    assert bucket.write_new("lease", b"held by 1")
    assert not bucket.write_new("lease", b"held by 2")
    assert bucket.read("lease") == b"held by 1"


def test_an_object_that_replaced_another_and_whose_reply_was_lost_is_ours(
    policy: RetryPolicy, store: MemoryStore, plain: ObstoreBucket
) -> None:
    plain.write("lease", b"held by 1")
    etag = plain.stat("lease").etag
    bucket = retrying(policy, Fault("write", "reply lost"), store=store)
    assert bucket.write_over("lease", b"held by 2", etag)
    assert not bucket.write_over("lease", b"held by 3", etag)
    assert bucket.read("lease") == b"held by 2"


def test_another_writer_that_was_faster_has_won(
    policy: RetryPolicy, store: MemoryStore, plain: ObstoreBucket
) -> None:
    bucket = retrying(policy, Fault("write", "503", times=3), store=store)
    plain.write("lease", b"held by 2")
    assert not bucket.write_new("lease", b"held by 1")
    assert bucket.read("lease") == b"held by 2"


def test_no_doubt_no_reading_back(
    policy: RetryPolicy, store: MemoryStore, plain: ObstoreBucket
) -> None:
    """Without a lost reply even the same bytes are another writer's."""
    bucket = retrying(policy, Fault("read", "denied", times=ALWAYS), store=store)
    plain.write("lease", b"the same")
    assert not bucket.write_new("lease", b"the same")


def test_what_was_won_and_removed_since_is_not_ours(policy: RetryPolicy) -> None:
    class Removing(FaultyClient):
        def fetch(
            self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None
        ) -> Fetched:
            self.delete([name])
            return super().fetch(name, start, stop, pinned)

    bucket = stored_in_memory(Removing([Fault("write", "reply lost")]), policy=policy)
    assert not bucket.write_new("lease", b"held by 1")


@pytest.mark.parametrize("operation", ["write", "delete", "publish", "keep_aside", "put_back"])
def test_what_took_effect_may_be_done_again(
    policy: RetryPolicy, clock: FakeClock, operation: str
) -> None:
    bucket = retrying(policy, Fault(operation, "reply lost"))
    bucket.write("a", b"one")
    bucket.write("b", b"two")
    bucket.delete("b")
    with bucket.stage(".dsort/j/0", name="c") as staged:
        staged.write_at(0, [b"three"])
        receipt = staged.finish()
    bucket.publish(".dsort/j/0", "c", overwrite=False, receipt=receipt)
    bucket.put_back(".dsort/j/1", "c", receipt=bucket.keep_aside("c", ".dsort/j/1"))
    bucket.discard(".dsort/j/")
    assert [(info.name, info.size_bytes) for info in bucket.list()] == [("a", 3), ("c", 5)]
    assert len(clock.slept) == 1


def test_an_object_that_was_put_back_already_is_not_missed(policy: RetryPolicy) -> None:
    bucket = retrying(policy, Fault("delete", "reply lost", ".dsort/j/0"))
    bucket.write("a", b"one")
    kept = bucket.keep_aside("a", ".dsort/j/0")
    bucket.put_back(".dsort/j/0", "a", receipt=kept)
    assert [info.name for info in bucket.list(".dsort/")] == []
    with raises(ObjectNotFoundError, ".dsort/j/0"):
        bucket.put_back(".dsort/j/0", "a", receipt=kept)


# --- reading and listing on --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("cut", [(0, None), (2, 82), (42, None), (62, None), (72, None)]),
        ("reset", [(0, None), (2, 82), (2, None), (2, None), (2, None)]),
    ],
)
def test_a_read_goes_on_where_it_stopped(
    policy: RetryPolicy, clock: FakeClock, kind: str, wanted: list[tuple[int, int | None]]
) -> None:
    client = FaultyClient([Fault("read_into", kind, first=2, times=3)])
    data = bytes(range(100))
    bucket = stored_in_memory(client, policy=policy)
    bucket.write("a", data)
    with bucket.open("a") as opened:
        buffer = bytearray(80)
        opened.read_into(memoryview(buffer), 2)
    assert buffer == data[2:82]
    assert client.ranges == wanted
    assert len(clock.slept) == 3


def test_a_pinned_read_goes_on_where_it_stopped(policy: RetryPolicy, clock: FakeClock) -> None:
    client = FaultyClient([Fault("read_into", "cut", times=2)])
    data = bytes(range(100))
    bucket = stored_in_memory(client, policy=policy)
    bucket.write("a", data)
    with bucket.pinned(bucket.stat("a")) as pinned:
        buffer = bytearray(80)
        pinned.read_into(memoryview(buffer), 2)
    assert buffer == data[2:82]
    assert client.ranges == [(2, 82), (42, 82), (62, 82)]
    assert len(clock.slept) == 2


def test_an_object_that_ends_too_soon_is_no_transient_fault(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    bucket = retrying(policy)
    bucket.write("a", bytes(10))
    with bucket.open("a") as opened, raises(StorageError, "byte 10", "11"):
        opened.read_into(memoryview(bytearray(11)), 0)
    assert len(clock.slept) == 0


def test_a_listing_cut_short_gives_every_name_once(policy: RetryPolicy, clock: FakeClock) -> None:
    names = [f"shard-{number:03}" for number in range(20)] + ["é", "\U00010000"]
    bucket = retrying(policy, Fault("list", "cut", times=3), Fault("list", "503", first=4))
    for name in names:
        bucket.write(name, b"")
    assert [info.name for info in bucket.list()] == names
    assert len(clock.slept) == 4


def test_a_listing_is_asked_for_when_it_is_read(policy: RetryPolicy) -> None:
    asked: list[str] = []

    class Noting(FaultyClient):
        def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
            asked.append(prefix)
            return super().pages(prefix)

    bucket = stored_in_memory(Noting(), policy=policy)
    bucket.write("a", b"")
    listing = bucket.list()
    assert asked == []
    assert next(listing).name == "a"
    assert asked == [""]


class _Replaced(FaultyClient):
    """An object that another program replaces when it is asked for again."""

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        if pinned is not None:
            self.put(name, b"new content")
        return super().fetch(name, start, stop, pinned)


def test_a_small_object_that_is_replaced_while_it_is_read_is_read_anew(
    policy: RetryPolicy, store: MemoryStore, plain: ObstoreBucket
) -> None:
    plain.write("a", b"old")
    client = _Replaced([Fault("read_into", "cut")], store=store)
    assert stored_in_memory(client, policy=policy).read("a") == b"new content"


def test_a_small_object_that_is_always_replaced_is_an_error_of_the_store(
    policy: RetryPolicy, store: MemoryStore, plain: ObstoreBucket
) -> None:
    plain.write("a", b"old")
    client = _Replaced([Fault("read_into", "cut", times=ALWAYS)], store=store)
    with raises(StorageError, "memory://test", "4 times"):
        stored_in_memory(client, policy=policy).read("a")


def test_a_request_waits_as_long_as_the_store_asks(clock: FakeClock) -> None:
    policy = RetryPolicy(clock=clock.now, sleep=clock.sleep, uniform=lambda low, high: low)
    busy = TransientStorageError("too many requests")
    busy.retry_after_s = 45.0
    answers: list[Exception | str] = [busy, TransientStorageError("reset"), "done"]

    def request() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    transport = Transport(StoreLimits(), policy=policy)
    assert transport.call("read a", request) == "done"
    assert clock.slept == [45.0, policy.delay_s_min]


def test_no_wait_begins_that_would_end_after_the_time_of_the_policy(clock: FakeClock) -> None:
    policy = RetryPolicy(clock=clock.now, sleep=clock.sleep, seconds_max=30)
    busy = TransientStorageError("too many requests")
    busy.retry_after_s = 45.0

    def request() -> None:
        raise busy

    with raises(StorageError, "read a", hint="dsort resume"):
        Transport(StoreLimits(), policy=policy).call("read a", request)
    assert clock.slept == []
