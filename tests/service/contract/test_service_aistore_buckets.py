"""Buckets over HTTP: listed in pages, as JSON and MessagePack, made, and removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
from sqlalchemy import update

from dsort.service.database.tables import jobs
from dsort.service.objects import places
from dsort.service.objects.places import Listings, PageAsked
from dsort.service.security.tokens import ADMIN, SUBMITTER, VIEWER
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


def test_all_objects_are_listed_and_nothing_of_dsorts_own(here: ServiceHere) -> None:
    page = listed(here)
    assert names_of(page) == NAMES
    assert page["continuation_token"] == ""
    assert page["entries"][0] == {"name": "a.tar", "size": "5", "flags": 64}
    assert ask(here, "GET", "/images").json()["entries"] == page["entries"]
    assert names_of(listed(here, prefix="deep/e")) == NAMES[1:3]
    assert names_of(listed(here, prefix="none")) == []
    assert names_of(listed(here, "images/deep")) == ["er/b.tar", "er/c.tar", "z.tar"]
    assert names_of(listed(here, "empty")) == []
    assert ask(here, "GET", "/images?prefix=e").json()["entries"][0]["name"] == "e.tar"
    assert "size" not in listed(here, props="name")["entries"][0]
    assert "size" not in listed(here, flags=str(1 << 4))["entries"][0]
    everything = names_of(listed(here, "%2E"))
    assert "images/deep/z.tar" in everything
    assert [each for each in everything if ".dsort" in each] == []


@pytest.mark.parametrize("flags", [0, 1 << 11])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("is_held", [True, False])
def test_pages_have_each_name_once_whether_the_listing_is_held_or_not(
    here: ServiceHere, size: int, flags: int, is_held: bool
) -> None:
    found: list[str] = []
    value: dict[str, Any] = {"pagesize": size, "flags": str(flags)}
    while True:
        page = listed(here, **value)
        assert len(page["entries"]) <= size
        found += names_of(page)
        if not page["continuation_token"]:
            break
        value |= {"continuation_token": page["continuation_token"], "uuid": page["uuid"]}
        if not is_held:
            here.service.listings = Listings()  # another replica
    assert found == (["a.tar", "deep/", "e.tar"] if flags else NAMES)


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


def test_message_pack_says_the_same(here: ServiceHere) -> None:
    (root_of(here) / "images" / os.fsdecode(b"f\xff.tar")).write_text("")
    body = {"action": "list", "value": {"pagesize": 3}}
    answer = ask(here, "GET", "/images", body, headers={"Accept": "application/msgpack"})
    assert answer.headers["Content-Type"] == "application/msgpack"
    page = msgpack.unpackb(answer.content)
    assert [*page] == ["UUID", "ContinuationToken", "Entries", "Flags"]
    assert page["Entries"] == [{"n": name, "s": len(name), "f": 64} for name in NAMES[:3]]
    assert page["ContinuationToken"] == NAMES[2]
    assert len(listed(here)["entries"]) == len(NAMES) + 1
    odd = ask(here, "GET", "/images?prefix=f", headers={"Accept": "application/msgpack"})
    assert [each["n"] for each in msgpack.unpackb(odd.content)["Entries"]] == ["f\\xff.tar"]


def test_buckets_are_listed_as_far_as_tokens_go(tmp_path: Path) -> None:
    other = tmp_path / "other"
    allow = (f"file://{other}", "s3://data/train", "s3://team-*")
    with service_here(tmp_path, no_auth=False, allow=allow) as here:
        root = root_of(here)
        for name in ("images", "secret"):
            (root / name).mkdir()
        (root / "leads out").symlink_to(tmp_path)
        one = here.service.tokens.add("eve", VIEWER, [str(root / "images"), "s3://data/*"])
        all_of = here.service.tokens.add("ada", ADMIN)

        def seen(token: str, **query: str) -> list[tuple[str, str]]:
            headers = {"Authorization": f"Bearer {token}"}
            answer = ask(here, "GET", "", headers=headers, params=query)
            return [(each["provider"], each["name"]) for each in answer.json()]

        assert seen(one) == [("ais", "images"), ("aws", "data/train")]
        assert seen(one, provider="aws") == [("aws", "data/train")]
        assert seen(all_of)[:2] == [("ais", "images"), ("ais", "secret")]
        assert len(seen(all_of)) == 4
        eve = {"Authorization": f"Bearer {one}"}
        assert ask(here, "GET", "/secret", headers=eve).status_code == 403
        assert ask(here, "HEAD", "/secret", headers=eve).status_code == 403


def test_a_bucket_is_made_looked_at_and_removed_with_what_is_in_it(here: ServiceHere) -> None:
    make, destroy = {"action": "create-bck"}, {"action": "destroy-bck"}
    assert ask(here, "HEAD", "/fresh?provider=ais").status_code == 404
    missing = ask(here, "HEAD", "/fresh?provider=ais").headers["Hdr-Error"]
    assert missing == "bucket %22ais://fresh%22 does not exist"
    assert ask(here, "POST", "/fresh?provider=ais", make).status_code == 200
    again = ask(here, "POST", "/fresh?provider=ais", make)
    assert (again.status_code, again.json()["message"]) == (
        409,
        'bucket "ais://fresh" already exists',
    )
    assert ask(here, "HEAD", "/fresh").headers["Ais-Bucket-Props"] == '{"provider": "ais"}'
    assert here.client.put("/v1/objects/fresh/a/b", content=b"x").status_code == 200
    assert here.client.delete("/v1/objects/fresh/a/b").status_code == 200
    assert here.client.put("/v1/objects/fresh/a/c", content=b"x").status_code == 200
    (root_of(here) / "fresh" / "link").symlink_to(root_of(here) / "images")
    images = sorted((root_of(here) / "images").rglob("*"))
    assert ask(here, "DELETE", "/fresh", destroy).status_code == 200
    assert sorted((root_of(here) / "images").rglob("*")) == images
    assert not (root_of(here) / "fresh").exists()
    assert ask(here, "DELETE", "/fresh", destroy).status_code == 404
    actions = [row.action for row in here.service.audit.list()]
    assert actions == [
        "bucket.remove",
        "object.put",
        "object.remove",
        "object.put",
        "bucket.create",
    ]


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


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("..%2Fother", 403),
        ("a%0ab", 400),
        ("a%1bb", 400),
        ("a%00", 400),
        ("a%3Fb", 400),
        (".dsort", 400),
        ("a%2F..%2Fb", 400),
        ("a" * 300, 400),
        ("file", 409),
        ("file%2Fbelow", 409),
        ("s3%3A%2F%2Fdata", 403),
        ("a?provider=nobody", 400),
    ],
)
def test_no_bucket_is_made_where_enemies_say(
    here: ServiceHere, tmp_path: Path, path: str, status: int
) -> None:
    there = sorted(tmp_path.rglob("*"))
    answer = ask(here, "POST", f"/{path}", {"action": "create-bck"})
    assert answer.status_code in (status, 400, 404), answer.text
    assert "problem+json" in answer.headers["Content-Type"]
    assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"prefix": "../"}, 400),
        ({"prefix": ".dsort/"}, 400),
        ({"prefix": "deep/.dsort/x"}, 400),
        ({"prefix": "/etc"}, 400),
        ({"prefix": "a\0"}, 400),
        ({"prefix": "a" * 9000}, 400),
        ({"prefix": 7}, 400),
        ({"pagesize": -1}, 400),
        ({"pagesize": "x"}, 400),
        ({"pagesize": 2**70}, 400),
        ({"flags": True}, 400),
        ({"flags": str(1 << 15)}, 501),
        ({"target": "t1"}, 501),
        ([], 400),
    ],
)
def test_what_is_no_list_is_an_error(here: ServiceHere, value: Any, status: int) -> None:
    answer = ask(here, "GET", "/images", {"action": "list", "value": value})
    assert answer.status_code == status, answer.text
    assert ask(here, "GET", "/nowhere?provider=ais").json()["message"] == (
        'bucket "ais://nowhere" does not exist'
    )


def test_who_may_not_write_makes_and_removes_nothing(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        root = root_of(here)
        for name, role, writes, statuses in (
            ("vera", VIEWER, [str(root / "vera")], (403, 403, 403)),
            ("ann", SUBMITTER, [str(root / "ann")], (403, 200, 403)),
            ("ada", ADMIN, ["*"], (200, 200, 200)),
        ):
            token = here.service.tokens.add(name, role, ["*"], writes)
            headers = {"Authorization": f"Bearer {token}"}
            found = [
                ask(here, method, path, {"action": action}, headers=headers).status_code
                for method, path, action in (
                    ("POST", "/other", "create-bck"),
                    ("POST", f"/{name}", "create-bck"),
                    ("DELETE", f"/{name}", "destroy-bck"),
                )
            ]
            assert tuple(found) == statuses
