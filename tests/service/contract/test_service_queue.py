"""The law of the queue, the same on SQLite and PostgreSQL: who comes first, who has to wait, and
that only the attempt which counts is heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, update
from sqlalchemy.exc import IntegrityError

from dsort.errors import JobConflictError, TooManyRequestsError
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow, jobs
from dsort.service.jobs import queue
from dsort.service.jobs.queue import (
    Ending,
    Limits,
    ProgressUpdate,
    claim_next,
    claim_outputs,
    finish,
    hand_over,
    note_process,
    record,
    take_over,
    thin_progress,
)
from dsort.service.jobs.store import JobStore
from tests.support.databases import on_both_databases

WAIT_S = 120
ROOM = Limits(running_jobs_max=100, running_plans_max=100)
DONE = Ending("finished", 0, result={"records": 3})


@pytest.fixture
def store(database: Database) -> JobStore:
    return JobStore(database, clock=lambda: 1000.0)


def submit(
    store: JobStore, job_id: str, *, before: Callable[[Connection], None] | None = None, **more: Any
) -> None:
    """A job that writes ``<job id>-0``, ``-1``, ... into a bucket of its owner."""
    values: dict[str, Any] = {
        "kind": "run",
        "owner": "ann",
        "spec": {},
        "input_uri": "file:///in",
        "output_uri": "file:///out",
        "claims": [["file:///out", f"{job_id}-%d.tar"]],
        **more,
    }
    row, new = store.submit(JobRow(job_id=job_id, **values), before=before)
    assert new
    assert row.job_id == job_id


def claim(database: Database, replica: str = "one", limits: Limits = ROOM) -> JobRow | None:
    return claim_next(database, host="h/b/1", replica=replica, limits=limits, now_s=2000.0)


def claimed(database: Database, replica: str = "one", limits: Limits = ROOM) -> list[str]:
    """The next jobs, until none may run."""
    found = []
    while (row := claim(database, replica, limits)) is not None:
        found.append(row.job_id)
    return found


def row_of(store: JobStore, job_id: str = "a") -> JobRow:
    row = store.get(job_id)
    assert row is not None
    return row


def begun(database: Database, store: JobStore, **more: Any) -> JobRow:
    """A job, ``a``, that runs its first attempt."""
    submit(store, "a", **more)
    row = claim(database)
    assert row is not None
    return row


def again(database: Database, row: JobRow, **more: Any) -> JobRow | None:
    values = {"host": "g/b/1", "replica": "two", "limits": ROOM, "now_s": 3000.0, "reason": "gone"}
    return take_over(database, row.job_id, row.attempt, **{**values, **more})


def events(store: JobStore, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    return [(each.kind, dict(each.data)) for each in store.events_after(0, job_id=job_id)]


@on_both_databases
def test_owners_take_turns_at_equal_priority(database: Database, store: JobStore) -> None:
    for number in range(4):
        submit(store, f"ann{number}")
    for number in range(2):
        submit(store, f"ben{number}", owner="ben")
    submit(store, "cem0", owner="cem")
    submit(store, "ann9", priority=1)
    one = Limits(1, 1)
    found = []
    while (row := claim(database, limits=one)) is not None:
        found.append(row.job_id)
        assert finish(database, row.job_id, 1, DONE, now_s=1.0)
    assert found == ["ann9", "ben0", "cem0", "ann0", "ben1", "ann1", "ann2", "ann3"]


def test_a_job_that_is_taken_up_again_begins_to_run_anew(
    database: Database, store: JobStore
) -> None:
    row = begun(database, store)
    assert (row.started_at, row.begun_at) == (2000.0, 2000.0)
    taken = again(database, row)
    assert taken is not None
    assert taken.begun_at == 2000.0  # a new process is no new time
    assert finish(database, "a", 2, Ending("stopped", 143), now_s=2500.0)
    store.requeue("a")
    row = claim_next(database, host="h/b/1", replica="one", limits=ROOM, now_s=9000.0)
    assert row is not None
    assert (row.started_at, row.begun_at) == (2000.0, 9000.0)


@on_both_databases
def test_a_replica_runs_no_more_jobs_and_no_more_plans_than_it_may(
    database: Database, store: JobStore
) -> None:
    for number in range(4):
        submit(store, f"run{number}")
        submit(store, f"plan{number}", kind="plan", claims=[])
    limits = Limits(running_jobs_max=1, running_plans_max=2)
    assert claimed(database, "one", limits) == ["run0", "plan0", "plan1"]
    assert claimed(database, "two", limits) == ["run1", "plan2", "plan3"]
    assert finish(database, "run0", 1, DONE, now_s=1.0)
    assert claimed(database, "two", limits) == []
    assert claimed(database, "one", limits) == ["run2"]


def test_a_job_waits_while_a_running_job_claims_one_of_its_names(
    database: Database, store: JobStore
) -> None:
    submit(store, "a", claims=[["file:///out", "x-%02d.tar"]])
    submit(store, "b", claims=[["file:///out", "y.tar"], ["file:///out", "x-{03..04}.tar"]])
    submit(store, "c", claims=[["file:///other", "x-%02d.tar"]])
    submit(store, "d", claims=[["file:///out", "x-%02d.tar"]], kind="plan")
    submit(store, "e", claims=[["file:///out", "not a {template"]])
    assert claimed(database) == ["a", "c", "d", "e"]
    assert finish(database, "a", 1, DONE, now_s=1.0)
    assert claimed(database) == ["b"]


@on_both_databases
def test_names_that_a_key_map_gives_are_claimed_when_they_are_known(
    database: Database, store: JobStore
) -> None:
    submit(store, "a", claims=None)
    submit(store, "b", claims=None)
    submit(store, "c")
    assert claimed(database) == ["a", "b", "c"]
    assert claim_outputs(database, "a", 1, [("file:///out", "x-%d.tar")])
    with pytest.raises(JobConflictError, match="job a of ann"):
        claim_outputs(database, "b", 1, [("file:///out", "y"), ("file:///out", "x-7.tar")])
    assert claim_outputs(database, "b", 1, [("file:///out", "y")])
    assert claim_outputs(database, "a", 1, [("file:///out", "x-%d.tar")])  # its own are no others'
    assert not claim_outputs(database, "a", 2, [("file:///out", "z")])
    submit(store, "d", claims=[["file:///out", "x-1.tar"]])
    assert claimed(database) == []


@on_both_databases
def test_replicas_that_claim_at_once_get_each_job_once(database: Database, store: JobStore) -> None:
    for number in range(12):
        submit(store, f"job{number}", owner=f"owner{number % 3}")
    together = threading.Barrier(3)
    limits = Limits(100, 100, running_per_owner_max=2)

    def work(replica: str) -> list[str]:
        together.wait(WAIT_S)
        return claimed(database, replica, limits)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(work, replica) for replica in ("one", "two", "three")]
        found = [job_id for each in waiting for job_id in each.result(WAIT_S)]
    assert sorted(found) == sorted(f"job{number}" for number in range(6))


@on_both_databases
def test_of_an_owners_jobs_that_come_at_once_only_so_many_are_queued(database: Database) -> None:
    store = JobStore(database, max_queued_per_owner=3)
    together = threading.Barrier(12)

    def wait(connection: Connection) -> None:
        together.wait(WAIT_S)

    def work(number: int) -> bool:
        try:
            submit(store, f"job{number}", before=wait)
        except TooManyRequestsError:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(work, range(12))) == 3
    assert store.count_by_state() == {"queued": 3}


@pytest.mark.parametrize(
    "ending",
    [
        DONE,
        Ending("failed", 3, error={"detail": "ä"}, reason="bad shard"),
        Ending("stopped", 143, reason="a request"),
    ],
)
def test_a_job_ends_once_and_with_the_last_that_it_had_to_tell(
    ending: Ending, database: Database, store: JobStore
) -> None:
    begun(database, store)
    update = ProgressUpdate(
        [(2.0, "warning", {"kind": "k", "text": "t"})], phase="commit", warning_count=1
    )
    assert finish(database, "a", 1, ending, now_s=2005.0, latest=update)
    assert not finish(database, "a", 1, DONE, now_s=2006.0)
    row = row_of(store)
    assert (row.state, row.exit_code, row.ended_at) == (ending.state, ending.exit_code, 2005.0)
    assert (row.result, row.error) == (ending.result, ending.error)
    assert (row.phase, row.warning_count) == ("commit", 1)
    *_, before, last = events(store, "a")
    assert before == ("warning", {"kind": "k", "text": "t"})
    assert last[1]["state"] == ending.state
    assert last[1].get("error") == ending.error
    assert last[1].get("reason", "") == ending.reason


@on_both_databases
def test_reports_of_an_attempt_that_is_over_are_ignored(
    database: Database, store: JobStore
) -> None:
    row = begun(database, store)
    assert again(database, row) is not None
    before = store.get("a")
    assert not note_process(database, "a", 1, pid=1, started=1.0)
    assert not record(database, "a", 1, ProgressUpdate(), now_s=9.0).ours
    update = ProgressUpdate([(1.0, "log", {})], phase="create")
    assert not record(database, "a", 1, update, now_s=9.0).ours
    assert not finish(database, "a", 1, DONE, now_s=9.0)
    assert again(database, row) is None
    assert store.get("a") == before
    assert events(store, "a")[-1][0] == "state"


def test_a_job_taken_over_begins_its_next_attempt(database: Database, store: JobStore) -> None:
    row = begun(database, store)
    assert note_process(database, "a", 1, pid=77, started=5.0)
    taken = again(database, row, log={"text": "its last words", "levels": "-"})
    assert taken == store.get("a")
    assert taken is not None
    assert (taken.state, taken.attempt, taken.deaths) == ("running", 2, 1)
    assert (taken.host, taken.replica, taken.pid) == ("g/b/1", "two", None)
    assert (taken.started_at, taken.heartbeat_at) == (2000.0, 3000.0)
    assert events(store, "a")[-2:] == [
        ("log", {"text": "its last words", "levels": "-"}),
        ("state", {"state": "running", "attempt": 2, "reason": "gone"}),
    ]
    spared = again(database, taken, died=False)
    assert spared is not None
    assert (spared.attempt, spared.deaths) == (3, 1)


@on_both_databases
def test_a_job_that_ends_at_the_moment_of_a_take_over_stays_ended(
    database: Database, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL may commit its end between the two statements of the take-over."""
    row = begun(database, store)

    def room_after_the_end(connection: Connection, *others: Any) -> bool:
        ended = update(jobs).where(jobs.c.job_id == "a").values(state="finished", exit_code=0)
        return bool(connection.execute(ended).rowcount)

    monkeypatch.setattr(queue, "_room", room_after_the_end)
    assert again(database, row) is None
    after = row_of(store)
    assert (after.state, after.attempt, after.deaths) == ("finished", 1, 0)
    assert events(store, "a")[-1] == ("state", {"state": "running", "attempt": 1})


