"""A service without its guest: it lists buckets and inspects shards, and no request sends or writes
a whole object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from dsort.client import DsortClient
from dsort.errors import NotFoundError
from dsort.service.api.app import create_app
from dsort.service.security.tokens import SUBMITTER, VIEWER
from dsort.service.service import Service
from tests.support.service_here import SPEC, ServiceHere, config_for, service_here

NAMES = ["a", "deep/b.tar", "deep/c.tar", "z.tar"]
GUESTS = ("sort", "cluster", "daemon", "download", "objects", "buckets", "transforms", "changed")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with Service(config_for(tmp_path)) as service:
        root = service.config.run.root
        for name in NAMES:
            path = root / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"as it was")
        (root / "images" / ".dsort").mkdir()
        (root / "images" / ".dsort" / "own").touch()
        yield ServiceHere(service, TestClient(create_app(service), base_url="http://localhost"))


def client_of(here: ServiceHere) -> DsortClient:
    def answer(request: httpx.Request) -> httpx.Response:
        found = here.client.request(request.method, str(request.url), content=request.content)
        return httpx.Response(found.status_code, content=found.content)

    return DsortClient("http://localhost", http=httpx.MockTransport(answer))


@pytest.mark.parametrize("verb", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_the_routes_of_the_guest_are_not_there(here: ServiceHere, verb: str) -> None:
    paths = ["", "/images", "/images/a", "/images/a?number=0&transform=x"]
    answers = {
        f"/v1/{first}{rest}": here.client.request(verb, f"/v1/{first}{rest}").status_code
        for first in GUESTS
        for rest in paths
    }
    assert set(answers.values()) == {404}
    assert (here.service.config.run.root / "images" / "a").read_bytes() == b"as it was"
    shown = here.client.get("/openapi.json").json()["paths"]
    assert not [path for path in shown if path.startswith(tuple(f"/v1/{each}" for each in GUESTS))]


def test_a_client_gets_the_option_that_adds_the_routes(here: ServiceHere) -> None:
    with client_of(here) as client:
        for ask in (
            lambda: client.transforms.get("resize"),
            lambda: client.transforms.put("resize", {"steps": []}),
            lambda: list(client.transforms.list()),
            lambda: list(client.data.whole("images", "a")),
        ):
            with pytest.raises(NotFoundError) as caught:
                ask()
            assert "--aistore" in caught.value.hint
        with pytest.raises(NotFoundError) as caught:
            client.get("20260101-000000-000000")
        assert "--aistore" not in caught.value.hint


def test_a_spec_that_names_a_transform_is_refused(here: ServiceHere) -> None:
    answer = here.client.post("/v1/jobs", json={**SPEC, "transform": {"use": "resize"}})
    (problem,) = answer.json()["problems"]
    assert (answer.status_code, problem["path"]) == (400, "transform.use")
    assert "--aistore" in problem["hint"]


def test_who_am_i_says_whether_there_are_named_transforms(
    here: ServiceHere, tmp_path: Path
) -> None:
    assert here.client.get("/v1/whoami").json()["named_transforms"] is False
    (tmp_path / "other").mkdir()
    with service_here(tmp_path / "other") as with_guest:
        assert with_guest.client.get("/v1/whoami").json()["named_transforms"] is True


def test_only_the_service_s_own_ids_are_known(here: ServiceHere) -> None:
    job_id = here.submit()["job_id"]
    assert here.client.get(f"/v1/jobs/{job_id}").status_code == 200
    assert here.client.get(f"/v1/jobs/srt-{job_id}").status_code == 404


def listed(here: ServiceHere, bucket: str = "images", **query: Any) -> list[str]:
    answer = here.client.get(f"/v1/listings/{bucket}", params=query)
    assert answer.status_code == 200, answer.text
    return [each["name"] for each in answer.json()["objects"]]


def test_objects_are_listed_and_nothing_of_dsort_s_own(here: ServiceHere) -> None:
    assert listed(here) == NAMES
    assert listed(here, prefix="deep/") == NAMES[1:3]
    assert listed(here, "images/deep") == ["b.tar", "c.tar"]
    page = here.client.get("/v1/listings/images?limit=1").json()
    assert page["objects"] == [{"name": "a", "size_bytes": 9}]
    assert here.client.get("/v1/listings/none").status_code == 404
    with client_of(here) as client:
        assert [each["name"] for each in client.data.objects("images", prefix="deep")] == NAMES[1:3]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_have_each_name_once(here: ServiceHere, size: int) -> None:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query: dict[str, str | int] = {"limit": size, "cursor": cursor}
        page = here.client.get("/v1/listings/images", params=query).json()
        found += [each["name"] for each in page["objects"]]
        cursor = page["next_cursor"]
    assert found == NAMES


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("images?prefix=../", 400),
        ("images?prefix=.dsort/", 400),
        ("images?prefix=/etc", 400),
        ("images?prefix=" + "a" * 9000, 400),
        ("images?limit=0", 400),
        ("images?limit=100000", 400),
        ("images?cursor=" + "a" * 30_000, 400),
        ("..%2F", 400),
        ("%2Fetc", 400),
        ("file%3A%2F%2F%2Fetc", 403),
        ("s3%3A%2F%2Fsecret", 403),
        ("images%2F.dsort", 400),
        ("a%00", 400),
    ],
)
def test_names_of_enemies_lead_nowhere(here: ServiceHere, path: str, status: int) -> None:
    answer = here.client.get(f"/v1/listings/{path}")
    assert answer.status_code == status, answer.text


def test_buckets_are_listed_as_specs_name_them_and_as_far_as_tokens_go(tmp_path: Path) -> None:
    other = tmp_path / "other"
    allow = (f"file://{other}", "s3://data/train", "s3://team-*")
    with service_here(tmp_path, no_auth=False, allow=allow) as here:
        root = here.service.config.run.root
        for path in (root / "images", root / "secret", other):
            path.mkdir()
        (root / "leads out").symlink_to(tmp_path)
        tokens = here.service.tokens
        eve = tokens.add("eve", VIEWER, [str(root / "images"), "s3://data/*"])
        ada = tokens.add("ada", SUBMITTER)

        def seen(token: str) -> list[str]:
            headers = {"Authorization": f"Bearer {token}"}
            found: list[str] = here.client.get("/v1/listings", headers=headers).json()["buckets"]
            return found

        assert seen(eve) == ["images", "s3://data/train"]
        assert seen(ada) == ["images", "secret", f"file://{other}", "s3://data/train"]
