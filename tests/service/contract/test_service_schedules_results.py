"""What a schedule's job does after its commit: the pointer to the newest result moves forward only,
and of older results their own outputs are removed, by their manifests, and nothing else; while
that is done no job begins to write them again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import update

from dsort.errors import JobConflictError, StorageError
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow, jobs
from dsort.service.jobs.queue import Limits, claim_next
from dsort.service.jobs.store import JobStore
from dsort.service.schedules.retention import (
    Opener,
    Result,
    ScheduleResults,
    apply_retention,
    move_pointer,
)
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from tests.support.databases import on_both_databases
from tests.support.hooked_bucket import HookedBucket
from tests.support.internals import ViewJob, index_name, manifest_name
from tests.support.job_rows import job_row
from tests.support.memory_bucket import MemoryBucket
from tests.support.object_stores import new_s3_bucket
from tests.support.refusals import raises
from tests.support.schedule_results import KnownResults, make_result, publish
from tests.support.seaweedfs import S3Server

T = TypeVar("T")

OUT = b"shard"


@pytest.fixture
def known() -> KnownResults:
    return KnownResults()


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    return lambda ref: open_bucket(ref, root=tmp_path)


def night(
    known: KnownResults, opener: Opener, number: int, *names: str, inputs: tuple[str, ...] = ()
) -> Result:
    """A run that has committed shards of these names."""
    names = names or (f"night-{number}/s-0", f"night-{number}/s-1")
    result = make_result(number, retain=2, names=names)
    outputs, index = dict.fromkeys(names, OUT), index_name(result.job_id)
    publish(result, opener(result.output_bck), outputs, inputs=inputs, index=index)
    known.rows.append(result)
    return result


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def retain(result: Result, known: KnownResults, opener: Opener) -> list[str]:
    return apply_retention(result, known, opener, now_s=5.0)


# --- retention -----------------------------------------------------------------------------------


def test_inputs_stay_by_whatever_way_they_are_reached(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    # The kept run reads what the old one wrote: through a link to its bucket, as a bucket in its
    # bucket, and by a link to one file.
    out = tmp_path / "out"
    first = night(known, opener, 0, "d/a", "d/b", "d/c", "e/d")
    (tmp_path / "by-link").symlink_to(out)
    (tmp_path / "in" / "c.tar").symlink_to(out / "d" / "c")
    for number, (bucket, name) in enumerate(
        [("by-link", "d/a"), ("out/d", "b"), ("in", "c.tar")], start=1
    ):
        reading = make_result(number, retain=3, names=[f"n{number}"], input_bck=bucket)
        publish(reading, opener(reading.output_bck), {f"n{number}": OUT}, inputs=[name])
        known.rows.append(reading)
    assert retain(known.rows[-1], known, opener) == [
        "d/a, d/b, d/c of the result of job job-0 stay: they are inputs of a result that is kept"
    ]
    assert files(out) >= {"d/a", "d/b", "d/c", manifest_name(first.job_id)}
    assert "e/d" not in files(out)
    assert known.removed == set()
    # Once nothing that is kept reads them, they go.
    for number in (4, 5, 6):
        last = make_result(number, retain=3, names=[f"n{number}"])
        publish(last, opener(last.output_bck), {f"n{number}": OUT})
        known.rows.append(last)
    assert retain(last, known, opener) == []
    assert not files(out) & {"d/a", "d/b", "d/c", manifest_name(first.job_id)}


def a_view(known: KnownResults, opener: Opener, number: int, *inputs: str, **spec: str) -> Result:
    """The view of another schedule, which the database knows."""
    view = make_result(number, output="view", **{"input_bck": "out", **spec})
    publish(view, opener(view.output_bck), {f"v-{number}.tar.view": OUT}, inputs=inputs)
    known.made_views.append(ViewJob(view.job_id, view.spec))
    return view


@pytest.mark.parametrize("place", ["views", "out"])
def test_a_result_stays_whole_while_a_view_points_into_it(
    known: KnownResults, opener: Opener, tmp_path: Path, place: str
) -> None:
    (tmp_path / "views").mkdir()
    for number in (0, 1):
        night(known, opener, number)
    view = a_view(known, opener, 9, "night-0/s-1", "night-3/s-0", output_bck=place)
    if place == "out":
        known.made_views.clear()  # a job of a command: its manifest is beside the result
    for number in (2, 3):
        last = night(known, opener, number)
    (warning,) = retain(last, known, opener)
    assert {"1", "job-0", "job-9"} <= {*re.split(r"[ ,()]+", warning)}
    assert known.removed == {"job-1"}
    out = tmp_path / "out"
    assert files(out) >= {"night-0/s-0", "night-0/s-1", manifest_name("job-0")}
    # Without the view, the next run removes it.
    (tmp_path / place / manifest_name(view.job_id)).unlink()
    assert retain(night(known, opener, 4), known, opener) == []
    assert known.removed == {"job-0", "job-1", "job-2"}
    assert not files(out) & {"night-0/s-0", "night-0/s-1", manifest_name("job-0")}


def test_a_view_elsewhere_whose_manifest_is_damaged_holds_all_results(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    (tmp_path / "views").mkdir()
    view = a_view(known, opener, 9, "s", output_bck="views")
    (tmp_path / "views" / manifest_name(view.job_id)).write_text("{")
    for number in range(3):
        last = night(known, opener, number)
    assert len(retain(last, known, opener)) == 1
    assert known.removed == set()


def test_a_damaged_manifest_of_a_stranger_and_a_view_of_other_objects_hold_nothing(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    a_view(known, opener, 8, "night-0/s-7", input_bck="in", output_bck="out")
    strange = tmp_path / "out" / manifest_name("job-9")
    strange.parent.mkdir(parents=True)
    strange.write_text('{"output": "view"')
    for number in range(3):
        last = night(known, opener, number)
    assert retain(last, known, opener) == []
    assert known.removed == {"job-0"}


def test_a_changed_output_stays_and_is_reported(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    night(known, opener, 0, "same-size", "old-time", "as-it-was")
    out = tmp_path / "out"
    (out / "same-size").write_bytes(b"other")
    late_s = (out / manifest_name("job-0")).stat().st_mtime + 10
    os.utime(out / "same-size", (late_s, late_s))
    (out / "old-time").write_bytes(b"longer than it was")
    os.utime(out / "old-time", (1000, 1000))
    for number in (1, 2):
        last = night(known, opener, number)
    assert retain(last, known, opener) == [
        "old-time, same-size of the result of job job-0 stay: they differ from its manifest"
    ]
    assert files(out) >= {"same-size", "old-time"}
    assert not files(out) & {"as-it-was", manifest_name("job-0")}


class Denying(HookedBucket):
    """Refuses to remove one object."""

    denied = ""

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        if operation == "delete" and name == self.denied:
            raise StorageError(f"removing {name} is denied")
        return action()


def test_a_failed_removal_is_reported_and_repeated(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    denying = Denying(opener(BucketRef("", "out")))
    denying.denied = "night-0/s-1"

    def denied(ref: BucketRef) -> Bucket:
        return denying if ref.path == "out" else opener(ref)

    last = [night(known, opener, number) for number in range(3)][-1]
    assert retain(last, known, denied) == [
        "the result of job job-0 is not removed whole: removing night-0/s-1 is denied"
    ]
    assert {"night-0/s-1", manifest_name("job-0")} <= files(tmp_path / "out")
    assert "night-0/s-0" not in files(tmp_path / "out")
    denying.denied = ""
    assert retain(last, known, denied) == []
    assert known.removed == {"job-0"}


def test_while_another_job_of_the_schedule_is_not_over_nothing_is_removed(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    last = [night(known, opener, number) for number in range(3)][-1]
    known.running = [last, make_result(9)]
    before = files(tmp_path)
    assert retain(last, known, opener) == []
    assert files(tmp_path) == before
    known.running = [last]  # it is the job itself that asks
    assert retain(last, known, opener) == []
    assert known.removed == {"job-0"}


def test_a_result_whose_manifest_is_gone_is_none_and_a_damaged_one_is_left(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    for number in range(4):
        last = night(known, opener, number)
    out = tmp_path / "out"
    (out / manifest_name("job-2")).unlink()
    assert retain(last, known, opener) == []
    assert known.removed == {"job-2", "job-0"}  # 1 and 3 are the newest two
    (out / manifest_name("job-1")).write_text("{}")
    last = night(known, opener, 4)
    assert "no manifest of a dsort job" in retain(last, known, opener)[0]
    assert files(out) >= {"night-1/s-0", "night-3/s-0", "night-4/s-0"}


def test_in_an_object_store_the_times_of_the_store_tell_what_is_old(
    known: KnownResults, s3: S3Server
) -> None:
    bucket = new_s3_bucket(s3)
    for number in range(3):
        names = [f"n{number}/s", f"n{number}/t"]
        buckets = {"input_bck": "s3://data", "output_bck": "s3://data"}
        result = make_result(number, retain=2, names=names, **buckets)
        inputs = ["raw/a"] if number else ["n1/s"]
        publish(result, bucket, dict.fromkeys(names, OUT), inputs=inputs)
        known.rows.append(result)
    bucket.write("raw/a", b"input")
    assert apply_retention(result, known, lambda ref: bucket, now_s=5.0) == []
    assert [each.name for each in bucket.list()] == ["n1/s", "n1/t", "n2/s", "n2/t", "raw/a"]
    assert [each.name for each in bucket.list(".dsort/")] == [
        manifest_name("job-1"),
        manifest_name("job-2"),
    ]


# --- the pointer ---------------------------------------------------------------------------------


def pointer(directory: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((directory / "latest.json").read_bytes())
    return content


def test_the_pointer_says_which_result_and_where(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    result = night(known, opener, 30)
    assert move_pointer(result, known, opener) == ""
    content = pointer(tmp_path / "out")
    assert str(content.pop("committed_at")).endswith("Z")
    assert content == {
        "schedule": "nightly",
        "job_id": "job-30",
        "output_uri": (tmp_path / "out").as_uri(),
        "manifest": ".dsort/job-30/manifest.json",
        "prefix": "19700102T060000Z",
        "output_format": "19700102T060000Z/s-%d",
        "run_id": "19700102T060000Z",
        "date": "1970-01-01",
        "epoch": 30,
    }


def test_the_pointer_moves_after_the_commit_and_only_forward(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    assert move_pointer(make_result(0), known, opener) == ""
    assert not (tmp_path / "out" / "latest.json").exists()  # not committed
    first, second = night(known, opener, 1), night(known, opener, 2)
    assert move_pointer(second, known, opener) == ""
    assert move_pointer(first, known, opener) == ""  # it was due before, and ended later
    assert pointer(tmp_path / "out")["job_id"] == "job-2"
    known.rows.clear()  # though nothing else knows of the newer one
    assert move_pointer(first, known, opener) == ""
    assert pointer(tmp_path / "out")["job_id"] == "job-2"


def test_of_two_that_move_the_pointer_at_once_the_newer_one_stays(
    known: KnownResults, opener: Opener
) -> None:
    out = MemoryBucket("memory://out")
    older, newer = make_result(1), make_result(2)

    class Between(HookedBucket):
        """The newer run commits, and moves the pointer, right before the older one does."""

        def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
            if (operation, name) == ("write_new", "latest.json") and not known.rows:
                publish(newer, out, {"b": OUT})
                known.rows.append(newer)
                assert move_pointer(newer, known, lambda ref: out) == ""
            return action()

    publish(older, out, {"a": OUT})
    racing = Between(out)
    assert move_pointer(older, known, lambda ref: racing) == ""
    assert json.loads(out.read("latest.json"))["job_id"] == "job-2"


@pytest.mark.parametrize("data", [b"not JSON", b"[1]", b'{"schedule": "x"}'])
def test_a_file_that_is_no_pointer_is_not_replaced(
    known: KnownResults, opener: Opener, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "out" / "latest.json").write_bytes(data)
    said = move_pointer(night(known, opener, 1), known, opener)
    assert said.startswith("latest.json in file://")
    assert said.endswith("is no pointer of a schedule, and is left as it is")
    assert (tmp_path / "out" / "latest.json").read_bytes() == data


@pytest.mark.parametrize(
    "name", [".dsort/other/manifest.json", "../in/up", "team-b/s-000", "0.tar"]
)
def test_an_edited_manifest_costs_nothing_that_no_job_makes(
    known: KnownResults, opener: Opener, tmp_path: Path, name: str
) -> None:
    for number in range(3):
        last = night(known, opener, number)
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(OUT)
    os.utime(out / name, (1000, 1000))
    manifest = out / manifest_name("job-0")
    manifest.write_text(manifest.read_text().replace("night-0/s-0", name))
    assert len(retain(last, known, opener)) == 1
    assert (out / name).exists()


def test_an_index_that_is_no_index_stays(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    for number in range(3):
        last = night(known, opener, number)
    out = tmp_path / "out"
    (out / "theirs.tar").write_bytes(OUT)
    os.utime(out / "theirs.tar", (1000, 1000))
    manifest = out / manifest_name("job-0")
    manifest.write_text(manifest.read_text().replace(index_name("job-0"), "theirs.tar"))
    assert retain(last, known, opener) == [
        "theirs.tar of the result of job job-0 stay: its manifest lists them, but it has not "
        "made them there"
    ]
    assert (out / "theirs.tar").exists()


def test_nothing_is_removed_behind_a_link(
    known: KnownResults, opener: Opener, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    for number in range(3):
        last = night(known, opener, number, f"night-{number}/s-0")
    (tmp_path / "out" / "night-0").rename(theirs)
    (tmp_path / "out" / "night-0").symlink_to(theirs)
    assert len(retain(last, known, opener)) == 1
    assert files(theirs) == {"s-0"}


ROOM = Limits(running_jobs_max=9, running_plans_max=9)


def submit(database: Database, job_id: str, template: str) -> None:
    JobStore(database).submit(
        job_row(
            job_id,
            spec={"input_bck": "in", "output_bck": "out"},
            claims=[["file:///out", template]],
            due_at=float(len(job_id)),
            after_commit={"schedule_id": "a"},
        )
    )


def begun(database: Database) -> JobRow | None:
    return claim_next(database, host="h", replica="r", limits=ROOM, now_s=1.0)


@on_both_databases
def test_names_of_older_results_are_held_while_they_are_removed(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "old", "old-%d.tar")
    with database.writing() as connection:
        connection.execute(update(jobs).values(state="finished"))
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    newest, old = results.one("newest"), results.one("old")
    assert newest is not None
    assert old is not None
    with results.hold(newest, [old]):
        with database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == "old").values(state="queued"))
        assert begun(database) is None
    assert results.one("newest") == newest  # it claims its own names, as before
    again = begun(database)
    assert again is not None
    assert again.job_id == "old"


def test_a_result_that_is_written_again_is_not_held(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "old", "old-%d.tar")
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    assert begun(database) is not None
    newest, old = results.one("newest"), results.one("old")
    assert newest is not None
    assert old is not None
    with pytest.raises(JobConflictError, match="old"), results.hold(newest, [old]):
        pytest.fail("they were held")


def test_an_attempt_that_is_over_removes_nothing_any_more(database: Database) -> None:
    results = ScheduleResults(database)
    submit(database, "newest", "new-%d.tar")
    assert begun(database) is not None
    newest = results.one("newest")
    assert newest is not None
    with database.writing() as connection:
        connection.execute(update(jobs).values(attempt=2))
    with raises(JobConflictError, "job newest"), results.hold(newest, []):
        pytest.fail("they were held")
