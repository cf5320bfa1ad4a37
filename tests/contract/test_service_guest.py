"""A service without its guest: it reads buckets, and no request writes an object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dsort.service.api.app import create_app
from tests.support.service_here import ServiceHere, service_here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as found:
        alone = TestClient(create_app(found.service), base_url="http://localhost")
        yield ServiceHere(found.service, alone)


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/v1/sort"),
        ("GET", "/v1/sort"),
        ("GET", "/v1/cluster"),
        ("PUT", "/v1/objects/images/a"),
        ("DELETE", "/v1/objects/images/a"),
        ("POST", "/v1/buckets/images"),
        ("DELETE", "/v1/buckets/images"),
    ],
)
def test_what_the_guest_answers_is_not_there(here: ServiceHere, verb: str, path: str) -> None:
    images = here.service.config.run.root / "images"
    images.mkdir(exist_ok=True)
    (images / "a").write_bytes(b"as it was")
    assert here.client.request(verb, path).status_code in (404, 405)
    assert (images / "a").read_bytes() == b"as it was"
    shown = here.client.get("/openapi.json").json()["paths"]
    assert "/v1/sort" not in shown
    assert set(shown["/v1/objects/{bucket}/{name}"]) == {"get", "head"}
    assert set(shown["/v1/buckets/{bucket}"]) == {"get", "head"}


def test_buckets_and_objects_are_read(here: ServiceHere) -> None:
    images = here.service.config.run.root / "images"
    images.mkdir(exist_ok=True)
    (images / "a").write_bytes(b"content")
    assert here.client.get("/v1/objects/images/a").content == b"content"
    (entry,) = here.client.get("/v1/buckets/images").json()["entries"]
    assert (entry["name"], entry["size"]) == ("a", "7")


def test_only_the_service_s_own_ids_are_known(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    assert here.client.get(f"/v1/jobs/{job_id}").status_code == 200
    assert here.client.get(f"/v1/jobs/srt-{job_id}").status_code == 404