@on_both_databases
def test_of_many_replicas_that_take_a_job_over_at_once_one_succeeds(
    database: Database, store: JobStore
) -> None:
    row = begun(database, store)
    together = threading.Barrier(3)

    def work(replica: str) -> JobRow | None:
        together.wait(WAIT_S)
        return again(database, row, replica=replica)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(work, replica) for replica in ("one", "two", "three")]
        found = [each.result(WAIT_S) for each in waiting]
    assert sum(each is not None for each in found) == 1


def test_a_long_jobs_progress_is_thinned_evenly(database: Database, store: JobStore) -> None:
    begun(database, store)
    update = [(float(at), "progress", {"at": at}) for at in range(100)]
    assert record(
        database, "a", 1, ProgressUpdate([*update, (99.5, "warning", {})]), now_s=1.0
    ).ours
    thin_progress(database, "a", keep=10)
    kept = [data["at"] for kind, data in events(store, "a") if kind == "progress"]
    assert len(kept) == 10
    assert kept[-1] == 99
    assert max(b - a for a, b in pairwise(kept)) <= 11
    assert [kind for kind, _ in events(store, "a") if kind != "progress"].count("warning") == 1
    thin_progress(database, "a", keep=10)
    assert len(events(store, "a")) == 13


def test_a_job_that_can_never_be_stored_is_refused_in_the_end(store: JobStore) -> None:
    tries = []

    def refuse(connection: Connection, new: JobRow) -> None:
        tries.append(new.job_id)
        raise IntegrityError("INSERT", None, Exception("NOT NULL constraint failed"))

    values = {"kind": "run", "owner": "ann", "spec": {}, "input_uri": "", "output_uri": ""}
    with pytest.raises(IntegrityError):
        store.submit(JobRow(job_id="a", claims=[], **values), on_insert=refuse)
    assert len(set(tries)) == len(tries) <= 10


