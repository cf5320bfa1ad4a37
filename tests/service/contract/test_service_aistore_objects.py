"""Requests about buckets and objects as AIStore's own command sends them, each with its answer, in
the order of a user who makes a bucket, fills it, looks at it and removes it.

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
from tests.support.tars import tar_of

Answer = Callable[[httpx.Response], bool]
PACKED = {"Accept": "application/msgpack", "Content-Type": "application/json"}
XXHASH = xxhash.xxh64(b"content").hexdigest()


SHARD = tar_of(
    (f"9f86d081884c7d659a2f-{number}.test", bytes([number]) * 1024) for number in range(2)
)
FIRST = "9f86d081884c7d659a2f-0.test"


@dataclass(frozen=True)
class Recorded:
    """One request and its answer. ``request``: method and path; the query is ``provider=ais``, and
    what is behind ``?``. ``body``: JSON, or bytes. ``answer``: whether what was answered is
    right."""

    what: str
    request: str
    body: Any = None
    status: int = 200
    answer: Answer = lambda said: said.content == b""
    headers: dict[str, str] = field(default_factory=dict)


def listed(what: str, answer: Answer, flags: int = 0, **more: Any) -> Recorded:
    """A request for a page of the bucket, with all the fields that the command sends."""
    empty = {"uuid": "", "props": "name,size", "time_format": "", "prefix": "", "start_after": ""}
    rest = {"continuation_token": "", "sid": "", "flags": str(flags), "pagesize": 0}
    body = action("list", {**empty, **rest, **more})
    return Recorded(what, f"GET {BUCKET}", body, answer=answer, headers=PACKED)


def action(name: str, value: Any = None) -> dict[str, Any]:
    return {"action": name, "name": "", "value": value}


def removal(**value: Any) -> dict[str, Any]:
    return action("delete-listrange", {"template": "", "objnames": None, **value})


def names(*expected: str) -> Answer:
    """Whether a packed page has these entries, and is the last."""

    def check(said: httpx.Response) -> bool:
        page = msgpack.unpackb(said.content)
        found = [each["n"] for each in page["Entries"]]
        return found == [*expected] and page["ContinuationToken"] == ""

    return check


def says(text: str) -> Answer:
    """Whether an error has a text where the command reads it, and its status."""
    return lambda said: text in said.json()["message"] and said.json()["status"] == said.status_code


def hints(text: str) -> Answer:
    """Whether an error without a body has a text in its header."""
    return lambda said: text in said.headers["Hdr-Error"]


def holds(content: bytes) -> Answer:
    return lambda said: said.content == content


def names_in(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


def has_props(said: httpx.Response) -> bool:
    """Whether the one entry has a checksum, a time and a version, and no size."""
    (entry,) = msgpack.unpackb(said.content)["Entries"]
    is_time = re.fullmatch(r"\d\d [A-Z][a-z]{2} \d\d \d\d:\d\d UTC", entry["a"])
    return entry["cs"] == XXHASH and bool(is_time) and entry["v"].isdecimal() and "s" not in entry


def is_removal(said: httpx.Response) -> bool:
    """Whether the answer is the id of a removal, as AIStore's clients take one."""
    return re.fullmatch("rmo-[0-9a-f]{16}", said.text) is not None


def is_one_node(said: httpx.Response) -> bool:
    found = said.json()
    nodes = (found["proxy_si"], found["tmap"]["dsort"])
    here = str(said.url.copy_with(raw_path=b"")).removesuffix("/")
    return [each["public_net"]["direct_url"] for each in nodes] == [here, here]


def shows_object(said: httpx.Response) -> bool:
    found = said.headers
    return (
        (found["Content-Length"], found["Ais-Present"]) == ("7", "true")
        and found["Ais-Atime"] == found["Ais-Version"] > "17"
        and "Ais-Checksum-Type" not in found
    )


def has_checksum(said: httpx.Response) -> bool:
    found = said.headers
    return (found["Ais-Checksum-Type"], found["Ais-Checksum-Value"]) == ("xxhash2", XXHASH)


def is_transformed(said: httpx.Response) -> bool:
    return said.headers["Dsort-Transform"] == "slim@1" and names_in(said.content) == [FIRST]


