"""The routes of data: shards, records, members; whatever shards hold and are called. A service
without its guest lists buckets and looks into shards, and sends or writes no whole object."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from dsort.client import DsortClient
from dsort.errors import NotFoundError
from dsort.service.aistore.transforms import TransformStore
from dsort.service.api.app import create_app
from dsort.service.objects.places import CURSOR_CHARACTERS_MAX, Listings
from dsort.service.objects.shard_looks import preview_of
from dsort.service.security.limits import RequestLimits
from dsort.service.security.tokens import SUBMITTER, VIEWER
from dsort.service.service import Service
from tests.support.engine import run_local
from tests.support.service_here import SPEC, ServiceHere, config_for, service_here
from tests.support.tars import tar_of
from tests.support.workers_here import WorkersHere

HTML = b"<script>document.title='owned'</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + b"\x08\x02\0\0\0"
RECORDS = {
    "0001.png": PNG,
    "0001.json": b'{"class": 3}',
    "0002.svg": SVG,
    "0002.html": HTML,
    "<b>0003</b>.png": PNG[:16] + struct.pack(">II", 60_000, 60_000) + b"\x08\x02\0\0\0",
    "0004.bin": bytes(range(256)) * 4,
    "0004.wav": b"RIFF\x24\0\0\0WAVEfmt ",
    "ü\n5.txt": "grün".encode() * 10_000,
}


def bomb() -> bytes:
    """A zip whose one member is a thousand times as long as the zip."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("bomb.txt", b"\0" * (16 << 20))
    return written.getvalue()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("datasets")) as opened:
        images = opened.service.config.run.root / "images"
        images.mkdir()
        (images / "s-0.tar").write_bytes(tar_of(RECORDS))
        (images / "s-1.tar.gz").write_bytes(gzip.compress(tar_of(RECORDS)))
        (images / "deep").mkdir()
        (images / "deep" / "lines.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
        (images / "bomb.zip").write_bytes(bomb())
        (images / "index.html").write_bytes(HTML)
        long = {f"{'k' * 100_000}.{number}": b"x" for number in range(70)}
        (images / "deep" / "long.tar").write_bytes(tar_of(long))
        yield opened


def ask(here: ServiceHere, path: str, **query: Any) -> Any:
    answer = here.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def test_shards_are_listed_searched_and_drawn(here: ServiceHere) -> None:
    whole = ask(here, "/v1/shards/images")
    names = ["bomb.zip", "deep/lines.jsonl", "deep/long.tar", "s-0.tar", "s-1.tar.gz"]
    assert [each["name"] for each in whole["shards"]] == names
    assert whole["shards"][3]["size_bytes"] == len(tar_of(RECORDS))
    assert (whole["next_cursor"], whole["shards"][3]["records"]) == (None, None)
    found = ask(here, "/v1/shards/images", text="S-")["shards"]
    assert [each["name"] for each in found] == names[3:]
    seen: list[str] = []
    cursor = None
    while cursor != "":
        page = ask(here, "/v1/shards/images", limit=1, **({"cursor": cursor} if cursor else {}))
        seen += [each["name"] for each in page["shards"]]
        cursor = page["next_cursor"] or ""
    assert seen == names
    drawn = {
        each["name"]
        for seed in range(8)
        for each in ask(here, "/v1/shards/images", random=1, seed=seed)["shards"]
    }
    assert len(drawn) > 1
    assert here.client.get("/v1/shards/none").status_code == 404


def test_numbers_of_records_are_those_of_manifests(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.opened_job.LocalRuntime", WorkersHere)
    root = here.service.config.run.root
    spec = {"input_bck": "images", "output_bck": "made", "output_format": "m-%d"}
    spec |= {"input_format": "s-0.tar", "output_shard_records": 4}  # type: ignore[dict-item]
    run_local(root, spec)
    page = ask(here, "/v1/shards/made")
    assert [each["records"] for each in page["shards"]] == [4, 1]
    with (root / "made" / "m-0.tar").open("ab") as shard:
        shard.write(b"\0" * 512)  # it is another one now
    assert [each["records"] for each in ask(here, "/v1/shards/made")["shards"]] == [None, 1]


@pytest.mark.parametrize("shard", ["s-0.tar", "s-1.tar.gz"])
def test_records_are_listed_with_their_members(here: ServiceHere, shard: str) -> None:
    page = ask(here, f"/v1/records/images/{shard}", limit=2)
    assert (page["total"], page["next_number"]) == (5, 2)
    first = page["records"][0]
    assert (first["number"], first["key"], first["members_total"]) == (0, "0001", 2)
    assert first["members"][1] == {"name": "0001.json", "extension": ".json", "size_bytes": 12}
    rest = ask(here, f"/v1/records/images/{shard}", first=2)
    assert [each["key"] for each in rest["records"]] == ["<b>0003</b>", "0004", "ü\n5"]
    assert rest["next_number"] is None
    found = ask(here, f"/v1/records/images/{shard}", text="4")["records"]
    assert [each["number"] for each in found] == [3]


def test_members_are_shown_as_what_their_bytes_are(here: ServiceHere) -> None:
    shown = ask(here, "/v1/samples/images/s-0.tar", number=[0, 1, 2, 3, 4])["records"]
    members = {each["name"]: each for record in shown for each in record["members"]}
    png = members["0001.png"]
    assert (png["kind"], png["width"], png["height"]) == ("image", 640, 480)
    assert base64.b64decode(png["base64"]) == PNG
    assert (members["0001.json"]["kind"], members["0001.json"]["text"]) == ("json", '{"class": 3}')
    for name, data in (("0002.svg", SVG), ("0002.html", HTML)):  # documents, which may run code
        assert (members[name]["kind"], members[name]["text"]) == ("text", data.decode())
    huge = members["<b>0003</b>.png"]
    assert (huge["kind"], huge["width"], "base64" in huge) == ("bytes", 60_000, False)
    assert members["0004.bin"]["hex"] == bytes(range(256)).hex()
    assert members["0004.wav"]["kind"] == "audio"
    assert 16_000 < len(members["ü\n5.txt"]["text"].encode()) <= 16 << 10


def test_a_member_is_sent_to_be_saved_and_never_to_be_shown(here: ServiceHere) -> None:
    answer = here.client.get("/v1/members/images/s-0.tar", params={"number": 1, "member": 1})
    assert (answer.status_code, answer.content) == (200, HTML)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    shown = here.client.get("/v1/samples/images/s-0.tar", params={"number": 1})
    assert shown.headers["X-Content-Type-Options"] == "nosniff"


def test_of_a_bomb_only_the_beginning_is_inflated(here: ServiceHere) -> None:
    row = ask(here, "/v1/records/images/bomb.zip")["records"][0]
    assert row["size_bytes"] == 16 << 20
    (member,) = ask(here, "/v1/samples/images/bomb.zip", number=0)["records"][0]["members"]
    assert (member["kind"], len(member["hex"])) == ("bytes", 512)


def test_of_many_long_names_the_beginnings_are_sent(here: ServiceHere) -> None:
    listed = here.client.get("/v1/records/images/deep/long.tar")
    (row,) = listed.json()["records"]
    assert (row["members_total"], len(row["key"])) == (70, 1025)
    assert len(listed.content) < 40_000
    shown = ask(here, "/v1/samples/images/deep/long.tar", number=0)["records"][0]
    assert {each["text"] for each in shown["members"]} == {"x"}


def test_an_impossible_look_is_an_error(here: ServiceHere) -> None:
    torn = here.service.config.run.root / "images" / "torn.tar"
    torn.write_bytes(tar_of(RECORDS)[:700])
    try:
        for status, paths in {
            400: (
                *("records/images/index.html", "samples/images/s-0.tar"),
                *("samples/images/s-0.tar?number=-1", "records/..%2Fimages/s-0.tar"),
                *("changed/images/s-0.tar?number=0&transform=none", "records/.dsort/s-0.tar"),
                "shards/images%2F..%2F..",
            ),
            404: ("records/images/none.tar", "members/images/s-0.tar?number=0&member=2"),
            422: (
                "samples/images/s-0.tar?number=5",
                "members/images/torn.tar?number=0&member=0",
            ),
        }.items():
            for path in paths:
                answer = here.client.get(f"/v1/{path}")
                found = (answer.status_code, bool(answer.json()["detail"]))
                assert found == (status, True), (path, answer.text)
    finally:
        torn.unlink()


def test_a_transform_is_tried_on_one_record(here: ServiceHere) -> None:
    steps = [{"fields": {"drop": ["json"]}}]
    TransformStore(here.service.database).put("pictures", {"steps": steps}, "ada")
    tried = ask(here, "/v1/changed/images/s-0.tar", number=0, transform="pictures")
    assert [each["name"] for each in tried["before"]["members"]] == ["0001.png", "0001.json"]
    (after,) = tried["after"]
    assert [each["name"] for each in after["members"]] == ["0001.png"]
    TransformStore(here.service.database).put("empty", {"steps": [{"filter": 'key == "x"'}]}, "ada")
    assert ask(here, "/v1/changed/images/s-0.tar", number=0, transform="empty")["after"] == []
    scratch = here.service.config.scratch_dir
    assert scratch is not None
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "query", "action"),
    [
        ("listings/images", {}, "data.list"),
        ("shards/images", {}, "data.list"),
        ("records/images/s-0.tar", {}, "data.list"),
        ("samples/images/s-0.tar", {"number": 2}, "data.show"),
        ("members/images/s-0.tar", {"number": 0, "member": 0}, "data.read"),
    ],
)
def test_each_look_into_a_bucket_is_in_the_audit_trail(
    here: ServiceHere, path: str, query: dict[str, Any], action: str
) -> None:
    assert here.client.get(f"/v1/{path}", params=query).status_code == 200
    row = here.service.audit.list(limit=1)[0]
    assert (row.action, row.target.endswith(path.partition("/")[2])) == (action, True)
    assert here.client.get("/v1/listings").status_code == 200
    assert here.service.audit.list(limit=1)[0].number == row.number  # the names of buckets alone


