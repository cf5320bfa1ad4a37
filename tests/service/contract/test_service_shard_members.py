"""Files in shards over HTTP: listed behind the name of their shard, and sent one by one."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

from dsort.service.aistore import bucket_reads, shard_works
from dsort.service.security.tokens import VIEWER
from tests.support.service_here import ServiceHere, service_here

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


SHARDS = {
    "s.tar": tar_of(FILES),
    "s.tar.gz": gzip.compress(tar_of(FILES)),
    "s.zip": zip_of(FILES),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("members")) as opened:
        images = opened.service.config.run.root / "images"
        images.mkdir()
        for name, data in SHARDS.items():
            (images / name).write_bytes(data)
        (images / "a.txt").write_text("a line")
        yield opened


def get(here: ServiceHere, name: str, path: str, **more: Any) -> httpx.Response:
    answer: httpx.Response = here.client.get(
        f"/v1/objects/images/{name}", params={"archpath": path}, **more
    )
    return answer


def listed(here: ServiceHere, **value: Any) -> dict[str, Any]:
    body = {"action": "list", "value": {"flags": str(ARCHIVES), **value}}
    answer = here.client.request("GET", "/v1/buckets/images", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("shard", SHARDS)
def test_a_file_of_a_shard_is_sent(here: ServiceHere, shard: str) -> None:
    for name, data in FILES.items():
        sent = get(here, shard, name)
        assert (sent.status_code, sent.content) == (200, data), sent.text
        assert sent.headers["Content-Length"] == str(len(data))
    known = {"If-None-Match": sent.headers["ETag"]}
    assert get(here, shard, "ü \n.txt", headers=known).status_code == 304
    assert get(here, shard, "k0.cls", headers=known).status_code == 200
    for none in ("k0", "directory", "../k0.cls", "k0.cls/"):
        absent = get(here, shard, none)
        assert (absent.status_code, absent.json()["message"]) == (
            404,
            f"the shard has no file {none}",
        )
    assert get(here, shard, "").content == SHARDS[shard]  # as the SDK means all of it


def test_what_is_no_such_shard_is_an_error(here: ServiceHere) -> None:
    images = here.service.config.run.root / "images"
    try:
        (images / "torn.tar").write_bytes(SHARDS["s.tar"][:700])
        torn = get(here, "torn.tar", "k0.cls")
        assert (torn.status_code, "torn.tar" in torn.json()["detail"]) == (422, True)
        body = {"action": "list", "value": {"flags": str(ARCHIVES), "prefix": "torn"}}
        assert here.client.request("GET", "/v1/buckets/images", json=body).status_code == 422
    finally:
        (images / "torn.tar").unlink()
    assert get(here, "a.txt", "x").status_code == 400
    assert get(here, "none.tar", "x").status_code == 404
    for query in ("archregx=k0&archmode=prefix", "archpath=k0.cls&transform=x", "archmode=suffix"):
        answer = here.client.get(f"/v1/objects/images/s.tar?{query}")
        assert answer.status_code in (400, 501)
    scratch = here.service.config.scratch_dir
    assert scratch is not None
    assert list(scratch.iterdir()) == []


def test_files_are_listed_behind_their_shard(here: ServiceHere) -> None:
    entries = {each["name"]: each for each in listed(here)["entries"]}
    assert entries["a.txt"] == {"name": "a.txt", "size": "6", "flags": 64}
    for shard, data in SHARDS.items():
        assert entries[shard] == {"name": shard, "size": str(len(data)), "flags": 64 | 512}
        for name, content in FILES.items():
            size = {"size": str(len(content))} if content else {}
            assert entries[f"{shard}/{name}"] == {
                "name": f"{shard}/{name}",
                **size,
                "flags": 64 | 128,
            }
    assert len(entries) == 1 + 3 * 5
    body = {"action": "list", "value": {"flags": str(ARCHIVES), "prefix": "s.zip"}}
    packed = here.client.request(
        "GET", "/v1/buckets/images", json=body, headers={"Accept": "application/msgpack"}
    )
    page = msgpack.unpackb(packed.content)
    assert [each["n"] for each in page["Entries"]] == ["s.zip", *(f"s.zip/{n}" for n in FILES)]


def test_a_page_of_files_ends_with_a_shard_and_the_next_goes_on(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [each["name"] for each in listed(here)["entries"]]
    monkeypatch.setattr(bucket_reads, "_ENTRIES_MAX", 3)
    found: list[str] = []
    value: dict[str, Any] = {}
    pages = 0
    while pages == 0 or value["continuation_token"]:
        page = listed(here, **value)
        found += [each["name"] for each in page["entries"]]
        value = {"continuation_token": page["continuation_token"], "uuid": page["uuid"]}
        pages += 1
    assert (found, pages) == (whole, 3)


def test_what_a_shard_may_have_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Contents:
        def files(self) -> Iterator[tuple[str, int]]:
            yield from ((f"{number}", 1) for number in range(5))

        def count_records(self) -> int:
            return 1

    lines = [*shard_works._list(Contents())]  # type: ignore[arg-type]
    assert [json.loads(line) for line in lines][-1] == ["4", 1]
    monkeypatch.setattr(shard_works, "FILES_MAX", 4)
    with pytest.raises(shard_works.TooLargeError, match="more than 4 files"):
        [*shard_works._list(Contents())]  # type: ignore[arg-type]


def test_a_viewer_may_look_into_what_it_may_read(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        root = here.service.config.run.root
        for name in ("images", "hidden"):
            (root / name).mkdir()
            (root / name / "s.tar").write_bytes(SHARDS["s.tar"])
        (root / "images" / "link.tar").symlink_to(root / "hidden" / "s.tar")
        token = here.service.tokens.add("eve", VIEWER, [str(root / "images")])
        headers = {"Authorization": f"Bearer {token}"}
        assert get(here, "s.tar", "k0.cls", headers=headers).content == b"0"
        assert get(here, "link.tar", "k0.cls", headers=headers).status_code in (403, 502)
        hidden = here.client.get("/v1/objects/hidden/s.tar?archpath=k0.cls", headers=headers)
        assert hidden.status_code == 403