REMOVED = "rmo-18ead217c4d78058"
ENDED = {"id": REMOVED, "kind": "delete-listrange", "bck": {}}
STATUS = {"kind": "delete-listrange", "uuid": REMOVED, "err": "", "aborted": False}
STATUS |= {"end_time": 0x18EAD217C4D78058}
BUCKET, OBJECT, SHARD_0 = "/v1/buckets/src", "/v1/objects/src/a.txt", "/v1/objects/src/s-0.tar"
MADE = [
    Recorded(
        "ls of a bucket that is not there: first it is looked at",
        *(f"HEAD {BUCKET}", None, 404, hints("does not exist")),
    ),
    Recorded(
        "gen-shards: is the bucket there?",
        *("GET /v1/buckets?presence=2", {"action": "list", "name": "src", "value": None}),
        answer=lambda said: said.json() == [],
    ),
    Recorded("create, and gen-shards", f"POST {BUCKET}", action("create-bck")),
    Recorded(
        "create it again",
        *(f"POST {BUCKET}", action("create-bck"), 409, says('bucket "ais://src" already exists')),
    ),
    Recorded("gen-shards: a shard", f"PUT {SHARD_0}?skip_vc=true", SHARD),
    Recorded("put a file", f"PUT {OBJECT}", b"content"),
    Recorded(
        "put --crc32c: another body came",
        *(f"PUT {OBJECT}", b"other", 400, says("crc32c")),
        headers={"ais-checksum-type": "crc32c", "ais-checksum-value": "00000000"},
    ),
    Recorded(
        "put into a bucket that is not there",
        *("PUT /v1/objects/none/a.txt", b"content", 404),
        answer=says('bucket "ais://none" does not exist'),
    ),
]
LOOKED_AT = [
    Recorded(
        "ls: all buckets",
        *("GET /v1/buckets?presence=2", action("list")),
        answer=lambda said: {"name": "src", "provider": "ais"}.items() <= said.json()[0].items(),
    ),
    Recorded(
        "ls of a bucket: first it is looked at",
        f"HEAD {BUCKET}?dntadd=true",
        answer=lambda said: json.loads(said.headers["Ais-Bucket-Props"])["provider"] == "ais",
    ),
    listed("ls of a bucket", names("a.txt", "s-0.tar")),
    listed("ls --prefix, --name-only", names("s-0.tar"), 1 << 4, prefix="s-", props="name"),
    listed(
        "ls --limit 1",
        lambda said: msgpack.unpackb(said.content)["ContinuationToken"] == "a.txt",
        pagesize=1,
    ),
    listed(
        "archive ls of a shard",
        names("s-0.tar", f"s-0.tar/{FIRST}", f"s-0.tar/{FIRST.replace('-0', '-1')}"),
        *(1 << 3,),
        prefix="s-0.tar",
    ),
    listed(
        "ls --props checksum,atime,version",
        *(has_props,),
        props="checksum,atime,version",
        prefix="a",
    ),
    Recorded(
        "ls of a virtual directory: first an object of that name is looked for",
        *("HEAD /v1/objects/src/dir/?presence=2&props=name&sln=true", None, 404),
        answer=hints("there is no object ais://src/dir/"),
    ),
    Recorded(
        "ls --summary: the command reads no summary that is not there",
        *(f"HEAD {BUCKET}?bsumm_remote=false&presence=2", None, 501, hints("summed up")),
    ),
    Recorded(
        "bucket summary",
        f"GET {BUCKET}",
        action("summary-bck", {"prefix": "", "cached": True, "present": True}),
        *(501, says("summary-bck")),
    ),
    Recorded("put --progress: is there a node?", "GET /v1/daemon?what=smap", answer=is_one_node),
    Recorded(
        "what else a node is asked for",
        *("GET /v1/daemon?what=config", None, 501, lambda said: "no AIStore cluster" in said.text),
    ),
    Recorded(
        "ls of a bucket of another cluster",
        *(f"GET {BUCKET}?namespace=@other%23", action("list"), 501, says("namespaces")),
    ),
]
READ = [
    Recorded("get", f"GET {OBJECT}", answer=holds(b"content")),
    Recorded(
        "get --checksum: the command reads it from the headers, and does not say that it will",
        f"GET {OBJECT}",
        answer=has_checksum,
        headers={"User-Agent": "ais/cli"},
    ),
    Recorded(
        "get by others: nothing is read twice",
        f"GET {OBJECT}",
        answer=lambda said: "Ais-Checksum-Type" not in said.headers,
    ),
    Recorded(
        "get --offset 2 --length 3",
        *(f"GET {OBJECT}", None, 206, holds(b"nte"), {"Range": "bytes=2-4"}),
    ),
    Recorded(
        "archive get of a file in a shard",
        f"GET {SHARD_0}?archpath={FIRST}",
        answer=holds(bytes(1024)),
    ),
    Recorded(
        "archive get of what the shard does not have",
        *(f"GET {SHARD_0}?archpath=none", None, 404, says("the shard has no file none")),
    ),
    Recorded(
        "archive get --archregx: several files at once",
        *(f"GET {SHARD_0}?archregx=test&archmode=suffix", None, 501, says("not sent at once")),
    ),
    Recorded(
        "get through an ETL, which is a named transform",
        f"GET {SHARD_0}?etl_name=slim",
        answer=is_transformed,
    ),
    Recorded(
        "object show through an ETL: the length is not known",
        f"HEAD {SHARD_0}?etl_name=slim",
        answer=lambda said: "Content-Length" not in said.headers,
    ),
    Recorded(
        "get through an ETL that is not there",
        *(f"GET {SHARD_0}?etl_name=none", None, 400, says("there is no transform none")),
    ),
    Recorded(
        "get of what is not there",
        *("GET /v1/objects/src/none", None, 404, says("there is no object ais://src/none")),
    ),
    Recorded("object show", f"HEAD {OBJECT}?presence=1&props=name,size", answer=shows_object),
    Recorded(
        "object show, with a checksum",
        f"HEAD {OBJECT}?presence=1&props=name,size,checksum,atime",
        answer=lambda said: len(said.headers["Ais-Checksum-Value"]) == 16,
    ),
]
DECLINED = [
    Recorded(
        "archive put --append: no object is written in its place",
        f"PUT {SHARD_0}?archpath=more.txt&archmime=.tar",
        *(b"more", 501, says("archmime, archpath")),
    ),
    Recorded(
        "put --chunk-size: an upload that goes on",
        *(f"PUT {OBJECT}?append_type=append&append_handle=", b"more", 501, says("append")),
    ),
    Recorded(
        "object evict: an object that is stored here is stored nowhere else",
        f"DELETE {OBJECT}",
        {"action": "evict-listrange", "name": "src/a.txt", "value": None},
        *(501, says("remove")),
    ),
    Recorded("get of an object that nothing has changed", f"GET {SHARD_0}", answer=holds(SHARD)),
    Recorded(
        "cp: of a bucket",
        f"POST {BUCKET}?bck_to=ais/@%23/dst/",
        *(action("copy-bck", {"prefix": ""}), 400, says("copy-bck")),
    ),
]
FILES = ("a.txt", "b-1.txt", "b-2.txt", "b-3.txt", "d/e.txt", "d/f/g.txt", "d/f/h.txt")
TAKEN_AWAY = [
    Recorded("object rm", f"DELETE {OBJECT}"),
    Recorded("object rm of it again", f"DELETE {OBJECT}", None, 404, says("ais://src/a.txt")),
    Recorded("object rm of the shard", f"DELETE {SHARD_0}"),
    *(Recorded(f"put {name}", f"PUT /v1/objects/src/{name}", b"content") for name in FILES),
    Recorded(
        "object rm --list: a name that requests do not change, and none is removed",
        f"DELETE {BUCKET}",
        *(removal(objnames=["a.txt", ".ssh/id"]), 400, says("begins with a dot")),
    ),
    Recorded(
        "object rm --list: no list",
        *(f"DELETE {BUCKET}", removal(objnames="a.txt"), 400, says("is no list of names")),
    ),
    Recorded(
        "object rm --list: one of the names is not there",
        *(f"DELETE {BUCKET}", removal(objnames=["a.txt", "none.txt"]), 200, is_removal),
    ),
    Recorded(
        "object rm --template",
        *(f"DELETE {BUCKET}", removal(template="b-{0..2}.txt"), 200, is_removal),
    ),
    Recorded(
        "object rm --prefix --nr: what is below the virtual directory stays",
        *(f"DELETE {BUCKET}", removal(template="d/", **{"non-recurs": True}), 200, is_removal),
    ),
    listed("ls of what is left", names("b-3.txt", "d/f/g.txt", "d/f/h.txt")),
    Recorded("object rm --prefix", f"DELETE {BUCKET}", removal(template="d/"), 200, is_removal),
    Recorded(
        "object rm --prefix --wait",
        *("GET /v1/cluster?what=status", ENDED, 200, lambda said: said.json() == STATUS),
    ),
    Recorded(
        "object rm --prefix --progress",
        *("GET /v1/cluster?what=qryxstats", ENDED),
        answer=lambda said: [each["is_idle"] for each in said.json()["dsort"]] == [True],
    ),
    Recorded(
        "object rm of a bucket that is not there",
        *("DELETE /v1/buckets/none", removal(template="d/"), 404),
        answer=says('bucket "ais://none" does not exist'),
    ),
    Recorded(
        "rmb, and gen-shards --cleanup: with the objects in it",
        *(f"DELETE {BUCKET}", action("destroy-bck")),
    ),
    Recorded(
        "rmb of it again",
        *(f"DELETE {BUCKET}", action("destroy-bck"), 404),
        answer=says('bucket "ais://src" does not exist'),
    ),
]


def test_the_recorded_requests_have_their_answers_one_after_the_other(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:
        TransformStore(here.service.database).put("slim", {"steps": [{"slice": "0:1"}]}, "ada")
        for row in (*MADE, *LOOKED_AT, *READ, *DECLINED, *TAKEN_AWAY):
            method, _, path = row.request.partition(" ")
            if not path.startswith(("/v1/daemon", "/v1/cluster")):
                path += ("&" if "?" in path else "?") + "provider=ais"
            raw = row.body if isinstance(row.body, bytes | None) else json.dumps(row.body)
            said = here.client.request(method, path, headers=row.headers, content=raw)
            assert said.status_code == row.status, (row.what, said.text)
            assert row.answer(said), (row.what, said.text)