def test_a_client_that_looks_too_often_is_asked_to_wait(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = RequestLimits(10**6, looks_per_minute_max=1)
    monkeypatch.setattr(here.service, "limits", limits)
    ask(here, "/v1/records/images/s-0.tar")
    late = here.client.get("/v1/records/images/s-0.tar")
    assert (late.status_code, int(late.headers["Retry-After"]) > 0) == (429, True)


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("a.gif", b"GIF89a\x02\0\x03\0", ("image", 2, 3)),
        ("a.jpg", b"\xff\xd8\xff\xe0\0\x04\0\0\xff\xc0\0\x11\x08\0\x07\0\x09" + b"\0" * 9,
         ("image", 9, 7)),
        ("a.webp", b"RIFF\0\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0\x01\0\0\x02\0\0", ("image", 2, 3)),
        ("a.bmp", b"BM" + b"\0" * 12 + struct.pack("<IIi", 40, 5, -6) + b"\0" * 4,
         ("image", 5, 6)),
        ("a.jpg", b"\xff\xd8\xff" + b"\xff" * 400, ("bytes", None, None)),
        ("a.png", HTML, ("text", None, None)),
        ("a.mp3", b"\xff\xfb\x90\0", ("audio", None, None)),
        ("a.txt", "ü".encode()[:1], ("bytes", None, None)),
        ("a.json", json.dumps({"a": 1}).encode(), ("json", None, None)),
        ("a.bin", b"", ("text", None, None)),
    ],
)  # fmt: skip
def test_bytes_decide_what_a_member_is(
    name: str, head: bytes, expected: tuple[str, int | None, int | None]
) -> None:
    found = preview_of(name, head, len(head))
    assert (found.kind, found.width, found.height) == expected