def test_a_job_that_is_put_back_into_the_queue_comes_next_and_outdated_attempts_are_not_heard(
    database: Database, store: JobStore
) -> None:
    submit(store, "a")
    submit(store, "b")
    row = claim(database)
    assert row is not None
    assert hand_over(database, "a", row.attempt, now_s=2.0, reason="no memory", has_begun=False)
    assert events(store, "a")[-1][1] == {"state": "queued", "attempt": 1, "reason": "no memory"}
    assert not note_process(database, "a", 1, pid=1, started=1.0)
    again = claim(database)
    assert again is not None
    assert (again.job_id, again.attempt, again.deaths) == ("a", 2, 0)
    assert not hand_over(database, "a", 1, now_s=2.0, reason="too late", has_begun=False)


def test_a_job_that_was_put_back_with_work_in_its_bucket_is_not_stopped_before_that_is_removed(
    database: Database, store: JobStore
) -> None:
    begun(database, store)
    record(database, "a", 1, ProgressUpdate(phase="create"), now_s=2.0)
    assert hand_over(database, "a", 1, now_s=3.0, reason="SIGTERM")
    for _ in range(2):  # clients send it again
        row = store.ask_stop("a", "not wanted")
        assert (row.state, row.stopping, row.stop_reason) == ("queued", True, "not wanted")
    again = claim(database)
    assert again is not None
    assert (again.attempt, again.stop_asked_at is not None) == (2, True)
