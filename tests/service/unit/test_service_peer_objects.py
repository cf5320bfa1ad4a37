"""Requests about buckets and objects as AIStore's own command sends them, each with its answer, in
the order of somebody who makes a bucket, fills it, looks at it and removes it.

The command itself is not ours to ship: a row has what it sends (method, path, query, headers,
body), and what it needs of the answer."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgpack
import xxhash

from dsort.service.aistore.transforms import TransformStore
from tests.support.service_here import service_here

AIS = {"provider": "ais"}
PACKED = {"Accept": "application/msgpack", "Content-Type": "application/json"}


def shard() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(2):
            info = tarfile.TarInfo(f"9f86d081884c7d659a2f-{number}.test")
            info.size = 1024
            tar.addfile(info, io.BytesIO(bytes([number]) * 1024))
    return written.getvalue()


SHARD = shard()
FIRST = "9f86d081884c7d659a2f-0.test"


@dataclass(frozen=True)
class Recorded:
    """One request and its answer. ``body``: JSON, or bytes. ``answer``: whether what was answered
    is right."""

    what: str
    method: str
    path: str
    query: dict[str, str] = field(default_factory=lambda: AIS)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    status: int = 200
    answer: Callable[[httpx.Response], bool] = lambda said: said.content == b""


def action(name: str, value: Any = None) -> dict[str, Any]:
    return {"action": name, "name": "", "value": value}


def listing(flags: int = 0, **more: Any) -> dict[str, Any]:
    empty = {"uuid": "", "props": "name,size", "time_format": "", "prefix": "", "start_after": ""}
    rest = {"continuation_token": "", "sid": "", "flags": str(flags), "pagesize": 0}
    return action("list", {**empty, **rest, **more})


def names(*expected: str) -> Callable[[httpx.Response], bool]:
    """Whether a packed page has these entries, and is the last."""

    def check(said: httpx.Response) -> bool:
        page = msgpack.unpackb(said.content)
        found = [each["n"] for each in page["Entries"]]
        return found == [*expected] and page["ContinuationToken"] == ""

    return check


def says(text: str) -> Callable[[httpx.Response], bool]:
    """Whether an error has a text where the command reads it, and its status."""
    return lambda said: text in said.json()["message"] and said.json()["status"] == said.status_code


def holds(content: bytes) -> Callable[[httpx.Response], bool]:
    return lambda said: said.content == content


def names_in(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


def has_props(entries: list[dict[str, Any]]) -> bool:
    """Whether the one entry has a checksum, a time and a version, and no size."""
    (entry,) = entries
    return (
        entry["cs"] == xxhash.xxh64(b"content").hexdigest()
        and re.fullmatch(r"\d\d [A-Z][a-z]{2} \d\d \d\d:\d\d UTC", entry["a"]) is not None
        and entry["v"].isdecimal()
        and "s" not in entry
    )


def is_removal(said: httpx.Response) -> bool:
    """Whether the answer is the id of a removal, as AIStore's clients take one."""
    return re.fullmatch("rmo-[0-9a-f]{16}", said.text) is not None