def test_a_look_that_takes_too_much_memory_is_refused(here: ServiceHere) -> None:
    path = here.service.config.run.root / "images" / "deep" / "too-many.txt"
    path.write_bytes(b"a\n" * (24 << 20))
    query = {"number": 0, "member": 0}
    for route in ("records", "samples", "members"):
        answer = here.client.get(f"/v1/{route}/images/deep/too-many.txt", params=query)
        assert answer.status_code == 413, (route, answer.text)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert "memory" in answer.json()["detail"]
    path.unlink()
    assert ask(here, "/v1/records/images/s-0.tar")["total"] == 5  # and the service goes on


def test_pages_continue_behind_names_that_are_no_text(here: ServiceHere) -> None:
    odd = here.service.config.run.root / "odd"
    odd.mkdir()
    for name in (b"a.tar", b"\xff1.tar", b"\xff2.tar", "b%41ß.tar".encode()):
        (odd / os.fsdecode(name)).write_bytes(b"")
    for route, kind in (("listings", "objects"), ("shards", "shards")):
        for is_held in (True, False):
            found: list[str] = []
            query: dict[str, Any] = {"limit": 1}
            while query.get("cursor", "") is not None:
                page = here.client.get(f"/v1/{route}/odd", params=query).json()
                found += [each["name"] for each in page[kind]]
                query["cursor"] = page["next_cursor"]
                if not is_held:
                    here.service.listings = Listings()  # another replica
            names = ["a.tar", "b%41ß.tar", r"\xff1.tar", r"\xff2.tar"]
            assert found == names, (route, is_held)


def test_pages_continue_behind_the_longest_names(here: ServiceHere) -> None:
    directory = here.service.config.run.root / "long" / "/".join(["d" * 240] * 10)
    directory.mkdir(parents=True)
    for name in ("1.tar", "2.tar"):
        (directory / name).write_bytes(b"")
    for route in ("listings", "shards"):
        query: dict[str, Any] = {"limit": 1}
        query["cursor"] = here.client.get(f"/v1/{route}/long", params=query).json()["next_cursor"]
        more = here.client.get(f"/v1/{route}/long", params=query)
        assert more.status_code == 200, more.text


