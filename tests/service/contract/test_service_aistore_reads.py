"""Objects over HTTP: whole, in ranges, transformed, for whom tokens allow it; names of enemies; and
files in shards, listed behind the name of their shard and sent one by one."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsort.service.aistore import bucket_reads, shard_works, shards
from dsort.service.aistore.shards import InlineTransforms
from dsort.service.objects import processes
from dsort.service.objects.shard_looks import UnsatisfiableRangeError, parse_range
from tests.support.datasets import Member, Shard, read_shard, write_shards
from tests.support.refusals import raises
from tests.support.service_here import ServiceHere, service_here
from tests.support.service_process import await_that

CONTENT = bytes(range(256)) * 9000
SHARD = Shard(tuple(Member(f"k{i}.{e}", b"%d" % i) for i in range(4) for e in ("cls", "txt")))
STEPS = {"steps": [{"filter": 'key != "k2"'}, {"fields": {"keep": ["cls"]}}]}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as opened:
        images = opened.service.config.run.root / "images"
        (images / "deep").mkdir(parents=True)
        (images / "deep" / "a b.bin").write_bytes(CONTENT)
        write_shards(images, {"s-0.tar": SHARD})
        yield opened


def get(here: ServiceHere, path: str, **headers: str) -> httpx.Response:
    answer: httpx.Response = here.client.get(f"/v1/objects/{path}", headers=headers)
    return answer


def test_objects_are_sent_whole_and_in_ranges(here: ServiceHere) -> None:
    whole = get(here, "images/deep/a%20b.bin")
    assert (whole.status_code, whole.content) == (200, CONTENT)
    assert whole.headers["Content-Length"] == str(len(CONTENT))
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    size = len(CONTENT)
    for asked, (start, stop) in {
        "bytes=0-9": (0, 10),
        "bytes=100-": (100, size),
        "bytes=-7": (size - 7, size),
        f"bytes={size - 1}-{size + 100}": (size - 1, size),
    }.items():
        part = get(here, "images/deep/a%20b.bin", Range=asked)
        assert (part.status_code, part.content) == (206, CONTENT[start:stop]), asked
        assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
    behind = get(here, "images/deep/a%20b.bin", Range=f"bytes={size}-")
    assert (behind.status_code, behind.headers["Content-Range"]) == (416, f"bytes */{size}")
    known = whole.headers["ETag"]
    assert get(here, "images/deep/a%20b.bin", **{"If-None-Match": known}).status_code == 304
    other = get(here, "images/deep/a%20b.bin", **{"If-Range": '"x"', "Range": "bytes=0-1"})
    assert (other.status_code, len(other.content)) == (200, size)
    head = here.client.head("/v1/objects/images/deep/a%20b.bin")
    assert (head.headers["Content-Length"], head.headers["ETag"]) == (str(size), known)
    assert head.content == b""


def test_a_bucket_is_named_as_in_a_spec_or_as_aistore_names_it(here: ServiceHere) -> None:
    root = here.service.config.run.root
    for path in (
        "images/deep/a b.bin",
        "images%2Fdeep/a b.bin",
        "file%3A%2F%2F" + str(root).replace("/", "%2F") + "%2Fimages/deep/a b.bin",
        "images/deep/a b.bin?provider=ais",
    ):
        assert get(here, path).content == CONTENT, path
    assert get(here, "images/deep/a b.bin?provider=aws").status_code == 403


NOWHERE = {
    (404,): ("images/none.tar", "nowhere/x.tar"),
    (400,): (
        *("images/..%2F..%2Fservice.db", "images/.dsort/x/manifest.json", f"images/{'a' * 9000}"),
        *("images/s-0.tar?transform=..%2Fx", "images/s-0.tar?transform=none"),
        *("images/s-0.tar?transform=a&etl_name=b", "images/deep/a%20b.bin?transform=slim"),
    ),
    (400, 404, 405): ("images/%2e%2e/%2e%2e/service.db", "%2e%2e/service.db"),
    (400, 403): (
        *("..%2F/service.db", "images%2F..%2F..%2F/service.db", "-/x.tar", "pipe%3Acat/x.tar"),
        ".dsort/x/manifest.json",
    ),
    (400, 403, 405): ("%2Fetc/passwd",),
    (403,): (
        *("file%3A%2F%2F%2Fetc/passwd", "s3%3A%2F%2Fsecret/x.tar"),
        "http%3A%2F%2F169.254.169.254/latest",
    ),
    (400, 404): ("images/%00", "images/%ff", "images/a%0ab"),
    (404, 502): ("images/deep", "images/pipe"),
    (403, 502): ("images/link.bin",),
}
"""Paths by the statuses that answer them."""


def test_names_of_enemies_lead_nowhere(here: ServiceHere) -> None:
    images = here.service.config.run.root / "images"
    secret = images.parent.parent / "service.db"
    assert secret.exists()
    (images / "link.bin").symlink_to(secret)
    os.mkfifo(images / "pipe")
    for statuses, paths in NOWHERE.items():
        for path in paths:
            answer = get(here, path)
            assert answer.status_code in statuses, (path, answer.text)
            assert "application/problem+json" in answer.headers["Content-Type"], path
            assert b"SQLite" not in answer.content, path


def test_ranges_are_read_as_http_means_them() -> None:
    assert parse_range(None, 10) is None
    for several_or_none in ("bytes=0-1,3-4", "bytes=", "bytes=5-2", "lines=0-1", "bytes=a-b", "x"):
        assert parse_range(several_or_none, 10) is None
    assert parse_range("bytes=2-5", 10) == (2, 6)
    assert parse_range("bytes=-99", 10) == (0, 10)
    for none in ("bytes=10-", "bytes=-0", "bytes=99999999999-"):
        with pytest.raises(UnsatisfiableRangeError):
            parse_range(none, 10)
    with pytest.raises(UnsatisfiableRangeError):
        parse_range("bytes=0-", 0)


def test_a_shard_is_transformed_on_its_way_out_as_the_job_would(
    here: ServiceHere, tmp_path: Path
) -> None:
    import dsort

    assert here.client.put("/v1/transforms/slim", json=STEPS).status_code == 201
    sent = get(here, "images/s-0.tar?transform=slim")
    assert sent.status_code == 200, sent.text
    assert [each.name for each in read_shard(sent.content)] == ["k0.cls", "k1.cls", "k3.cls"]
    assert sent.headers["Dsort-Transform"] == "slim@1"
    spec = {"input_bck": "images", "output_bck": "out", "keep_shards": True, "transform": STEPS}
    root = here.service.config.run.root
    dsort.run(spec, options=dsort.RunOptions(root=root, workers=1))
    assert (root / "out" / "s-0.tar").read_bytes() == sent.content
    known = {"If-None-Match": sent.headers["ETag"]}
    assert get(here, "images/s-0.tar?etl_name=slim@1", **known).status_code == 304
    here.client.put("/v1/transforms/slim", json={"steps": [{"sample": {"fraction": 0.5}}]})
    head = here.client.head("/v1/objects/images/s-0.tar?transform=slim")
    assert head.headers["Dsort-Transform"] == "slim@2"
    assert head.headers["ETag"] != sent.headers["ETag"]
    assert list((tmp_path / "state" / "scratch").iterdir()) == []  # nothing is left


def test_a_torn_shard_is_not_transformed(here: ServiceHere) -> None:
    here.client.put("/v1/transforms/slim", json=STEPS)
    (here.service.config.run.root / "images" / "torn.tar").write_bytes(b"\1" * 700)
    torn = get(here, "images/torn.tar?transform=slim")
    assert torn.status_code == 422, torn.text
    assert "torn.tar" in torn.json()["detail"]


def test_a_shard_that_changes_meanwhile_is_not_sent_as_what_it_was(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.client.put("/v1/transforms/slim", json=STEPS)
    images, run = here.service.config.run.root / "images", InlineTransforms.run

    async def run_late(*asked: Any) -> Any:
        write_shards(images, {"s-0.tar": Shard(SHARD.members[:2])})
        return await run(*asked)

    with monkeypatch.context() as patched:
        patched.setattr(InlineTransforms, "run", run_late)
        changed = get(here, "images/s-0.tar?transform=slim")
    assert (changed.status_code, "changed" in changed.json()["detail"]) == (422, True)
    assert get(here, "images/s-0.tar?transform=slim").status_code == 200


def test_shards_that_are_too_large_or_too_many_are_for_jobs(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.client.put("/v1/transforms/slim", json=STEPS)
    monkeypatch.setattr(shards, "INLINE_BYTES_MAX", 10)
    assert get(here, "images/s-0.tar?transform=slim").status_code == 413
    monkeypatch.setattr(shards, "INLINE_BYTES_MAX", 1 << 30)
    monkeypatch.setattr(processes, "WAITING_MAX", 0)
    busy = get(here, "images/s-0.tar?transform=slim")
    assert (busy.status_code, "Retry-After" in busy.headers) == (429, True)


def test_a_process_that_dies_or_takes_too_long_is_reported_and_replaced(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.client.put("/v1/transforms/slim", json=STEPS)
    with monkeypatch.context() as patched:
        patched.setattr(shards, "RUN_S_MAX", 0.0)
        slow = get(here, "images/s-0.tar?transform=slim")
        assert (slow.status_code, "took longer" in slow.json()["detail"]) == (422, True)
    forks = here.service.shards.forks.process
    assert forks is not None
    forks.kill()
    forks.wait()
    assert get(here, "images/s-0.tar?transform=slim").status_code == 200
    scratch = here.service.config.scratch_dir
    assert scratch is not None
    await_that(lambda: list(scratch.iterdir()) == [])


FILES = {"k0.cls": b"0", "deep/k0.jpg": b"jpeg" * 1000, "k1.cls": b"", "ü \n.txt": b"odd"}
ARCHIVES = 1 << 3


def tar_of(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        directory = tarfile.TarInfo("directory")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
    return written.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return written.getvalue()


SHARDS = {"s.tar": tar_of(FILES), "s.tar.gz": gzip.compress(tar_of(FILES)), "s.zip": zip_of(FILES)}


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("members")) as opened:
        images = opened.service.config.run.root / "images"
        images.mkdir()
        for name, data in SHARDS.items():
            (images / name).write_bytes(data)
        (images / "a.txt").write_text("a line")
        yield opened


def member(archived: ServiceHere, name: str, path: str, **more: Any) -> httpx.Response:
    answer: httpx.Response = archived.client.get(
        f"/v1/objects/images/{name}", params={"archpath": path}, **more
    )
    return answer


def listed(archived: ServiceHere, **value: Any) -> dict[str, Any]:
    body = {"action": "list", "value": {"flags": str(ARCHIVES), **value}}
    answer = archived.client.request("GET", "/v1/buckets/images", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("shard", SHARDS)
def test_a_file_of_a_shard_is_sent(archived: ServiceHere, shard: str) -> None:
    for name, data in FILES.items():
        sent = member(archived, shard, name)
        assert (sent.status_code, sent.content) == (200, data), sent.text
        assert sent.headers["Content-Length"] == str(len(data))
    known = {"If-None-Match": sent.headers["ETag"]}
    assert member(archived, shard, "ü \n.txt", headers=known).status_code == 304
    assert member(archived, shard, "k0.cls", headers=known).status_code == 200
    for none in ("k0", "directory", "../k0.cls", "k0.cls/"):
        absent = member(archived, shard, none)
        assert (absent.status_code, absent.json()["message"]) == (
            404,
            f"the shard has no file {none}",
        )
    assert member(archived, shard, "").content == SHARDS[shard]  # as the SDK means all of it


def test_a_page_of_files_ends_with_a_shard_and_the_next_goes_on(
    archived: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [each["name"] for each in listed(archived)["entries"]]
    monkeypatch.setattr(bucket_reads, "_ENTRIES_MAX", 3)
    found: list[str] = []
    value: dict[str, Any] = {}
    pages = 0
    while pages == 0 or value["continuation_token"]:
        page = listed(archived, **value)
        found += [each["name"] for each in page["entries"]]
        value = {"continuation_token": page["continuation_token"], "uuid": page["uuid"]}
        pages += 1
    assert (found, pages) == (whole, 3)


def test_the_files_of_a_shard_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Contents:
        def files(self) -> Iterator[tuple[str, int]]:
            yield from ((f"{number}", 1) for number in range(5))

        def count_records(self) -> int:
            return 1

    lines = [*shard_works._list(Contents())]  # type: ignore[arg-type]
    assert [json.loads(line) for line in lines][-1] == ["4", 1]
    monkeypatch.setattr(shard_works, "FILES_MAX", 4)
    with raises(shard_works.TooLargeError, "4 files"):
        [*shard_works._list(Contents())]  # type: ignore[arg-type]
