"""The routes of schedules: what is made is shown, with when it is due next; every problem is
reported; and only a caller that may change a schedule does. The example schedules run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

import dsort
from dsort import api
from dsort.cli.schedule import _due as words_of
from dsort.cli.schedule import _lines as lines_of
from dsort.client import Schedule
from dsort.options import RunOptions
from dsort.service.database.engine import open_database
from dsort.service.database.tables import schedules
from dsort.service.schedules.create import parse_definition
from dsort.service.schedules.retention import run_after_commit
from dsort.service.security.tokens import ANYONE, SUBMITTER
from dsort.spec.load import parse_spec
from dsort.spec.yaml_text import parse_yaml
from dsort.storage.open import open_bucket
from tests.support.commands import ROOT
from tests.support.datasets import Member, Shard, files_of, read_shard, small_dataset, write_shards
from tests.support.fake_clock import FakeClock
from tests.support.schedules import Nights, at, spec
from tests.support.service_here import SPEC, ServiceHere, service_here

NIGHTLY = {
    "name": "nightly",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "retain": 7,
    "labels": ["nightly"],
    "spec": spec(),
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as service:
        inputs = service.service.config.run.root / "in"
        inputs.mkdir()
        (inputs / "a.tar").write_bytes(bytes(10240))
        yield service


def add(here: ServiceHere, **fields: Any) -> dict[str, Any]:
    answer = here.client.post("/v1/schedules", json={**NIGHTLY, **fields})
    assert answer.status_code == 201, answer.text
    view: dict[str, Any] = answer.json()
    return view


def test_a_schedule_is_shown_as_it_was_made_with_its_next_due_times(here: ServiceHere) -> None:
    view = add(here)
    assert view.items() >= NIGHTLY.items()
    assert (view["owner"], view["paused"], view["run_count"]) == ("anyone", False, 0)
    assert (view["catch_up"], view["overlap"], view["latest"]) == ("last", "skip", True)
    assert view["output_uri"] == (here.service.config.run.root / "out").as_uri()
    assert len(view["next_times"]) == 5
    assert view["next_times"] == sorted(set(view["next_times"]))
    assert {time[11:16] for time in view["next_times"]} <= {"00:00", "01:00"}
    assert (view["last_run"], view["warnings"]) == (None, [])
    assert here.client.get("/v1/schedules/nightly").json() == view
    assert here.client.get("/v1/schedules").json() == {"schedules": [view]}


def test_yaml_is_as_good_as_json_and_warnings_are_reported(here: ServiceHere) -> None:
    given = {**NIGHTLY, "spec": spec(algorithm={"kind": "shuffle", "seed": 42})}
    answer = here.client.post(
        "/v1/schedules", content=yaml.safe_dump(given), headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/schedules/nightly"
    assert "every run has the seed 42" in answer.json()["warnings"][0]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, ""),
        ({"input_format": {"template": "{a,b}.tar"}}, ""),
        ({"input_format": {"prefix": "{{date}}/"}}, ""),  # each run has other inputs
        ({"input_format": {"prefix": "x/"}}, "under the prefix x/: a run fails until there is one"),
        ({"input_format": {"glob": "*.zip"}, "input_extension": ".zip"}, "that matches *.zip"),
        ({"input_format": {"template": "b-{0..9}.tar"}}, "none of 10 names exists"),
        ({"input_bck": "nowhere"}, "a run would fail today: the input bucket nowhere does not"),
    ],
)
def test_a_schedule_without_input_shards_is_warned_of_at_once(
    here: ServiceHere, inputs: dict[str, Any], said: str
) -> None:
    for view in (
        add(here, spec=spec(**inputs)),
        here.client.put("/v1/schedules/nightly", json={**NIGHTLY, "spec": spec(**inputs)}).json(),
    ):
        assert len(view["warnings"]) == bool(said)
        assert said in "".join(view["warnings"])


def test_inputs_are_looked_for_only_once_the_schedule_is_allowed(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(
        "dsort.service.api.schedules.warnings_of_inputs", lambda *given: looked.append(given) or ()
    )
    (tmp_path / "other").mkdir()
    with service_here(tmp_path / "other", no_auth=False) as there:
        token = there.service.tokens.add("ann", SUBMITTER, ["file:///elsewhere"], ["*"])
        headers = {"Authorization": f"Bearer {token}"}
        refused = there.client.post("/v1/schedules", json=NIGHTLY, headers=headers)
    assert (refused.status_code, looked) == (403, [])
    add(here)
    assert len(looked) == 1


def test_next_times_are_those_that_a_schedule_would_have(here: ServiceHere) -> None:
    when = {"cron": "0 2 * * *", "timezone": "Europe/Berlin", "name": "", "spec": "not looked at"}
    answer = here.client.post("/v1/schedules/next-times", json=when)
    assert answer.json()["next_times"] == add(here)["next_times"]
    wrong = here.client.post("/v1/schedules/next-times", json={"cron": "0 25 * * *"})
    assert [each["path"] for each in wrong.json()["problems"]] == ["cron"]
    assert here.client.post("/v1/schedules/next-times", json={}).status_code == 400
    assert here.client.get("/v1/schedules").json()["schedules"][0]["name"] == "nightly"


@pytest.mark.parametrize(("catch_up", "due_now"), [("last", True), ("none", False)])
def test_a_schedule_that_is_resumed_says_whether_it_makes_up_for_a_run(
    here: ServiceHere, catch_up: str, due_now: bool
) -> None:
    assert add(here, catch_up=catch_up, paused=True)["due_now"] is False
    with here.service.database.writing() as connection:
        connection.execute(update(schedules).values(next_due_at=time.time() - 60))
    assert here.client.get("/v1/schedules/nightly").json()["due_now"] is False  # it rests
    resumed = here.client.post("/v1/schedules/nightly/resume").json()
    assert resumed["due_now"] is due_now
    said = words_of(Schedule.of(resumed))  # as the command says it, by the clock of the schedule
    assert said.startswith("it missed a run, which is due now; next due ") is due_now
    assert re.fullmatch(r".*next due 20\d\d-\d\d-\d\d 02:00 CES?T", said)


def test_all_problems_are_reported_at_once_with_their_paths(here: ServiceHere) -> None:
    given = {"name": "x y", "cron": "0 25 * * *", "spec": {"output_format": "{{day}}-%d"}}
    answer = here.client.post("/v1/schedules", json=given)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (400, "urn:dsort:problem:spec")
    paths = {each["path"] for each in problem["problems"]}
    assert paths == {"name", "cron", "spec.output_format"}
    for body in (b"", b"[]", b"{", b"\xff"):
        assert here.client.post("/v1/schedules", content=body).status_code == 400
    assert here.client.get("/v1/schedules").json() == {"schedules": []}


def test_run_now_makes_a_job_and_its_history_is_paged(here: ServiceHere) -> None:
    add(here, paused=True, overlap="replace")
    for _ in range(3):
        answer = here.client.post("/v1/schedules/nightly/run-now")
        assert answer.status_code == 202
    page = here.client.get("/v1/schedules/nightly/runs", params={"limit": 2}).json()
    rest = here.client.get("/v1/schedules/nightly/runs", params={"cursor": page["next_cursor"]})
    runs = [*page["runs"], *rest.json()["runs"]]
    assert [run["outcome"] for run in runs] == ["submitted", "skipped", "submitted"]
    assert rest.json()["next_cursor"] is None
    jobs = here.client.get("/v1/jobs", params={"schedule": "nightly"}).json()["jobs"]
    assert [(job["job_id"], job["state"], job["schedule"], job["labels"]) for job in jobs] == [
        (runs[0]["job_id"], "queued", "nightly", ["nightly"]),
        (runs[2]["job_id"], "stopped", "nightly", ["nightly"]),
    ]
    assert here.client.get("/v1/schedules/nightly").json()["last_run"] == runs[0]
    assert here.client.get("/v1/schedules/nightly/runs?cursor=x").status_code == 400
    here.client.put("/v1/schedules/nightly", json=NIGHTLY)  # overlap: skip
    assert here.client.post("/v1/schedules/nightly/run-now").status_code == 409


SCHEDULES = sorted((ROOT / "specs" / "schedules").iterdir())
KEPT = 2


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.name)
def test_an_example_schedule_makes_a_fresh_order_each_night_and_keeps_the_newest(
    tmp_path: Path, path: Path
) -> None:
    loaded = parse_definition(parse_yaml(path.read_text(encoding="utf-8"), path.name))
    assert loaded.warnings == ()
    made = loaded.definition.model_copy(update={"retain": KEPT})
    samples = {
        f"samples-{shard:03d}.tar": Shard(
            tuple(Member(f"{shard}{number}.txt", b"%d" % number) for number in range(10))
        )
        for shard in range(8)
    }
    write_shards(tmp_path / "samples", samples)
    before = files_of(tmp_path / "samples")
    options = RunOptions(root=tmp_path, workers=1)
    orders = {}
    with open_database(f"sqlite:///{tmp_path}/service.db") as database:
        nights = Nights(database, tmp_path, FakeClock(at("2026-11-20 00:00")))
        nights.store.add(made, ANYONE)
        for day in (20, 21, 22):
            nights.at(f"2026-11-{day} 01:00")  # two in Berlin
            run = nights.run_rows(made.name)[-1]
            job = nights.jobs.get(str(run.job_id))
            assert job is not None
            api.run(parse_spec(dict(job.spec)).spec, options=options, job_id=job.job_id)
            warnings = run_after_commit(
                database, job.job_id, lambda ref: open_bucket(ref, root=tmp_path)
            )
            assert warnings == []
            nights.end_jobs()
            latest = json.loads((tmp_path / "nightly" / "latest.json").read_bytes())
            assert (latest["job_id"], latest["prefix"]) == (job.job_id, f"2026-11-{day}")
            shards = sorted((tmp_path / "nightly" / latest["prefix"]).iterdir())
            orders[day] = [
                member.name for each in shards for member in read_shard(each.read_bytes())
            ]
        assert len({tuple(order) for order in orders.values()}) == 3
        assert all(sorted(order) == sorted(orders[20]) for order in orders.values())
        removed = [run.removed_at is not None for run in nights.run_rows(made.name)]
        assert removed == [True, False, False]
    kept = {each.name for each in (tmp_path / "nightly").iterdir()}
    assert kept == {".dsort", "2026-11-21", "2026-11-22", "latest.json"}
    assert len(orders[20]) == 80
    assert files_of(tmp_path / "samples") == before


def test_the_command_shows_a_schedule_by_the_schedules_clock(here: ServiceHere) -> None:
    view = add(here, start_at="2030-12-01T00:00", end_at="2031-06-01T00:00:00Z")
    lines = lines_of(Schedule.of(view))
    assert ("from", "2030-12-01 00:00 CET") in lines
    assert ("until", "2031-06-01 02:00 CEST") in lines
    assert ("next", "2030-12-01 02:00 CET") in lines


def test_nightly_views_go_with_retention_and_hold_the_shards_into_which_they_point(
    tmp_path: Path,
) -> None:
    write_shards(tmp_path / "in", small_dataset(3))
    options = RunOptions(root=tmp_path, workers=1)
    removed, warned = {}, {}
    with open_database(f"sqlite:///{tmp_path}/service.db") as database:
        nights = Nights(database, tmp_path, FakeClock(at("2026-11-19 03:00")))
        template = "{{date}}/s-%04d"
        shards = spec(output_bck="shards", output_format=template)
        nights.add(name="shards", spec=shards, retain=1)
        view = spec(input_bck="shards", output_bck="views", output_format=template, output="view")
        view["input_format"] = {"prefix": "{{date}}/"}
        nights.add(name="views", spec=view, retain=1)
        for day in (20, 21, 22):
            nights.at(f"2026-11-{day} 02:00")
            for name in ("shards", "views"):
                job = nights.jobs.get(str(nights.run_rows(name)[-1].job_id))
                assert job is not None
                api.run(parse_spec(dict(job.spec)).spec, options=options, job_id=job.job_id)
                warnings = run_after_commit(
                    database, job.job_id, lambda ref: open_bucket(ref, root=tmp_path)
                )
                warned[day, name] = [each.kind for each in warnings]
                latest = json.loads((tmp_path / name / "latest.json").read_bytes())
                assert (latest["job_id"], latest["date"]) == (job.job_id, f"2026-11-{day}")
                removed[day, name] = [run.removed_at is not None for run in nights.run_rows(name)]
                nights.end_jobs()
            assert len(dsort.Dataset("views", options=options)) == 36
    assert warned == {
        (day, name): ["retain"] if name == "shards" and day > 20 else []
        for day in (20, 21, 22)
        for name in ("shards", "views")
    }
    assert removed[22, "shards"] == [True, False, False]
    assert removed[22, "views"] == [True, True, False]
    assert {each.name for each in (tmp_path / "views").iterdir()} == {
        *(".dsort", "2026-11-22", "latest.json")
    }


def test_the_schedule_of_one_who_may_only_look_by_now_makes_no_jobs(asking: ServiceHere) -> None:
    ann = asking.headers("ann", "submitter")
    definition = {"name": "nightly", "every": "1d", "paused": True, "spec": SPEC}
    assert asking.client.post("/v1/schedules", json=definition, headers=ann).status_code == 201
    asking.service.tokens.remove("ann")
    asking.headers("ann", "viewer")
    root = asking.headers("root", "admin", input_buckets=["*"], output_buckets=["*"])
    answer = asking.client.post("/v1/schedules/nightly/run-now", headers=root)
    assert answer.status_code == 403, answer.text
    assert "viewer" in answer.json()["detail"]
