"""Jobs whose outputs have buckets of their own, to tokens that may write to some of them: over both
databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.service.security.tokens import SUBMITTER
from tests.support.service_here import SPEC, ServiceHere, service_here

JOBS = "/v1/jobs"


@pytest.fixture
def here(tmp_path: Path, database_url: str) -> Iterator[ServiceHere]:
    with service_here(tmp_path, database_url=database_url, no_auth=False) as opened:
        for name in ("train", "val", "other"):
            (tmp_path / name).mkdir(exist_ok=True)
        yield opened


def spec_of(main: str, own: str, **fields: Any) -> dict[str, Any]:
    outputs = [
        {"name": "a", "fraction": 0.5},
        {"name": "b", "fraction": 0.5, "output_bck": own},
    ]
    return {**SPEC, "output_bck": main, "outputs": outputs, **fields}


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_has_to_be_for_every_output(here: ServiceHere) -> None:
    root = here.service.config.run.root
    tokens = here.service.tokens
    some = headers(tokens.add("ann", SUBMITTER, ["*"], [f"{root}/train", f"{root}/v*"]))
    every = headers(tokens.add("bob", SUBMITTER, ["*"], ["*"]))
    mine = here.client.post(JOBS, json=spec_of("train", "val"), headers=some)
    assert mine.status_code == 201, mine.text
    assert mine.json()["output_uri"] == f"file://{root}/train"
    refused = here.client.post(JOBS, json=spec_of("train", "other"), headers=some)
    assert refused.status_code == 403
    assert f"output file://{root}/other" in refused.json()["detail"]
    theirs = here.client.post(JOBS, json=spec_of("train", "other"), headers=every).json()["job_id"]
    listed = here.client.get(JOBS, headers=some).json()["jobs"]
    assert [job["job_id"] for job in listed] == [mine.json()["job_id"]]
    assert here.client.get(f"{JOBS}/{theirs}", headers=some).status_code == 404


def test_a_bucket_outside_is_none_of_an_output(here: ServiceHere) -> None:
    token = headers(here.service.tokens.add("bob", SUBMITTER, ["*"], ["*"]))
    for own in ("file:///etc", "s3://elsewhere"):
        refused = here.client.post(JOBS, json=spec_of("train", own), headers=token)
        assert refused.status_code == 403, refused.text
        assert "outputs[1].output_bck" in refused.json()["detail"]


def test_schedules_write_to_one_bucket(here: ServiceHere) -> None:
    token = headers(here.service.tokens.add("bob", SUBMITTER, ["*"], ["*"]))
    body = {"name": "n", "every": "1d", "spec": spec_of("train", "val")}
    refused = here.client.post("/v1/schedules", json=body, headers=token)
    assert refused.status_code == 400, refused.text
    assert "cannot be combined with schedules" in refused.text
