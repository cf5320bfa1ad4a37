"""The law of schedules: each due time comes out once, whichever replica sees it; what was missed is
made up for as the schedule says; jobs of one schedule overlap as it says."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from dsort.errors import ConflictError, ForbiddenError, NotFoundError, SpecError
from dsort.service.api.schedules import schedule_view
from dsort.service.database.engine import Database, open_database
from dsort.service.schedules import fire as firing
from dsort.service.schedules.fire import ScheduleKeeper
from dsort.service.security.tokens import ANYONE, SUBMITTER, Identity
from tests.support.commands import ROOT
from tests.support.databases import on_both_databases
from tests.support.fake_clock import FakeClock
from tests.support.refusals import raises
from tests.support.schedules import Nights, at, definition, spec

WAIT_S = 120


def test_each_due_time_makes_one_job_with_its_own_names_seed_and_epoch(nights: Nights) -> None:
    nights.add(
        spec=spec(output_format="{{date}}/e{{epoch}}-%d"),
        timezone="Europe/Berlin",
        priority=7,
        labels=["nightly"],
    )
    for moment in ("2026-11-20 00:59", "2026-11-20 01:00", "2026-11-20 01:01"):
        nights.at(moment)
    nights.end_jobs()
    nights.at("2026-11-21 01:00")
    assert nights.outcomes() == [("11-20 01:00", "submitted"), ("11-21 01:00", "submitted")]
    assert [(s["output_format"], s["algorithm"]["seed"]) for s in nights.job_specs()] == [
        ("2026-11-20/e0-%d", "20261120T010000Z"),
        ("2026-11-21/e1-%d", "20261121T010000Z"),
    ]
    job_ids = [run.job_id for run in nights.run_rows()]
    job = nights.jobs.get(str(job_ids[1]))
    assert job is not None
    assert (job.priority, job.labels, job.owner) == (7, ("nightly",), "anyone")
    assert (job.schedule_name, job.due_at) == ("nightly", at("2026-11-21 01:00"))
    assert job.after_commit is not None
    assert job.after_commit["pointer"] == {"bucket": "out", "name": "latest.json"}


@on_both_databases
def test_however_many_replicas_look_at_once_a_due_time_fires_once(
    database_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    with open_database(database_url) as first, open_database(database_url) as second:
        replicas = [Nights(each, tmp_path, clock) for each in (first, second, first, second)]
        replicas[0].add(every="1h", overlap="replace")
        replicas[0].add(name="other", every="1h")
        together = threading.Barrier(len(replicas))

        def look(replica: Nights) -> None:
            together.wait(WAIT_S)
            for _ in range(3):
                replica.keeper.turn()

        hours = ("01:00", "02:00", "03:00")
        for hour in hours:
            clock.seconds = at(f"2026-11-20 {hour}")
            with ThreadPoolExecutor(len(replicas)) as pool:
                for each in [pool.submit(look, replica) for replica in replicas]:
                    each.result(WAIT_S)
        due = [f"11-20 {hour}" for hour in hours]
        assert replicas[0].outcomes() == list(zip(due, ["submitted"] * 3, strict=True))
        assert replicas[1].outcomes("other") == list(
            zip(due, ["submitted", "skipped", "skipped"], strict=True)
        )
        assert len(replicas[0].job_specs()) == 4


KILLED = """
import os, signal, sys
from pathlib import Path
from dsort.service.database.engine import open_database
from dsort.service.schedules import fire as firing
from tests.support.fake_clock import FakeClock
from tests.support.schedules import Nights, at

real = firing.insert_job

def die(*args, **more):
    real(*args, **more)
    os.kill(os.getpid(), signal.SIGKILL)

firing.insert_job = die
with open_database(sys.argv[1]) as database:
    Nights(database, Path(sys.argv[2]), FakeClock(at("2026-11-20 02:00"))).keeper.turn()
