"""Jobs of several inputs, to tokens that may read some of their buckets: over both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.service.security.tokens import SUBMITTER
from tests.support.service_here import SPEC, ServiceHere, service_here


@pytest.fixture
def here(tmp_path: Path, database_url: str) -> Iterator[ServiceHere]:
    with service_here(tmp_path, database_url=database_url, no_auth=False) as opened:
        yield opened


def spec_of(*buckets: str) -> dict[str, Any]:
    inputs = [{"name": f"n{n}", "input_bck": bucket} for n, bucket in enumerate(buckets)]
    return {**{name: each for name, each in SPEC.items() if name != "input_bck"}, "inputs": inputs}


def test_a_token_has_to_be_for_every_input(here: ServiceHere) -> None:
    root = here.service.config.run.root
    for name in ("one", "two", "three"):
        (root / name).mkdir()
    reads = [f"{root}/one", f"{root}/two"]
    tokens = here.service.tokens
    some = tokens.add("ann", SUBMITTER, reads, [f"{root}/shuffled"])
    every = tokens.add("bob", SUBMITTER, ["*"], ["*"])
    jobs = "/v1/jobs"

    def headers(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def seen_by(token: str) -> set[str]:
        answer = here.client.get(jobs, headers=headers(token))
        assert answer.status_code == 200, answer.text
        return {job["job_id"] for job in answer.json()["jobs"]}

    mine = here.client.post(jobs, json=spec_of("one", "two"), headers=headers(some))
    assert mine.status_code == 201, mine.text
    shown = mine.json()["input_uri"]
    assert shown == f"file://{root}/one, file://{root}/two"
    refused = here.client.post(jobs, json=spec_of("one", "three"), headers=headers(some))
    assert refused.status_code == 403
    assert f"input file://{root}/three" in refused.json()["detail"]
    others = [
        here.client.post(jobs, json=spec_of(*buckets), headers=headers(every)).json()["job_id"]
        for buckets in (("one", "three"), ("three", "two"), ("two", "one", "two/deep"))
    ]
    assert seen_by(some) == {mine.json()["job_id"]}
    assert seen_by(every) == {mine.json()["job_id"], *others}
    for job_id in others:
        assert here.client.get(f"{jobs}/{job_id}", headers=headers(some)).status_code == 404
