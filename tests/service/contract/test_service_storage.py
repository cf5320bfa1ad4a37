"""What is stored and may go, as admins see it: leftovers of dead jobs, results of schedules."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsort.service.schedules.retention import ScheduleResults
from tests.support.schedule_results import make_result
from tests.support.service_here import SPEC, service_here

DEAD = "20260101-000000-dead00"


def test_what_dead_jobs_left_is_listed_and_stays(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:
        out = here.service.config.run.root / "out"
        left = out / ".dsort" / DEAD / "part"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"x" * 100)
        long_ago_s = time.time() - 200_000
        for path in (left, left.parent):
            os.utime(path, (long_ago_s, long_ago_s))
        answer = here.client.get("/v1/garbage/out")
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["garbage"]
        assert (found["kind"], found["job_id"], found["size_bytes"]) == ("job", DEAD, 100)
        assert found["is_old"] is True
        assert left.exists()
        older = here.client.get("/v1/garbage/out", params={"older_than_s": 1e6})
        assert older.json()["garbage"][0]["is_old"] is False
        assert here.client.get("/v1/garbage/none").status_code == 404
        assert here.service.audit.list(limit=9)[-1].action == "storage.look"


def test_results_that_go_with_the_next_run_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [make_result(number, retain=2) for number in (3, 2, 1)]
    monkeypatch.setattr(ScheduleResults, "finished", lambda *_: kept)
    with service_here(tmp_path) as here:
        spec = {**SPEC, "output_format": "{{run_id}}/s-%d"}
        schedule = {"name": "nightly", "cron": "0 2 * * *", "retain": 2, "spec": spec}
        assert here.client.post("/v1/schedules", json=schedule).status_code == 201
        shown = here.client.get("/v1/storage").json()
    (found,) = shown["schedules"]
    assert (found["schedule"], found["retain"]) == ("nightly", 2)
    assert [each["goes_next"] for each in found["results"]] == [False, True, True]
    assert {each["what"] for each in shown["disks"]} >= {"data", "scratch of jobs"}
    assert all(0 < each["free_bytes"] <= each["total_bytes"] for each in shown["disks"])


def test_a_log_is_asked_for_from_where_it_ended(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:
        job_id = here.submit()["job_id"]
        first = here.client.get(f"/v1/jobs/{job_id}/log")
        last = first.headers["Dsort-Last-Event"]
        assert first.text.split()[1:] == ["state", "queued"]
        here.service.store.ask_stop(job_id, "enough")
        more = here.client.get(f"/v1/jobs/{job_id}/log", params={"after": last})
        assert more.text.split()[1:3] == ["state", "stopped:"]
        assert int(more.headers["Dsort-Last-Event"]) > int(last)
        again = {"after": more.headers["Dsort-Last-Event"]}
        none = here.client.get(f"/v1/jobs/{job_id}/log", params=again)
        assert (none.text, none.headers["Dsort-Last-Event"]) == ("", again["after"])