REMOVED = "rmo-18ead217c4d78058"
BUCKET, OBJECT, SHARD_0 = "/v1/buckets/src", "/v1/objects/src/a.txt", "/v1/objects/src/s-0.tar"
RECORDED = [
    Recorded(
        "ls of a bucket that is not there: first it is looked at",
        *("HEAD", BUCKET),
        status=404,
        answer=lambda said: "does not exist" in said.headers["Hdr-Error"],
    ),
    Recorded(
        "gen-shards: is the bucket there?",
        *("GET", "/v1/buckets", {**AIS, "presence": "2"}),
        body={"action": "list", "name": "src", "value": None},
        answer=lambda said: said.json() == [],
    ),
    Recorded("create, and gen-shards", "POST", BUCKET, body=action("create-bck")),
    Recorded(
        "create it again",
        *("POST", BUCKET),
        body=action("create-bck"),
        status=409,
        answer=says('bucket "ais://src" already exists'),
    ),
    Recorded(
        "gen-shards: a shard",
        *("PUT", SHARD_0, {**AIS, "skip_vc": "true"}),
        body=SHARD,
    ),
    Recorded(
        "put a file",
        *("PUT", OBJECT),
        body=b"content",
    ),
    Recorded(
        "put --crc32c: another body came",
        *("PUT", OBJECT),
        headers={"ais-checksum-type": "crc32c", "ais-checksum-value": "00000000"},
        body=b"other",
        status=400,
        answer=says("crc32c"),
    ),
    Recorded(
        "put into a bucket that is not there",
        *("PUT", "/v1/objects/none/a.txt"),
        body=b"content",
        status=404,
        answer=says('bucket "ais://none" does not exist'),
    ),
    Recorded(
        "ls: all buckets",
        *("GET", "/v1/buckets", {"presence": "2"}),
        body=action("list"),
        answer=lambda said: {"name": "src", "provider": "ais"}.items() <= said.json()[0].items(),
    ),
    Recorded(
        "ls of a bucket: first it is looked at",
        *("HEAD", BUCKET, {**AIS, "dntadd": "true"}),
        answer=lambda said: json.loads(said.headers["Ais-Bucket-Props"])["provider"] == "ais",
    ),
    Recorded(
        "ls of a bucket",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(),
        answer=names("a.txt", "s-0.tar"),
    ),
    Recorded(
        "ls --prefix, --name-only",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(1 << 4, prefix="s-", props="name"),
        answer=names("s-0.tar"),
    ),
    Recorded(
        "ls --limit 1",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(pagesize=1),
        answer=lambda said: msgpack.unpackb(said.content)["ContinuationToken"] == "a.txt",
    ),
    Recorded(
        "archive ls of a shard",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(1 << 3, prefix="s-0.tar"),
        answer=names("s-0.tar", f"s-0.tar/{FIRST}", f"s-0.tar/{FIRST.replace('-0', '-1')}"),
    ),
    Recorded("get", "GET", OBJECT, answer=holds(b"content")),
    Recorded(
        "get --checksum: the command reads it from the headers, and does not say that it will",
        *("GET", OBJECT),
        headers={"User-Agent": "ais/cli"},
        answer=lambda said: (
            (said.headers["Ais-Checksum-Type"], said.headers["Ais-Checksum-Value"])
            == ("xxhash2", xxhash.xxh64(b"content").hexdigest())
        ),
    ),
    Recorded(
        "get by others: nothing is read twice",
        *("GET", OBJECT),
        answer=lambda said: "Ais-Checksum-Type" not in said.headers,
    ),
    Recorded(
        "ls --props checksum,atime,version",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(props="checksum,atime,version", prefix="a"),
        answer=lambda said: has_props(msgpack.unpackb(said.content)["Entries"]),
    ),
    Recorded(
        "ls of a virtual directory: first an object of that name is looked for",
        *("HEAD", "/v1/objects/src/dir/", {**AIS, "presence": "2", "props": "name", "sln": "true"}),
        status=404,
        answer=lambda said: "there is no object ais://src/dir/" in said.headers["Hdr-Error"],
    ),
    Recorded(
        "ls --summary: the command reads no summary that is not there",
        *("HEAD", BUCKET, {**AIS, "bsumm_remote": "false", "presence": "2"}),
        status=501,
        answer=lambda said: "summed up" in said.headers["Hdr-Error"],
    ),
    Recorded(
        "bucket summary",
        *("GET", BUCKET),
        body=action("summary-bck", {"prefix": "", "cached": True, "present": True}),
        status=501,
        answer=says("summary-bck"),
    ),
    Recorded(
        "put --progress: does anything answer?",
        *("GET", "/v1/daemon", {"what": "smap"}),
        answer=lambda said: (
            said.json()["proxy_si"]["public_net"]["direct_url"]
            == said.json()["tmap"]["dsort"]["public_net"]["direct_url"]
            == str(said.url.copy_with(raw_path=b"")).removesuffix("/")
        ),
    ),
    Recorded(
        "what else a node is asked for",
        *("GET", "/v1/daemon", {"what": "config"}),
        status=501,
        answer=lambda said: "no AIStore cluster" in said.text,
    ),
    Recorded(
        "get --offset 2 --length 3",
        *("GET", OBJECT),
        headers={"Range": "bytes=2-4"},
        status=206,
        answer=holds(b"nte"),
    ),
    Recorded(
        "archive get of a file in a shard",
        *("GET", SHARD_0, {**AIS, "archpath": FIRST}),
        answer=holds(bytes(1024)),
    ),
    Recorded(
        "archive get of what the shard does not have",
        *("GET", SHARD_0, {**AIS, "archpath": "none"}),
        status=404,
        answer=says("the shard has no file none"),
    ),
    Recorded(
        "archive get --archregx: several files at once",
        *("GET", SHARD_0, {**AIS, "archregx": "test", "archmode": "suffix"}),
        status=501,
        answer=says("not sent at once"),
    ),
    Recorded(
        "get through an ETL, which is a named transform",
        *("GET", SHARD_0, {**AIS, "etl_name": "slim"}),
        answer=lambda said: (
            said.headers["Dsort-Transform"] == "slim@1" and names_in(said.content) == [FIRST]
        ),
    ),
    Recorded(
        "object show through an ETL: the length is not known",
        *("HEAD", SHARD_0, {**AIS, "etl_name": "slim"}),
        answer=lambda said: "Content-Length" not in said.headers,
    ),
    Recorded(
        "get through an ETL that is not there",
        *("GET", SHARD_0, {**AIS, "etl_name": "none"}),
        status=400,
        answer=says("there is no transform none"),
    ),
    Recorded(
        "get of what is not there",
        *("GET", "/v1/objects/src/none"),
        status=404,
        answer=says("there is no object ais://src/none"),
    ),
    Recorded(
        "object show",
        *("HEAD", OBJECT, {**AIS, "presence": "1", "props": "name,size"}),
        answer=lambda said: (
            (said.headers["Content-Length"], said.headers["Ais-Present"]) == ("7", "true")
            and said.headers["Ais-Atime"] == said.headers["Ais-Version"] > "17"
            and "Ais-Checksum-Type" not in said.headers
        ),
    ),
    Recorded(
        "object show, with a checksum",
        *("HEAD", OBJECT, {**AIS, "presence": "1", "props": "name,size,checksum,atime"}),
        answer=lambda said: len(said.headers["Ais-Checksum-Value"]) == 16,
    ),
    Recorded(
        "archive put --append: no object is written in its place",
        *("PUT", SHARD_0, {**AIS, "archpath": "more.txt", "archmime": ".tar"}),
        body=b"more",
        status=501,
        answer=says("archmime, archpath"),
    ),
    Recorded(
        "put --chunk-size: an upload that goes on",
        *("PUT", OBJECT, {**AIS, "append_type": "append", "append_handle": ""}),
        body=b"more",
        status=501,
        answer=says("append"),
    ),
    Recorded(
        "object evict: what is stored here is stored nowhere else",
        *("DELETE", OBJECT),
        body={"action": "evict-listrange", "name": "src/a.txt", "value": None},
        status=501,
        answer=says("remove"),
    ),
    Recorded("get of what nothing has changed", "GET", SHARD_0, answer=holds(SHARD)),
    Recorded("object rm", "DELETE", OBJECT),
    Recorded("object rm of it again", "DELETE", OBJECT, status=404, answer=says("ais://src/a.txt")),
    Recorded("object rm of the shard", "DELETE", SHARD_0),
    *(
        Recorded(f"put {name}", "PUT", f"/v1/objects/src/{name}", body=b"content")
        for name in ("a.txt", "b-1.txt", "b-2.txt", "b-3.txt", "d/e.txt", "d/f/g.txt", "d/f/h.txt")
    ),
    Recorded(
        "object rm --list: a name that requests do not change, and none is removed",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"template": "", "objnames": ["a.txt", ".ssh/id"]}),
        status=400,
        answer=says("begins with a dot"),
    ),
    Recorded(
        "object rm --list: no list",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"objnames": "a.txt"}),
        status=400,
        answer=says("is no list of names"),
    ),
    Recorded(
        "object rm --list: one of the names is not there",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"template": "", "objnames": ["a.txt", "none.txt"]}),
        answer=is_removal,
    ),
    Recorded(
        "object rm --template",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"template": "b-{0..2}.txt", "objnames": None}),
        answer=is_removal,
    ),
    Recorded(
        "object rm --prefix --nr: what is below the virtual directory stays",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"template": "d/", "objnames": None, "non-recurs": True}),
        answer=is_removal,
    ),
    Recorded(
        "ls of what is left",
        *("GET", BUCKET),
        headers=PACKED,
        body=listing(),
        answer=names("b-3.txt", "d/f/g.txt", "d/f/h.txt"),
    ),
    Recorded(
        "object rm --prefix",
        *("DELETE", BUCKET),
        body=action("delete-listrange", {"template": "d/", "objnames": None}),
        answer=is_removal,
    ),
    Recorded(
        "object rm --prefix --wait",
        *("GET", "/v1/cluster", {"what": "status"}),
        body={"id": REMOVED, "kind": "delete-listrange", "bck": {}},
        answer=lambda said: (
            said.json()
            == {
                "kind": "delete-listrange",
                "uuid": REMOVED,
                "err": "",
                "end_time": 0x18EAD217C4D78058,
                "aborted": False,
            }
        ),
    ),
    Recorded(
        "object rm --prefix --progress",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"id": REMOVED, "kind": "delete-listrange", "bck": {}},
        answer=lambda said: [each["is_idle"] for each in said.json()["dsort"]] == [True],
    ),
    Recorded(
        "object rm of a bucket that is not there",
        *("DELETE", "/v1/buckets/none"),
        body=action("delete-listrange", {"template": "d/", "objnames": None}),
        status=404,
        answer=says('bucket "ais://none" does not exist'),
    ),
    Recorded(
        "rmb, and gen-shards --cleanup: with the objects in it",
        *("DELETE", BUCKET),
        body=action("destroy-bck"),
    ),
    Recorded(
        "rmb of it again",
        *("DELETE", BUCKET),
        body=action("destroy-bck"),
        status=404,
        answer=says('bucket "ais://src" does not exist'),
    ),
    Recorded(
        "cp: of a bucket",
        *("POST", "/v1/buckets/src", {**AIS, "bck_to": "ais/@#/dst/"}),
        body=action("copy-bck", {"prefix": ""}),
        status=400,
        answer=says("copy-bck"),
    ),
    Recorded(
        "ls of a bucket of another cluster",
        *("GET", BUCKET, {**AIS, "namespace": "@other#"}),
        headers=PACKED,
        body=listing(),
        status=501,
        answer=says("namespaces"),
    ),
]


def test_the_recorded_requests_have_their_answers_one_after_the_other(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:
        TransformStore(here.service.database).put("slim", {"steps": [{"slice": "0:1"}]}, "ada")
        for row in RECORDED:
            raw = row.body if isinstance(row.body, bytes | None) else json.dumps(row.body)
            said = here.client.request(
                row.method, row.path, params=row.query, headers=row.headers, content=raw
            )
            assert said.status_code == row.status, (row.what, said.text)
            assert row.answer(said), (row.what, said.text)