"""


@on_both_databases
def test_a_service_killed_while_it_fires_fires_once_when_it_is_back(
    nights: Nights, database_url: str, tmp_path: Path
) -> None:
    nights.add()
    command = [sys.executable, "-c", KILLED, database_url, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, timeout=WAIT_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (nights.outcomes(), nights.job_specs()) == ([], [])
    for moment in ("2026-11-20 02:05", "2026-11-20 02:06"):
        nights.at(moment)
    assert nights.outcomes() == [("11-20 02:00", "submitted")]
    assert len(nights.job_specs()) == 1


@pytest.mark.parametrize(("catch_up", "made"), [("none", []), ("last", ["11-22 02:00"])])
def test_what_was_missed_is_made_up_for_as_catch_up_says(
    nights: Nights, catch_up: str, made: list[str]
) -> None:
    nights.add(catch_up=catch_up, overlap="replace")
    for _ in range(3):
        nights.at("2026-11-22 09:00")
        nights.end_jobs()
    outcomes = nights.outcomes()
    assert [due for due, outcome in outcomes if outcome == "submitted"] == made
    epochs = [s["algorithm"]["seed"] for s in nights.job_specs()]
    assert epochs == [f"2026{due[:2]}{due[3:5]}T020000Z" for due in made]
    left = [run.reason for run in nights.run_rows() if run.outcome == "skipped"]
    assert len(left) == 1
    if catch_up == "none":
        assert left[0].startswith("3 due times were missed, from 20261120T020000Z on")
    nights.end_jobs()
    nights.at("2026-11-23 02:00")  # from here on all is as ever
    assert nights.outcomes()[-1] == ("11-23 02:00", "submitted")


@pytest.mark.parametrize(
    ("catch_up", "made"), [("none", ["11-24 02:00"]), ("last", ["11-23 02:00", "11-24 02:00"])]
)
def test_a_paused_schedule_is_not_due_and_resuming_makes_up_as_catch_up_says(
    nights: Nights, catch_up: str, made: list[str]
) -> None:
    nights.add(catch_up=catch_up, paused=True)
    nights.at("2026-11-22 02:00")
    nights.at("2026-11-23 02:00")
    assert nights.outcomes() == []
    nights.store.resume("nightly")
    nights.at("2026-11-23 02:00:30")
    nights.end_jobs()
    nights.at("2026-11-24 02:00")
    assert [due for due, outcome in nights.outcomes() if outcome == "submitted"] == made


@pytest.mark.parametrize(
    ("algorithm", "seeds"),
    [
        ({"kind": "shuffle"}, ["20261120T020000Z", "20261121T020000Z"]),
        ("shuffle", ["20261120T020000Z", "20261121T020000Z"]),
        ({"kind": "shuffle", "seed": "{{date}}-{{epoch}}"}, ["2026-11-20-0", "2026-11-21-1"]),
        ({"kind": "shuffle", "seed": 7}, ["7", "7"]),
        ({"kind": "alphanumeric"}, [None, None]),
    ],
)
def test_the_next_seed_is_shown_and_is_that_of_the_next_job(
    nights: Nights, algorithm: object, seeds: list[str | None]
) -> None:
    row = nights.add(spec=spec(algorithm=algorithm))

    def shown() -> str | None:
        view = schedule_view(nights.store.list()[0], None, now_s=nights.clock.seconds)
        seed = view["next_seed"]
        return None if seed is None else str(seed)

    found = [shown()]
    nights.at("2026-11-20 02:00")
    nights.end_jobs()
    found.append(shown())
    nights.at("2026-11-21 02:00")
    assert found == seeds
    made = [each["algorithm"].get("seed") for each in nights.job_specs()]
    assert [None if seed is None else str(seed) for seed in made] == seeds
    nights.store.pause(row.name)
    assert shown() is None


def test_skip_leaves_out_what_is_due_while_an_earlier_job_is_not_over(nights: Nights) -> None:
    nights.add(overlap="skip")
    nights.at("2026-11-20 02:00")
    nights.start_jobs()
    nights.at("2026-11-21 02:00")
    nights.end_jobs()
    nights.at("2026-11-22 02:00")
    assert [outcome for _, outcome in nights.outcomes()] == ["submitted", "skipped", "submitted"]
    first, second, _ = nights.run_rows()
    assert second.reason == f"job {first.job_id} has not ended: overlap is skip"
    assert [s["output_format"] for s in nights.job_specs()][1].startswith("20261122T")
    assert nights.store.list()[0].run_count == 2  # what makes no job is no epoch


def test_replace_stops_the_earlier_job_and_the_newest_goes_next(nights: Nights) -> None:
    nights.add(overlap="replace")
    nights.at("2026-11-20 02:00")
    nights.start_jobs()
    nights.at("2026-11-21 02:00")
    running = nights.jobs.get(str(nights.run_rows()[0].job_id))
    assert running is not None
    assert running.stopping
    assert running.stop_reason == "schedule nightly is due again: overlap is replace"
    nights.at("2026-11-22 02:00")
    nights.end_jobs("stopped")
    nights.at("2026-11-22 02:01")
    assert [outcome for _, outcome in nights.outcomes()] == ["submitted", "skipped", "submitted"]
    assert [s["algorithm"]["seed"] for s in nights.job_specs()] == [
        "20261120T020000Z",
        "20261122T020000Z",
    ]


@pytest.mark.parametrize("overlap", ["skip", "replace"])
def test_a_refused_run_stops_no_running_job(
    database: Database, tmp_path: Path, clock: FakeClock, overlap: str
) -> None:
    ann = Identity("ann", SUBMITTER, output_buckets=(f"{tmp_path.as_uri()}/out",))
    owners = {"ann": ann}
    nights = Nights(database, tmp_path, clock, identity_of=owners.get)
    row = nights.store.add(definition(overlap=overlap), ann)
    nights.at("2026-11-20 02:00")
    nights.start_jobs()
    del owners["ann"]
    nights.at("2026-11-21 02:00")
    with pytest.raises(ConflictError if overlap == "skip" else ForbiddenError):
        nights.keeper.run_now(row)
    assert [outcome for _, outcome in nights.outcomes()] == ["submitted", "refused"]
    running = nights.jobs.get(str(nights.run_rows()[0].job_id))
    assert running is not None
    assert (running.state, running.stopping) == ("running", False)


def test_a_schedule_for_buckets_of_others_is_not_made(nights: Nights, tmp_path: Path) -> None:
    ann = Identity("ann", SUBMITTER, output_buckets=(f"{tmp_path.as_uri()}/out/*",))
    with raises(ForbiddenError, "ann", f"{tmp_path.as_uri()}/in"):
        nights.store.add(definition(spec=spec(output_bck="in")), ann)
    with raises(ForbiddenError, "ann", f"{tmp_path.as_uri()}/out"):
        nights.store.add(definition(spec=spec(output_bck="out/{{date}}")), ann)  # out/latest.json
    made = nights.store.add(definition(spec=spec(output_bck="out/ann/{{date}}")), ann)
    assert made.output_uri == (tmp_path / "out" / "ann").as_uri()


def test_run_now_makes_a_job_beside_the_due_ones(nights: Nights) -> None:
    row = nights.add(overlap="replace", paused=True)
    nights.clock.seconds = at("2026-11-20 02:00") + 0.5  # a due time: not this run's
    first = nights.keeper.run_now(row)
    second = nights.keeper.run_now(row)
    assert (first.outcome, second.outcome) == ("submitted", "waiting")
    assert [first.due_at, second.due_at] == [at("2026-11-20 02:00:01"), at("2026-11-20 02:00:02")]
    nights.store.resume("nightly")
    nights.at("2026-11-20 02:00:30")
    assert [(run.by_hand, run.outcome) for run in nights.run_rows()] == [
        (False, "submitted"),  # in place of the one that waits
        (True, "submitted"),
        (True, "skipped"),
    ]
    seeds = [s["algorithm"]["seed"] for s in nights.job_specs()]
    assert seeds == ["20261120T020001Z", "20261120T020000Z"]


def test_run_now_is_refused_while_a_job_is_not_over_and_overlap_is_skip(nights: Nights) -> None:
    row = nights.add()
    nights.keeper.run_now(row)
    with raises(ConflictError, "schedule nightly", "overlap", "skip"):
        nights.keeper.run_now(row)
    assert len(nights.run_rows()) == 1
    nights.store.remove("nightly")
    with pytest.raises(NotFoundError):
        nights.keeper.run_now(row)


def test_another_definition_keeps_epochs_and_only_other_times_begin_anew(nights: Nights) -> None:
    row = nights.add(every="6h", spec=spec(output_format="e{{epoch}}-%d"))
    nights.at("2026-11-20 06:00")
    nights.end_jobs()
    nights.clock.seconds = at("2026-11-20 12:00")  # due, and not looked at yet
    same = definition(every="6h", spec=spec(output_format="f{{epoch}}-%d"))
    nights.store.change("nightly", same, ANYONE)
    nights.keeper.turn()
    nights.end_jobs()
    assert [s["output_format"] for s in nights.job_specs()] == ["e0-%d", "f1-%d"]
    nights.clock.seconds = at("2026-11-21 02:30")
    nights.store.change("nightly", definition(), ANYONE)
    nights.keeper.turn()
    assert len(nights.job_specs()) == 2
    changed = nights.store.get("nightly")
    assert changed is not None
    assert (changed.schedule_id, changed.run_count) == (row.schedule_id, 2)
    assert changed.next_due_at == at("2026-11-22 02:00")
    with raises(SpecError, '"nightly"', paths=["name"]):
        nights.store.change("nightly", definition(name="other"), ANYONE)


def test_a_name_is_taken_once_and_free_again_after_removal(nights: Nights) -> None:
    nights.add()
    with raises(ConflictError, "nightly"):
        nights.add()
    nights.at("2026-11-20 02:00")
    nights.store.remove("nightly")
    assert nights.store.get("nightly") is None
    assert len(nights.job_specs()) == 1  # its jobs stay
    nights.add()
    assert nights.outcomes() == []
    with pytest.raises(NotFoundError):
        nights.store.pause("other")


def test_a_replica_whose_clock_is_behind_brings_no_due_time_back(nights: Nights) -> None:
    nights.add()
    nights.at("2026-11-20 02:00")
    nights.end_jobs()
    nights.clock.seconds = at("2026-11-20 01:59:58")  # of another replica
    nights.store.change("nightly", definition(cron="0 2,14 * * *"), ANYONE)
    for moment in ("2026-11-20 02:00:01", "2026-11-20 14:00"):
        nights.at(moment)
    assert nights.outcomes() == [("11-20 02:00", "submitted"), ("11-20 14:00", "submitted")]


def test_the_keepers_thread_sees_changes_at_once_and_ends_when_asked(nights: Nights) -> None:
    seen = threading.Event()
    row = nights.add()
    with ScheduleKeeper(nights.store, on_submitted=seen.set, look_s=WAIT_S) as keeper:
        keeper.start()
        nights.clock.seconds = at("2026-11-20 02:00")
        nights.store.resume(row.name)  # any change tells it to look
        assert seen.wait(WAIT_S)
        assert keeper.alive
    assert not keeper.alive
    assert nights.outcomes() == [("11-20 02:00", "submitted")]


@on_both_databases
def test_a_replica_that_is_late_does_not_stop_what_a_waiting_run_has_become(
    nights: Nights, database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    nights.add(overlap="replace")
    nights.at("2026-11-20 02:00")
    nights.start_jobs()
    nights.at("2026-11-21 02:00")
    nights.end_jobs("stopped")
    row = nights.store.get("nightly")
    assert row is not None
    other = Nights(database, tmp_path, clock)
    queries = count()

    def between(*query: object) -> None:
        """The other replica makes the run's job between our two queries."""
        if next(queries) == 2:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(other.keeper.turn).result(WAIT_S)

    event.listen(database.engine, "before_cursor_execute", between)
    firing.ScheduleKeeper(nights.store).start_waiting(row.schedule_id)
    assert next(queries) > 3
    assert nights.outcomes()[-1] == ("11-21 02:00", "submitted")
    job = nights.jobs.get(str(nights.run_rows()[-1].job_id))
    assert job is not None
    assert job.state == "queued"
