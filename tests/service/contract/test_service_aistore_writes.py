"""Objects that requests write and remove, in a directory and in an object store: whole or not at
all, where tokens allow it, never where a running job needs them, whatever an enemy calls them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from dsort.service.aistore.object_writes import SMALL_BYTES_MAX
from dsort.service.database.tables import jobs
from dsort.settings import Settings, StoreSettings
from dsort.storage.s3.bucket import S3Bucket
from tests.support.object_stores import new_s3_bucket, waiting
from tests.support.seaweedfs import S3Server
from tests.support.service_here import SPEC, ServiceHere, service_here

LARGE = bytes(range(256)) * (SMALL_BYTES_MAX // 256) + b"more than is held at once"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as opened:
        (opened.service.config.run.root / "images").mkdir()
        yield opened


def root_of(here: ServiceHere) -> Path:
    return here.service.config.run.root


def objects_of(here: ServiceHere) -> dict[str, bytes]:
    """All that is in the bucket ``images``, dsort's own files too."""
    bucket = root_of(here) / "images"
    files = (each for each in bucket.rglob("*") if each.is_file())
    return {str(each.relative_to(bucket)): each.read_bytes() for each in files}


def put(here: ServiceHere, path: str, data: Any = b"content", **headers: str) -> httpx.Response:
    answer: httpx.Response = here.client.put(f"/v1/objects/{path}", content=data, headers=headers)
    return answer


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_what_is_put_can_be_read_replaced_and_removed(here: ServiceHere, data: bytes) -> None:
    path = "images/deep/a%20b.bin"
    assert put(here, path, data).status_code == 200
    assert here.client.get(f"/v1/objects/{path}").content == data
    assert put(here, path, iter([data, b"x"])).status_code == 200  # in chunks, of unknown length
    assert objects_of(here) == {"deep/a b.bin": data + b"x"}
    kept = put(here, path, data, **{"If-None-Match": "*"})
    assert (kept.status_code, kept.json()["message"]) == (409, kept.json()["detail"])
    assert put(here, path, data, **{"If-None-Match": '"a tag"'}).status_code == 400
    assert here.client.delete(f"/v1/objects/{path}").status_code == 200
    assert objects_of(here) == {}
    assert here.client.delete(f"/v1/objects/{path}").status_code == 404
    noted = [(row.action, row.target) for row in here.service.audit.list()]
    assert noted == [("object.remove", "deep/a b.bin"), *[("object.put", "deep/a b.bin")] * 2]


def test_a_body_that_is_cut_or_too_long_leaves_nothing(here: ServiceHere) -> None:
    assert put(here, "images/a.bin", b"before").status_code == 200
    for length, data in (("5", LARGE), (str(len(LARGE) + 1), LARGE), ("7", b"cut"), ("1", b"cut")):
        cut = put(here, "images/a.bin", iter([data]), **{"Content-Length": length})
        assert (cut.status_code, "Content-Length" in cut.json()["detail"]) == (400, True)

    def breaks() -> Iterator[bytes]:
        yield LARGE
        raise OSError("the client is gone")

    assert put(here, "images/a.bin", breaks()).status_code == 500
    assert objects_of(here) == {"a.bin": b"before"}


def test_objects_are_as_long_as_the_operator_allows(tmp_path: Path) -> None:
    with service_here(tmp_path, object_bytes_max=10) as here:
        (root_of(here) / "images").mkdir()
        assert put(here, "images/a", b"0123456789").status_code == 200
        long = put(here, "images/b", b"0123456789-")
        assert (long.status_code, "--max-object-size" in long.json()["hint"]) == (413, True)
        assert put(here, "images/b", iter([b"01234", b"56789", b"-"])).status_code == 413
        assert list(objects_of(here)) == ["a"]
    with service_here(tmp_path, object_bytes_max=0) as here:
        assert put(here, "images/b", b"").status_code == 403
        assert here.client.delete("/v1/objects/images/a").status_code == 403