NAMES = ["a", "deep/b.tar", "deep/c.tar", "z.tar"]
GUESTS = ("sort", "cluster", "daemon", "download", "objects", "buckets", "transforms", "changed")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ServiceHere]:
    with Service(config_for(tmp_path)) as service:
        root = service.config.run.root
        for name in NAMES:
            path = root / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"as it was")
        (root / "images" / ".dsort").mkdir()
        (root / "images" / ".dsort" / "own").touch()
        yield ServiceHere(service, TestClient(create_app(service), base_url="http://localhost"))


def client_of(plain: ServiceHere) -> DsortClient:
    def answer(request: httpx.Request) -> httpx.Response:
        found = plain.client.request(request.method, str(request.url), content=request.content)
        return httpx.Response(found.status_code, content=found.content)

    return DsortClient("http://localhost", http=httpx.MockTransport(answer))


@pytest.mark.parametrize("verb", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_the_routes_of_the_guest_are_not_there(plain: ServiceHere, verb: str) -> None:
    paths = ["", "/images", "/images/a", "/images/a?number=0&transform=x"]
    answers = {
        f"/v1/{first}{rest}": plain.client.request(verb, f"/v1/{first}{rest}").status_code
        for first in GUESTS
        for rest in paths
    }
    assert set(answers.values()) == {404}
    assert (plain.service.config.run.root / "images" / "a").read_bytes() == b"as it was"
    shown = plain.client.get("/openapi.json").json()["paths"]
    assert not [path for path in shown if path.startswith(tuple(f"/v1/{each}" for each in GUESTS))]


def test_a_client_gets_the_option_that_adds_the_routes(plain: ServiceHere) -> None:
    with client_of(plain) as client:
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


def test_a_spec_that_names_a_transform_is_refused(plain: ServiceHere) -> None:
    answer = plain.client.post("/v1/jobs", json={**SPEC, "transform": {"use": "resize"}})
    (problem,) = answer.json()["problems"]
    assert (answer.status_code, problem["path"]) == (400, "transform.use")
    assert "--aistore" in problem["hint"]


def test_who_am_i_says_whether_there_are_named_transforms(
    plain: ServiceHere, tmp_path: Path
) -> None:
    assert plain.client.get("/v1/whoami").json()["named_transforms"] is False
    (tmp_path / "other").mkdir()
    with service_here(tmp_path / "other") as with_guest:
        assert with_guest.client.get("/v1/whoami").json()["named_transforms"] is True


def listed(plain: ServiceHere, bucket: str = "images", **query: Any) -> list[str]:
    answer = plain.client.get(f"/v1/listings/{bucket}", params=query)
    assert answer.status_code == 200, answer.text
    return [each["name"] for each in answer.json()["objects"]]


def test_objects_are_listed_and_nothing_of_dsort_s_own(plain: ServiceHere) -> None:
    assert listed(plain) == NAMES
    assert listed(plain, prefix="deep/") == NAMES[1:3]
    assert listed(plain, "images/deep") == ["b.tar", "c.tar"]
    page = plain.client.get("/v1/listings/images?limit=1").json()
    assert page["objects"] == [{"name": "a", "size_bytes": 9}]
    assert plain.client.get("/v1/listings/none").status_code == 404
    with client_of(plain) as client:
        assert [each["name"] for each in client.data.objects("images", prefix="deep")] == NAMES[1:3]


def test_names_of_enemies_lead_nowhere(plain: ServiceHere) -> None:
    for status, paths in {
        400: (
            *("images?prefix=../", "images?prefix=.dsort/", "images?prefix=/etc", "..%2F"),
            *(f"images?prefix={'a' * 9000}", "images?limit=0", "images?limit=100000", "%2Fetc"),
            *(f"images?cursor={'a' * (CURSOR_CHARACTERS_MAX + 1)}", "images%2F.dsort", "a%00"),
        ),
        403: ("file%3A%2F%2F%2Fetc", "s3%3A%2F%2Fsecret"),
    }.items():
        for path in paths:
            answer = plain.client.get(f"/v1/listings/{path}")
            assert answer.status_code == status, (path, answer.text)


def test_buckets_are_listed_as_specs_name_them_and_as_far_as_tokens_go(tmp_path: Path) -> None:
    other = tmp_path / "other"
    allow = (f"file://{other}", "s3://data/train", "s3://team-*", "hf://datasets/lab")
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
