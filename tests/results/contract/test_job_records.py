"""Journal, lease and claims hold their laws in any bucket: directories and memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsort.errors import JobConflictError, StorageError, StorageFullError
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import (
    Committing,
    Journal,
    JournalEvent,
    Lease,
    ScratchLost,
    ShardCreated,
    Standing,
    decode_lease,
    discard_run,
    last_attempt,
    lease_name,
    list_job_directories,
    read_hold,
    read_journal,
    stop_job,
    stop_name,
)
from tests.support.machines import FakeMachine
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises

JOB = "20260131-000000-abcdef"
RUNNERS = 8


@pytest.fixture(params=["directory", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    made: Bucket = LocalBucket(tmp_path / "out") if request.param == "directory" else MemoryBucket()
    made.create()
    return made


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def created(ordinal: int) -> ShardCreated:
    return ShardCreated(ordinal, f"{ordinal:016x}", "", "", -1)


def segments(bucket: Bucket) -> list[str]:
    return [found.name for found in bucket.list(f".dsort/{JOB}/journal/")]


def take(bucket: Bucket, machine: FakeMachine, attempt: int = 1) -> Lease:
    return Lease.take(bucket, JOB, attempt=attempt, machine=machine)


# -- the journal ---------------------------------------------------------------------------------


def test_events_are_stored_a_second_later_or_a_thousand_later(bucket: Bucket) -> None:
    now = [0.0]
    journal = Journal(bucket, JOB, 1, clock=lambda: now[0])
    journal.append(created(0))
    assert segments(bucket) == []
    now[0] = 1.0
    journal.append(created(1))
    assert segments(bucket) == [f".dsort/{JOB}/journal/0001-000000.json"]
    for ordinal in range(2, 1001):
        journal.append(created(ordinal))
    assert len(segments(bucket)) == 1
    journal.append(created(1001))
    assert len(segments(bucket)) == 2
    journal.flush()  # nothing waits
    assert len(segments(bucket)) == 2
    assert sorted(read_journal(bucket, JOB).created) == list(range(1002))


def test_attempts_are_read_in_their_order(bucket: Bucket) -> None:
    for attempt in range(1, 12):
        journal = Journal(bucket, JOB, attempt)
        journal.append(ShardCreated(0, "", f"receipt-{attempt}", "", -1))
        journal.flush()
    state = read_journal(bucket, JOB)
    assert (state.created[0].receipt, state.attempts) == ("receipt-11", 11)


def test_an_attempt_that_wrote_nothing_counts(bucket: Bucket, machine: FakeMachine) -> None:
    journal = Journal(bucket, JOB, 1)
    journal.append(created(0))
    journal.flush()
    take(bucket, machine, attempt=3)
    assert read_journal(bucket, JOB).attempts == 3


def test_a_segment_missing_in_the_middle_is_an_error(bucket: Bucket) -> None:
    journal = Journal(bucket, JOB, 1)
    for ordinal in range(3):
        journal.append(created(ordinal))
        journal.flush()
    bucket.delete(segments(bucket)[1])
    with raises(StorageError, "segment 1", "attempt 1"):
        read_journal(bucket, JOB)


def test_a_damaged_segment_is_named(bucket: Bucket) -> None:
    bucket.write(f".dsort/{JOB}/journal/0001-000000.json", b"{")
    with pytest.raises(StorageError, match=r"0001-000000\.json"):
        read_journal(bucket, JOB)


def test_without_a_journal_there_is_nothing_to_resume(bucket: Bucket, tmp_path: Path) -> None:
    for empty in (bucket, LocalBucket(tmp_path / "nowhere")):
        with pytest.raises(JobConflictError, match=JOB):
            read_journal(empty, JOB)


def test_what_could_not_be_stored_is_stored_by_the_next_flush() -> None:
    bucket = MemoryBucket(room_bytes=10)
    journal = Journal(bucket, JOB, 1)
    journal.append(ScratchLost("h"))
    with pytest.raises(StorageFullError):
        journal.flush()
    roomy = MemoryBucket()
    journal._bucket = roomy
    journal.append(Committing())
    journal.flush()
    assert read_journal(roomy, JOB).committing


# -- the lease -----------------------------------------------------------------------------------


def test_a_job_that_is_run_is_refused_to_others(bucket: Bucket, machine: FakeMachine) -> None:
    take(bucket, machine)
    machine.pass_time(3)
    for other in (machine.beside(), machine.beside(host="node-2", boot_id="boot-2")):
        with raises(
            JobConflictError, "node-1", "process 100", "attempt 1", "3 s", hint=f"dsort stop {JOB}"
        ) as caught:
            take(bucket, other, attempt=2)
        assert "57 s" in caught.value.hint
    assert last_attempt(bucket, JOB) == 1


def test_a_released_lease_is_free_at_once(bucket: Bucket, machine: FakeMachine) -> None:
    lease = take(bucket, machine)
    assert read_hold(bucket, JOB, machine=machine.beside()).live
    lease.release()
    assert read_hold(bucket, JOB, machine=machine.beside()).standing is Standing.RELEASED
    assert take(bucket, machine.beside(), attempt=2).attempt == 2


def test_a_lease_whose_process_is_gone_is_free_here_only(
    bucket: Bucket, machine: FakeMachine
) -> None:
    take(bucket, machine)
    here, rebooted = machine.beside(), machine.beside(boot_id="boot-2")
    here.gone = rebooted.gone = {machine.me}
    assert read_hold(bucket, JOB, machine=rebooted).standing is Standing.LIVE
    assert read_hold(bucket, JOB, machine=here).standing is Standing.DEAD
    take(bucket, here, attempt=2)


def test_a_lease_without_renewal_lapses(bucket: Bucket, machine: FakeMachine) -> None:
    lease = take(bucket, machine)
    machine.pass_time(50)
    assert lease.renew()
    machine.pass_time(60)
    other = machine.beside(host="node-2", boot_id="boot-2")
    assert read_hold(bucket, JOB, machine=other).standing is Standing.LIVE
    other.pass_time(1)
    assert read_hold(bucket, JOB, machine=other).standing is Standing.LAPSED
    take(bucket, other, attempt=2)


def test_a_lease_is_not_written_over_that_of_who_took_the_job_meanwhile(
    bucket: Bucket, machine: FakeMachine
) -> None:
    sleeper, other = take(bucket, machine), machine.beside()
    other.gone = {machine.me}
    really_over = bucket.write_over

    def write_late(name: str, data: bytes, etag: str) -> bool:
        bucket.write_over = really_over  # type: ignore[method-assign]
        take(bucket, other, attempt=2)  # between its look and its request
        return really_over(name, data, etag)

    bucket.write_over = write_late  # type: ignore[method-assign]
    sleeper.renew()
    assert sleeper.lost
    assert decode_lease(bucket.read(lease_name(JOB))).attempt == 2


def test_of_many_at_once_exactly_one_gets_the_job(bucket: Bucket, machine: FakeMachine) -> None:
    start = threading.Barrier(RUNNERS)
    really_new = bucket.write_new

    def write_together(name: str, data: bytes) -> bool:
        start.wait(60)  # everybody has seen that the job is free
        return really_new(name, data)

    bucket.write_new = write_together  # type: ignore[method-assign]

    def run(number: int) -> Lease | str:
        try:
            return take(bucket, machine.beside(pid=number))
        except JobConflictError as error:
            return error.message

    with ThreadPoolExecutor(RUNNERS) as pool:
        ended = list(pool.map(run, range(RUNNERS)))
    winners = [each for each in ended if isinstance(each, Lease)]
    assert len(winners) == 1
    assert sum("another process" in each for each in ended if isinstance(each, str)) == RUNNERS - 1
    winners[0].check()


def test_a_claim_holds_the_job_before_its_lease_is_written(
    bucket: Bucket, machine: FakeMachine
) -> None:
    take(bucket, machine).release()
    second = machine.beside()
    lease = bucket.read(lease_name(JOB))
    take(bucket, second, attempt=2)
    bucket.write(lease_name(JOB), lease)  # as it was, in between
    hold = read_hold(bucket, JOB, machine=machine)
    assert hold.live
    assert hold.record
    assert hold.record.holder == second.me


def test_a_coordinator_that_sees_a_newer_attempt_has_lost(
    bucket: Bucket, machine: FakeMachine
) -> None:
    lost: list[str] = []
    lease = take(bucket, machine)
    lease._on_lost = lost.append
    machine.pass_time(100)  # as if suspended
    other = machine.beside(host="node-2", boot_id="boot-2")
    take(bucket, other, attempt=2)
    assert lease.renew()
    assert lease.renew()
    assert lost == ["attempt 2 has begun"]
    with raises(JobConflictError, "attempt 2"):
        lease.check()
    lease.release()
    hold = read_hold(bucket, JOB, machine=other)
    assert hold.live
    assert hold.record
    assert hold.record.attempt == 2


def test_a_suspended_holder_goes_on_if_no_other_took_the_job(
    bucket: Bucket, machine: FakeMachine
) -> None:
    lease = take(bucket, machine)
    machine.pass_time(10_000)
    lease.check()
    assert read_hold(bucket, JOB, machine=machine.beside()).live


def test_a_check_fails_once_the_job_was_removed(bucket: Bucket, machine: FakeMachine) -> None:
    lease = take(bucket, machine)
    discard_run(bucket, JOB)
    with raises(JobConflictError, JOB, "attempt 1"):
        lease.check()


def test_a_store_out_of_reach_loses_the_job_in_time(
    bucket: Bucket, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    lease = take(bucket, machine)
    lease._on_lost = lost.append

    def fail(*args: object) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(bucket, "write_over", fail)
    machine.pass_time(39)
    assert not lease.renew()
    with pytest.raises(StorageError, match="no answer"):
        lease.check()
    assert not lease.lost
    machine.pass_time(2)
    assert not lease.renew()
    assert lost == ["its lease could not be renewed for 41 s: no answer"]


def test_a_renewal_is_four_requests(bucket: Bucket, machine: FakeMachine) -> None:
    lease = take(bucket, machine)
    asked: list[str] = []
    for door in ("stat", "stat_many", "read", "list", "open", "write_new", "write_over", "delete"):
        _count(bucket, door, asked)
    lease.renew()
    assert sorted(asked) == ["stat", "stat", "stat_many", "write_over"]


def _count(bucket: Bucket, door: str, asked: list[str]) -> None:
    really: Callable[..., object] = getattr(bucket, door)

    def counted(*args: object, **named: object) -> object:
        known = [*asked, door]
        try:
            return really(*args, **named)
        finally:
            asked[:] = known  # what a bucket asks of itself is its own

    setattr(bucket, door, counted)


def test_the_thread_renews_and_sees_a_stop_and_ends(bucket: Bucket, machine: FakeMachine) -> None:
    stopped = threading.Event()
    lease = Lease.take(bucket, JOB, attempt=1, renew_s=0.001, machine=machine)
    before = threading.active_count()
    lease.keep(on_lost=lambda why: None, on_stop=stopped.set)
    assert threading.active_count() == before + 1
    bucket.write(stop_name(JOB), b"")
    assert stopped.wait(60)
    lease.close()
    assert threading.active_count() == before
    assert not decode_lease(bucket.read(lease_name(JOB))).released


# -- stopping ------------------------------------------------------------------------------------


def test_a_stop_waits_until_the_holder_has_released(bucket: Bucket, machine: FakeMachine) -> None:
    asked: list[bool] = []
    lease = take(bucket, machine)
    lease._on_stop = lambda: asked.append(True)
    other = machine.beside()
    pauses = iter(range(5))

    def run_a_little() -> None:
        lease.renew()
        if next(pauses) == 3:
            lease.release()

    other.on_pause = run_a_little
    hold = stop_job(bucket, JOB, machine=other)
    assert hold.standing is Standing.RELEASED
    assert asked == [True]


def test_a_stop_of_a_holder_that_is_gone_ends_with_the_lapse(
    bucket: Bucket, machine: FakeMachine
) -> None:
    take(bucket, machine)
    other = machine.beside(host="node-2", boot_id="boot-2")
    assert stop_job(bucket, JOB, machine=other).standing is Standing.LAPSED


def test_a_stop_does_not_wait_for_ever(bucket: Bucket, machine: FakeMachine) -> None:
    lease = take(bucket, machine)
    other = machine.beside()

    def renew() -> None:
        machine.time_s = other.time_s
        lease.renew()

    other.on_pause = renew
    assert stop_job(bucket, JOB, wait_s=100, machine=other).live


def test_nothing_to_stop_is_an_error_and_an_old_stop_is_void(
    bucket: Bucket, machine: FakeMachine
) -> None:
    with raises(JobConflictError, JOB):
        stop_job(bucket, JOB, machine=machine)
    bucket.write(stop_name(JOB), b"")
    asked: list[bool] = []
    lease = take(bucket, machine)
    lease._on_stop = lambda: asked.append(True)
    lease.renew()
    assert asked == []


# -- job directories -----------------------------------------------------------------------------


def test_job_directories_tell_what_is_in_them(bucket: Bucket, machine: FakeMachine) -> None:
    journal = Journal(bucket, JOB, 1)
    journal.append(created(0))
    journal.flush()
    bucket.write(".dsort/done/manifest.json", b"{}")
    bucket.write(".dsort/failed/report.json", b"{}")
    bucket.write("train.tar", b"")
    take(bucket, machine)
    job, done, failed = list_job_directories(bucket)
    assert job.parts == {"attempts", "journal", "lease.json"}
    assert (job.has_journal, job.has_manifest, job.has_report) == (True, False, False)
    assert (done.job_id, done.has_manifest) == ("done", True)
    assert (failed.job_id, failed.has_report) == ("failed", True)


def test_discarding_a_run_leaves_manifest_and_report(bucket: Bucket, machine: FakeMachine) -> None:
    events: list[JournalEvent] = [created(0)]
    journal = Journal(bucket, JOB, 1)
    for event in events:
        journal.append(event)
    journal.flush()
    lease = take(bucket, machine)
    lease.keep(on_lost=print, on_stop=print)
    bucket.stage(f".dsort/{JOB}/staged/0", name="a.tar").close()
    for name in ("manifest.json", "report.json", "stop", "scratch/index-0.col"):
        bucket.write(f".dsort/{JOB}/{name}", b"{}")
    discard_run(bucket, JOB, lease=lease)
    left = [found.name.rpartition("/")[2] for found in bucket.list(".dsort/")]
    assert left == ["manifest.json", "report.json"]