NOWHERE = {
    (400,): (
        *("images/..%2F..%2Fservice.db", "images/.dsort/x/manifest.json", "images/deep/.dsort/x"),
        *("images/.Dsort/x", "images/.ssh/authorized_keys", "images/deep/.bashrc"),
        *(".ssh/authorized_keys", "images/%00", "images/%ff", "images/a%1b%5b2J", "images/deep/"),
        *("images/a%c2%9b", f"images/{'a' * 256}", f"images/{'a/' * 600}b", f"images/{'a' * 9000}"),
    ),
    (400, 403): (
        *("..%2F/service.db", "images%2F..%2F..%2F/service.db", "-/x.tar", "pipe%3Acat/x.tar"),
        "images%2F.dsort/x",
    ),
    (403,): (
        *("file%3A%2F%2F%2Ftmp/x", "s3%3A%2F%2Fsecret/x.tar", "http%3A%2F%2Flocalhost/x"),
        "images/link/x",
    ),
    (404,): ("nowhere/x.tar", "state/replica"),
    (400, 404, 405): ("images/%2e%2e/%2e%2e/service.db",),
    (400, 404, 501): ("images/a%0ab",),
    (409,): ("images/deep", "images/file/below"),
    (501,): (
        *("images/x?archpath=a.txt", "images/x?append_type=append"),
        *("images/x?object_to=ais/@%23/images/y", "images/x?uploadId=1&partNumber=1"),
        "images/x?provider=ais&namespace=%40other",
    ),
}
"""Paths by the statuses that answer them."""


def test_nothing_is_written_where_enemies_say(here: ServiceHere) -> None:
    images = root_of(here) / "images"
    secret = root_of(here).parent / "service.db"
    (images / "deep").mkdir()
    (images / "deep" / "x").write_bytes(b"x")
    (images / "file").write_bytes(b"file")
    (images / "link").symlink_to(root_of(here).parent)
    before, there = secret.stat().st_ino, sorted(root_of(here).parent.rglob("*"))
    for statuses, paths in NOWHERE.items():
        for path in paths:
            for data in (b"evil", LARGE):
                answer = put(here, path, data)
                assert answer.status_code in statuses, (path, answer.text)
                kind = answer.headers["Content-Type"]
                assert kind.startswith(("application/problem", "text/plain")), path
            if path != "images/file/below":
                removed = here.client.delete(f"/v1/objects/{path}")
                assert removed.status_code in {*statuses, 404}, path
            assert secret.stat().st_ino == before, path
            now = sorted(root_of(here).parent.rglob("*"))
            assert [each for each in now if each not in there] == [], path
    assert {"deep/x": b"x", "file": b"file"}.items() <= objects_of(here).items()


def test_a_write_replaces_a_link_and_not_the_file_behind_it(here: ServiceHere) -> None:
    secret = root_of(here).parent / "service.db"
    link = root_of(here) / "images" / "link.bin"
    link.symlink_to(secret)
    before = secret.stat().st_ino
    put(here, "images/link.bin", b"evil")
    assert (secret.stat().st_ino, secret.read_bytes()[:4] == b"evil") == (before, False)


def test_what_a_running_job_needs_stays_as_it_is(here: ServiceHere) -> None:
    for name in ("shuffled", "images"):
        (root_of(here) / name).mkdir(exist_ok=True)
    assert put(here, "images/s-0.tar", b"a shard").status_code == 200
    job_id = here.submit({**SPEC, "output_format": "deep/out-%04d"})["job_id"]
    assert put(here, "images/s-0.tar", b"another").status_code == 200  # it only waits
    with here.service.database.writing() as connection:
        connection.execute(update(jobs).values(state="running"))
    for path in ("images/s-0.tar", "shuffled/deep/out-0003.tar", ".%2Fimages/s-0.tar"):
        for answer in (put(here, path, b"other"), here.client.delete(f"/v1/objects/{path}")):
            if not path.startswith("."):
                assert (answer.status_code, job_id in answer.json()["detail"]) == (409, True)
            assert answer.status_code in (400, 409)
    assert objects_of(here) == {"s-0.tar": b"another"}
    for fresh in ("images/s-1.tar", "shuffled/deep/other.tar", "shuffled/out-0003.tar"):
        assert put(here, fresh, b"new").status_code == 200
    assert here.client.delete("/v1/objects/shuffled/deep/other.tar").status_code == 200


