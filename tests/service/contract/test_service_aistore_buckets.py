"""Buckets over HTTP: listed in pages, as JSON and MessagePack, made, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from dsort.service.database.tables import jobs
from dsort.service.objects import places
from dsort.service.objects.places import Listings, PageAsked
from dsort.storage.directory.bucket import LocalBucket
from tests.support.service_here import SPEC, ServiceHere, service_here

NAMES = ["a.tar", "deep/er/b.tar", "deep/er/c.tar", "deep/z.tar", "e.tar"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as opened:
        root = root_of(opened)
        for name in NAMES:
            path = root / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * len(name))
        (root / "images" / ".dsort" / "job").mkdir(parents=True)
        (root / "images" / ".dsort" / "job" / "manifest.json").write_text("{}")
        (root / "empty").mkdir()
        (root / ".hidden").mkdir()
        (root / "file").write_text("no bucket")
        yield opened


def root_of(here: ServiceHere) -> Path:
    return here.service.config.run.root


def ask(here: ServiceHere, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
    answer: httpx.Response = here.client.request(method, f"/v1/buckets{path}", json=body, **more)
    return answer


def listed(here: ServiceHere, bucket: str = "images", **value: Any) -> dict[str, Any]:
    answer = ask(here, "GET", f"/{bucket}", {"action": "list", "value": value})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names_of(page: dict[str, Any]) -> list[str]:
    return [each["name"] for each in page["entries"]]


def test_pages_have_each_name_once_whether_the_listing_is_held_or_not(here: ServiceHere) -> None:
    for size, flags, is_held in product((1, 2, 3), (0, 1 << 11), (True, False)):
        found: list[str] = []
        value: dict[str, Any] = {"pagesize": size, "flags": str(flags)}
        while value.get("continuation_token", "more"):
            page = listed(here, **value)
            assert len(page["entries"]) <= size
            found += names_of(page)
            value |= {"continuation_token": page["continuation_token"], "uuid": page["uuid"]}
            if not is_held:
                here.service.listings = Listings()  # another replica
        names = ["a.tar", "deep/", "e.tar"] if flags else NAMES
        assert found == names, (size, flags, is_held)


def test_held_listings_are_few_and_of_whom_they_are_for(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_text("x")
    now = 0.0
    listings = Listings(clock=lambda: now)
    bucket = LocalBucket(tmp_path)
    first = listings.page(bucket, "b", "ann", PageAsked(size=1))
    (tmp_path / "00").write_text("came later, and is no part of a listing that is held")
    asked = PageAsked(after=first.after, listing=first.listing, size=9)
    eve = listings.page(bucket, "b", "eve", asked)
    assert [each.name for each in eve.entries] == ["00", "1", "2"]
    assert [each.name for each in listings.page(bucket, "b", "ann", asked).entries] == ["1", "2"]
    for _ in range(places.HELD_MAX + 5):
        listings.page(bucket, "b", "ann", PageAsked(size=1))
    assert len(listings._held) == places.HELD_MAX
    now += places.HELD_S_MAX + 1
    listings.page(bucket, "b", "ann", PageAsked(size=1))
    assert len(listings._held) == 1


def test_objects_that_a_running_job_needs_are_removed_by_no_list(here: ServiceHere) -> None:
    job = here.submit({**SPEC, "output_bck": "shuffled"})
    runs = update(jobs).where(jobs.c.job_id == job["job_id"]).values(state="running", attempt=1)
    with here.service.database.writing() as connection:
        connection.execute(runs)
    for name in ("shuffled", "other"):
        assert ask(here, "POST", f"/{name}", {"action": "create-bck"}).status_code == 200
    for path in ("other/a", "other/b", "shuffled/a", "shuffled/b"):
        assert here.client.put(f"/v1/objects/{path}", content=b"x").status_code == 200
    (root_of(here) / "shuffled" / "out-0000.tar").write_bytes(b"x")

    def removed(bucket: str, **value: Any) -> int:
        answer = ask(here, "DELETE", f"/{bucket}", {"action": "delete-listrange", "value": value})
        return answer.status_code

    def left(bucket: str) -> list[str]:
        return [each["name"] for each in ask(here, "GET", f"/{bucket}").json()["entries"]]

    assert removed("images", template="") == 409  # which the job reads
    assert removed("shuffled", template="") == 409  # it may write one of the names
    assert left("shuffled") == ["a", "b", "out-0000.tar"]
    assert removed("shuffled", objnames=["a"]) == removed("other", template="*") == 200
    assert (left("shuffled"), left("other")) == (["b", "out-0000.tar"], [])
    noted = [row.details for row in here.service.audit.list() if row.action == "objects.remove"]
    assert noted == [{"objects": 2}, {"objects": 1}]


def test_a_bucket_in_which_the_service_keeps_its_state_stays(tmp_path: Path) -> None:
    with service_here(tmp_path, state_dir=tmp_path / "data" / "mine" / "state") as here:
        (root_of(here) / "mine").mkdir(exist_ok=True)
        answer = ask(here, "DELETE", "/mine", {"action": "destroy-bck"})
        assert (answer.status_code, "files of its own" in answer.text) == (403, True)
        assert (root_of(here) / "mine").is_dir()


def test_a_bucket_that_is_needed_or_is_none_of_ours_stays(
    here: ServiceHere, tmp_path: Path
) -> None:
    root = root_of(here)
    (root / "shuffled").mkdir()
    (root / "inside").symlink_to(root / "empty")
    (root / "outside").symlink_to(tmp_path)
    here.submit({**SPEC, "output_bck": "shuffled/deeper"})
    there = sorted(tmp_path.rglob("*"))
    for path, status in (
        ("shuffled", 409),
        ("shuffled%2Fdeeper", 409),
        ("inside", 403),
        ("outside", 403),
        ("%2E", 403),
        ("..%2F", 403),
        ("images%2F.dsort", 400),
        ("file%3A%2F%2F%2Ftmp", 403),
        ("s3%3A%2F%2Fdata", 403),
    ):
        answer = ask(here, "DELETE", f"/{path}", {"action": "destroy-bck"})
        assert answer.status_code in (status, 400, 404), (path, answer.text)
    for action in ("evict-remote-bck", "copy-bck", "", "destroy"):
        assert ask(here, "DELETE", "/empty", {"action": action}).status_code == 400
    assert ask(here, "DELETE", "/empty").status_code == 400
    assert sorted(tmp_path.rglob("*")) == there


def test_no_bucket_is_made_where_enemies_say(here: ServiceHere, tmp_path: Path) -> None:
    there = sorted(tmp_path.rglob("*"))
    for status, paths in {
        400: (
            *("a%0ab", "a%1bb", "a%00", "a%3Fb", ".dsort", "a%2F..%2Fb", "a" * 300),
            "a?provider=other",
        ),
        403: ("..%2Fother", "s3%3A%2F%2Fdata"),
        409: ("file", "file%2Fbelow"),
    }.items():
        for path in paths:
            answer = ask(here, "POST", f"/{path}", {"action": "create-bck"})
            assert answer.status_code in (status, 400, 404), (path, answer.text)
            assert "problem+json" in answer.headers["Content-Type"], path
            assert sorted(tmp_path.rglob("*")) == there, path


def test_a_wrong_listing_is_an_error(here: ServiceHere) -> None:
    for status, values in {
        400: (
            *({"prefix": each} for each in ("../", ".dsort/", "deep/.dsort/x", "/etc", "a\0")),
            *({"prefix": each} for each in ("a" * 9000, 7)),
            *({"pagesize": each} for each in (-1, "x", 2**70)),
            {"flags": True},
            [],
        ),
        501: ({"flags": str(1 << 15)}, {"target": "t1"}),
    }.items():
        for value in values:
            answer = ask(here, "GET", "/images", {"action": "list", "value": value})
            assert answer.status_code == status, (value, answer.text)
    missing = ask(here, "GET", "/nowhere?provider=ais")
    assert missing.json()["message"] == 'bucket "ais://nowhere" does not exist'
