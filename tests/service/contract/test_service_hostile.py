"""Attacks on the service through a bucket or its port: it reads no file elsewhere, survives invalid
data, and is not kept busy."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from dsort.errors import JobConflictError
from dsort.options import RunOptions
from dsort.service.api import results as events
from dsort.service.database.tables import jobs
from dsort.service.hosting.job_main import JobAttempt
from dsort.service.security import limits
from dsort.stop_flag import StopFlag
from tests.support.internals import manifest_name, report_name
from tests.support.manifests import manifest_bytes
from tests.support.refusals import raises
from tests.support.service_here import SPEC, ServiceHere, service_here
from tests.support.service_process import await_that


@pytest.fixture
def job(here: ServiceHere) -> str:
    """A job that has finished, whose manifest and report are whatever a test writes."""
    return ended(here, here.submit()["job_id"])


def ended(here: ServiceHere, job_id: str, state: str = "finished") -> str:
    with here.service.database.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(state=state))
    return job_id


def place(here: ServiceHere, name: str) -> Path:
    """Where an object of the output bucket is."""
    path = here.service.config.run.root / "shuffled" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def ask(here: ServiceHere, job_id: str, what: str) -> tuple[int, str]:
    answer = here.client.get(f"/v1/jobs/{job_id}/{what}")
    return answer.status_code, answer.text


# --- documents in buckets ------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["manifest", "report", "page"])
@pytest.mark.parametrize("elsewhere", ["of-others/secret", "data/other-team/secret"])
@pytest.mark.parametrize("linked", ["the file", "its directory"])
@pytest.mark.sample(keep=6)
def test_a_link_in_a_bucket_shows_nothing_from_elsewhere(
    here: ServiceHere, tmp_path: Path, job: str, what: str, elsewhere: str, linked: str
) -> None:
    name = report_name(job) if what == "report" else manifest_name(job)
    secret = tmp_path / elsewhere / Path(name).name
    secret.parent.mkdir(parents=True)
    secret.write_text('{"manifest": "top secret"}')
    document = place(here, name)
    if linked == "the file":
        document.symlink_to(secret)
    else:
        document.parent.rmdir()
        document.parent.symlink_to(secret.parent)
    status, text = ask(here, job, what)
    assert status == 502, text
    assert "leads out" in text
    assert "top secret" not in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"manifest": 1',
        b"[]",
        b'{"inputs": [{"bytes": 1e999, "records": 1}], "outputs": [], "totals": {"records": 0, '
        b'"file_bytes": 0}, "phase_seconds": {"create": NaN}, "reactions": []}',
        b'{"inputs": [], "outputs": [], "totals": {"records": 0, "file_bytes": 0}, '
        b'"phase_seconds": {}, "reactions": [], "mixing": {"counts": [[99999999999999999999]]}}',
    ],
)
def test_an_invalid_manifest_is_reported_as_one(
    here: ServiceHere, job: str, content: bytes
) -> None:
    place(here, manifest_name(job)).write_bytes(content)
    status, text = ask(here, job, "page")
    assert status == 502, text
    assert "manifest" in text


@pytest.mark.parametrize("what", ["manifest", "page"])
def test_a_document_without_end_is_not_read(here: ServiceHere, job: str, what: str) -> None:
    with place(here, manifest_name(job)).open("wb") as file:
        file.truncate(1 << 40)
    status, text = ask(here, job, what)
    assert status == 502, text
    assert "too large" in text


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "http://\u2100/".encode()])
def test_an_invalid_origin_is_another_one(here: ServiceHere, origin: Any) -> None:
    answer = here.client.get("/healthz", headers={"Origin": origin})
    assert answer.status_code == 403, answer.text


def test_an_invalid_number_of_an_event_is_ignored(here: ServiceHere, job: str) -> None:
    answer = here.client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "9" * 5000})
    assert answer.status_code == 200
    assert "event: end" in answer.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", ["/v1/jobs/x/stop", "/v1/tokens"])
def test_strangers_cannot_have_much_kept_for_them(tmp_path: Path, path: str) -> None:
    # Of these routes the body is read before the token is checked.
    with service_here(tmp_path, no_auth=False) as here:
        for body in (b'"' + b"x" * 200_000, iter([b'"', b"x" * 200_000])):
            headers = {"Content-Type": "application/json"}
            answer = here.client.post(path, content=body, headers=headers)
            assert answer.status_code == 413, answer.text
        assert here.client.post("/v1/jobs", content=b"x" * 200_000).status_code == 401


# --- tokens that were taken away -----------------------------------------------------------------


def token(here: ServiceHere, name: str, role: str, **buckets: list[str]) -> dict[str, str]:
    root = here.service.config.run.root
    mine = {"input_buckets": [f"{root}/images"], "output_buckets": [f"{root}/shuffled"], **buckets}
    text = here.service.tokens.add(name, role, mine["input_buckets"], mine["output_buckets"])
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[ServiceHere]:
    """A service that asks for tokens."""
    with service_here(tmp_path, no_auth=False) as found:
        yield found


def test_the_schedule_of_one_who_may_only_look_by_now_makes_no_jobs(asking: ServiceHere) -> None:
    ann = token(asking, "ann", "submitter")
    definition = {"name": "nightly", "every": "1d", "paused": True, "spec": SPEC}
    assert asking.client.post("/v1/schedules", json=definition, headers=ann).status_code == 201
    asking.service.tokens.remove("ann")
    token(asking, "ann", "viewer")
    root = token(asking, "root", "admin", input_buckets=["*"], output_buckets=["*"])
    answer = asking.client.post("/v1/schedules/nightly/run-now", headers=root)
    assert answer.status_code == 403, answer.text
    assert "viewer" in answer.json()["detail"]


def test_a_job_goes_on_only_while_its_key_map_is_for_the_token(asking: ServiceHere) -> None:
    spec = {key: SPEC[key] for key in SPEC if key != "output_format"} | {"ekm_file": "keys/a.json"}
    root = asking.service.config.run.root
    seen = [f"{root}/images", f"{root}/keys"]
    ann = token(asking, "ann", "submitter", input_buckets=seen)
    answer = asking.client.post("/v1/jobs", json=spec, headers=ann)
    assert answer.status_code == 201, answer.text
    job_id = ended(asking, answer.json()["job_id"], "stopped")
    asking.service.tokens.remove("ann")
    ann = token(asking, "ann", "submitter")
    for what in ("resume", "retry"):
        answer = asking.client.post(f"/v1/jobs/{job_id}/{what}", headers=ann)
        assert answer.status_code == 403, answer.text
        assert "keys/a.json" in answer.json()["detail"]


def test_a_stream_ends_with_its_token(asking: ServiceHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_S", 0.05)
    ann = token(asking, "ann", "submitter")
    job_id = asking.client.post("/v1/jobs", json=SPEC, headers=ann).json()["job_id"]
    removed = threading.Timer(0.3, asking.service.tokens.remove, ["ann"])
    removed.start()
    answer = asking.client.get(f"/v1/jobs/{job_id}/events", headers=ann)
    removed.join()
    assert "event: state" in answer.text
    assert "event: end" not in answer.text


def test_the_streams_of_a_client_are_limited(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ended(here, here.submit()["job_id"])
    monkeypatch.setattr(limits, "STREAMS_MAX", 1)
    for _ in range(2):  # one after the other
        assert here.client.get(f"/v1/jobs/{job_id}/events").status_code == 200
    with here.service.limits.stream("anyone"):
        answer = here.client.get(f"/v1/jobs/{job_id}/events")
        assert answer.status_code == 429, answer.text
        assert answer.headers["Retry-After"]
    with here.service.limits.stream("another"):
        assert here.client.get(f"/v1/jobs/{job_id}/events").status_code == 200


# --- what is on the machine ----------------------------------------------------------------------


def test_the_embedded_database_is_for_its_user_alone(here: ServiceHere, tmp_path: Path) -> None:
    found = list(tmp_path.glob("service.db*"))
    assert found
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)


def test_a_manifest_of_another_spec_is_no_result(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    row = here.service.store.get(job_id)
    assert row is not None
    other = here.submit({**SPEC, "output_format": "mine-%04d"})
    spec = here.service.store.get(other["job_id"])
    assert spec is not None
    content = manifest_bytes(job_id=job_id, spec=spec.spec, inputs=[], outputs=[])
    place(here, manifest_name(job_id)).write_bytes(content)
    options = RunOptions(root=here.service.config.run.root)
    with StopFlag() as stop:
        doing = JobAttempt.of(replace(row, attempt=2), options, lambda event: None, stop)
        with raises(JobConflictError, f"job {job_id}"):
            doing.run()


def test_made_up_tokens_from_one_address_lock_no_holder_out(asking: ServiceHere) -> None:
    holder = token(asking, "ann", "viewer")
    made_up = [f"dsort_{number:012x}_{number:048x}" for number in range(100)]
    right_id = holder["Authorization"].removeprefix("Bearer ")[:-48]
    made_up += [f"{right_id}{number:048x}" for number in range(100)]
    stop, guesses = threading.Event(), itertools.count()

    def guess() -> set[int]:
        found = set()
        while not stop.is_set():
            headers = {"Authorization": f"Bearer {made_up[next(guesses) % len(made_up)]}"}
            found.add(asking.client.get("/v1/whoami", headers=headers).status_code)
        return found

    with ThreadPoolExecutor(2) as pool:
        guessing = [pool.submit(guess) for _ in range(2)]
        try:
            await_that(lambda: next(guesses) > len(made_up))
            answers = [asking.client.get("/v1/whoami", headers=holder) for _ in range(50)]
        finally:
            stop.set()
        assert {status for each in guessing for status in each.result()} == {401}
    assert {each.status_code for each in answers} == {200}


def test_an_unknown_token_and_a_wrong_secret_get_the_same_answer(asking: ServiceHere) -> None:
    text = token(asking, "ann", "viewer")["Authorization"]
    answers = [
        asking.client.get("/v1/whoami", headers={"Authorization": each})
        for each in (f"{text[:-48]}{'0' * 48}", f"Bearer dsort_{'0' * 12}_{'0' * 48}")
    ]
    assert [each.status_code for each in answers] == [401, 401]
    assert answers[0].text == answers[1].text