def test_of_many_writers_of_one_name_one_wins_whole(here: ServiceHere) -> None:
    bodies = [bytes([65 + number]) * len(LARGE) for number in range(4)]
    statuses: list[int] = []

    def write(data: bytes) -> None:
        statuses.append(put(here, "images/one.bin", data).status_code)

    threads = [threading.Thread(target=write, args=(data,)) for data in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 4
    assert objects_of(here)["one.bin"] in bodies
    assert [each.name for each in (root_of(here) / "images").iterdir()] == ["one.bin"]


def test_hidden_directories_are_written_where_the_operator_names_them(tmp_path: Path) -> None:
    root, other = tmp_path / ".cache" / "data", tmp_path / ".shared"
    for directory in (root / "images", root / ".ssh", other, tmp_path / "open" / ".git"):
        directory.mkdir(parents=True)
    allow = (f"file://{other}", f"file://{tmp_path}/open/*")
    with service_here(tmp_path, root=root, allow=allow) as here:

        def written(directory: Path | str) -> int:
            bucket = str(directory).replace("/", "%2F")
            return put(here, f"file%3A%2F%2F{bucket}/x").status_code

        assert put(here, "images/x").status_code == 200
        assert written(other) == 200
        assert put(here, ".ssh/x").status_code == 400
        assert written(root / ".ssh") == 400
        assert written(tmp_path / "open" / ".git") == 400


def test_jobs_write_no_more_hidden_files_than_requests_do(tmp_path: Path) -> None:
    root = tmp_path / ".cache" / "data"
    (root / "images").mkdir(parents=True)
    with service_here(tmp_path, root=root) as here:

        def refused(**fields: Any) -> list[str]:
            """The fields that are wrong with a spec; none if it is taken."""
            answer = here.client.post("/v1/jobs", json={**SPEC, **fields})
            assert answer.status_code in (201, 400), answer.text
            return [each["path"] for each in answer.json().get("problems", [])]

        for name in (".ssh/keys-%d", ".%d", "a/.b/c-%d"):
            written = name.replace("%d", "0")
            assert put(here, f"images/{written}").status_code == 400, name
            assert refused(output_format=name) == ["output_format"], name
            assert refused(output_format=None, ekm={name: ["a"]}) == ["ekm"], name
            with_default = {"output_format": None, "ekm": {"x-%d": ["a"]}, "ekm_default": name}
            assert refused(**with_default) == ["ekm_default"], name
        outputs = [{"name": "a", "output_bck": ".ssh", "fraction": 0.5}]
        outputs.append({"name": "b", "fraction": 0.5})
        assert refused(output_format="{split}-{n}", outputs=outputs) == ["outputs[0].output_bck"]
        assert refused(output_bck=".ssh") == ["output_bck"]
        assert refused(output_bck="images/.ssh") == ["output_bck"]
        assert refused(output_format="a.b/c.d-%d") == []
        assert refused(output_bck=f"file://{root}/images") == []


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    return new_s3_bucket(s3)


@pytest.fixture
def there(tmp_path: Path, s3: S3Server) -> Iterator[ServiceHere]:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    with service_here(tmp_path, settings=settings, allow=("s3://*",)) as opened:
        yield opened


def test_objects_of_a_store_are_written_listed_read_and_removed(
    there: ServiceHere, bucket: S3Bucket
) -> None:
    uri = bucket.uri.replace("/", "%2F").replace(":", "%3A")
    name = bucket.uri.removeprefix("s3://")
    bodies = {"a/large.bin": LARGE, "a/small.txt": b"small", "b.txt": b""}
    for path, data in bodies.items():
        put = there.client.put(f"/v1/objects/{name}/{path}?provider=aws", content=data)
        assert put.status_code == 200, put.text
    pages, token = [], ""
    while not pages or token:
        query = {"page_size": 2, "continuation_token": token}
        page = there.client.get(f"/v1/buckets/{uri}", params=query).json()
        pages.append([each["name"] for each in page["entries"]])
        token = page["continuation_token"]
    assert pages == [["a/large.bin", "a/small.txt"], ["b.txt"]]
    for path, data in bodies.items():
        assert there.client.get(f"/v1/objects/{uri}/{path}").content == data
    part = there.client.get(f"/v1/objects/{uri}/a/large.bin", headers={"Range": "bytes=-4"})
    assert (part.status_code, part.content) == (206, b"once")
    kept = there.client.put(
        f"/v1/objects/{uri}/b.txt", content=b"other", headers={"If-None-Match": "*"}
    )
    assert kept.status_code == 409
    assert there.client.head(f"/v1/buckets/{name}?provider=aws").status_code == 200
    for path in bodies:
        assert there.client.delete(f"/v1/objects/{uri}/{path}").status_code == 200
    assert there.client.get(f"/v1/buckets/{uri}").json()["entries"] == []
    assert there.client.delete(f"/v1/objects/{uri}/b.txt").status_code == 404


def test_a_body_that_is_cut_leaves_nothing_in_a_store(there: ServiceHere, bucket: S3Bucket) -> None:
    name = bucket.uri.removeprefix("s3://")

    def breaks() -> Iterator[bytes]:
        for _ in range(12):
            yield LARGE
        raise OSError("the client is gone")

    path = f"/v1/objects/{name}/cut.bin?provider=aws"
    assert there.client.put(path, content=breaks()).status_code == 500
    long = {"Content-Length": str(len(LARGE) + 1)}
    assert there.client.put(path, content=iter([LARGE]), headers=long).status_code == 400
    assert [*bucket.list()] == []
    assert waiting(bucket) == []


def test_missing_buckets_of_a_store_are_errors(there: ServiceHere, s3: S3Server) -> None:
    none = f"/{s3.new_bucket_name()}"
    for method, path in (
        ("GET", f"/v1/buckets{none}"),
        ("HEAD", f"/v1/buckets{none}"),
        ("GET", f"/v1/objects{none}/x"),
        ("PUT", f"/v1/objects{none}/x"),
        ("DELETE", f"/v1/objects{none}/x"),
    ):
        answer = there.client.request(method, path, params={"provider": "aws"})
        assert answer.status_code in (404, 409), (method, path, answer.text)
    for method, action in (("POST", "create-bck"), ("DELETE", "destroy-bck")):
        answer = there.client.request(
            method, f"/v1/buckets{none}", params={"provider": "aws"}, json={"action": action}
        )
        assert answer.status_code == 501


def test_over_tls_the_sdk_gets_the_address_for_the_body(here: ServiceHere) -> None:
    """It sends none before; others send it at once."""
    url = "https://localhost/v1/objects/images/a.bin?provider=ais"
    sdk = {"User-Agent": "ais/python/2.0.0"}
    first = here.client.put(url, headers=sdk, content=b"", follow_redirects=False)
    assert (first.status_code, objects_of(here)) == (307, {})
    assert here.client.put(first.headers["Location"], headers=sdk, content=b"x").status_code == 200
    assert objects_of(here) == {"a.bin": b"x"}
    assert here.client.put(url, content=b"y", follow_redirects=False).status_code == 200
    assert objects_of(here) == {"a.bin": b"y"}
