"""A stand-in for the Hugging Face Hub, as a process of its own: its API, and the server of bytes to
which it redirects readers of large files.

It follows the documentation of the Hub: pages of a listing by the header ``Link``, facts of a
file in ``X-Linked-ETag``, ``X-Linked-Size`` and ``X-Repo-Commit``, errors in ``X-Error-Code``, and
limits of requests in ``RateLimit``. A :class:`Hub` writes the directory that it serves: files of a
commit in ``USER/NAME/COMMIT/``, branches in ``USER/NAME/refs.json``, faults in ``faults.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.local_servers import LocalServer, QuietHandler, process_of_two, serve_two

TOKEN = "hf_" + "T" * 34
PAGE_ENTRIES = 4
LARGE_BYTES = 100
"""Files of at least this size are kept as Git LFS: their bytes are on the other server."""


@dataclass(frozen=True)
class Hub:
    """A running stand-in. ``data_url``: the server of bytes."""

    directory: Path
    endpoint_url: str
    data_url: str
    pid: int

    def commit(
        self, repo: str, files: Mapping[str, bytes], *, revision: str = "main", **facts: bool
    ) -> str:
        """Make ``files`` the content of a branch. Returns the commit. ``facts``: ``gated``,
        ``private``."""
        digest = hashlib.sha1(repr((repo, sorted(files.items()))).encode())
        place = self.directory / repo
        for name, data in files.items() if not (place / digest.hexdigest()).is_dir() else ():
            path = place / digest.hexdigest() / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (place / digest.hexdigest()).mkdir(parents=True, exist_ok=True)
        refs = _read(place / "refs.json")
        _write(place / "refs.json", {**refs, revision: digest.hexdigest()})
        if facts:
            _write(place / "facts.json", facts)
        return digest.hexdigest()

    def misbehave(self, **faults: Any) -> None:
        """Set ``faults`` from now on (see :class:`_Api` and :class:`_Data`), in place of all
        others."""
        _write(self.directory / "faults.json", faults)

    def forget_requests(self) -> None:
        """Begin to count requests anew."""
        (self.directory / "requests.jsonl").unlink(missing_ok=True)

    def requests(self, kind: str = "") -> list[dict[str, Any]]:
        """The requests so far, of the kind ``revision``, ``tree``, ``resolve`` or ``data``."""
        try:
            lines = (self.directory / "requests.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [each for each in found if kind in ("", each["kind"])]

    def environment(self) -> dict[str, str]:
        """The environment variables with which a process has access."""
        return {"HF_ENDPOINT": self.endpoint_url, "HF_TOKEN": TOKEN}


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value))
    beside.replace(path)  # the server may read the file now: all of the old one or of the new


@contextmanager
def hub_server(directory: Path) -> Iterator[Hub]:
    """A stand-in over ``directory``, until the end of the block."""
    with process_of_two("tests.support.hub_server", directory, {}) as (pid, api, data):
        yield Hub(directory, api, data, pid)


# --- the process ----------------------------------------------------------------------------------


class _Server(LocalServer):
    def __init__(self, handler: type[_Handler], directory: Path) -> None:
        super().__init__(handler)
        self.directory = directory
        self.other: _Server = self
        self.lock = threading.Lock()


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other
    server: _Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        self.faults = _read(self.server.directory / "faults.json")
        self.answer(parts.path)

    def answer(self, path: str) -> None:
        raise NotImplementedError

    def note(self, kind: str) -> None:
        """Write the request down."""
        line = {
            "kind": kind,
            "method": self.command,
            "path": self.path.partition("?")[0],
            "token": self.headers.get("Authorization", "").removeprefix("Bearer "),
            "range": self.headers.get("Range", ""),
        }
        with self.server.lock, (self.server.directory / "requests.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def is_due(self, fault: str) -> bool:
        """Whether ``fault``, which strikes a number of requests, strikes this one."""
        with self.server.lock:
            left = _read(self.server.directory / "faults.json").get(fault, 0)
            if left:
                changed = {**_read(self.server.directory / "faults.json"), fault: left - 1}
                _write(self.server.directory / "faults.json", changed)
            return bool(left)

    def send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), **headers}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            if len(body) > LARGE_BYTES and self.is_due("cut"):
                body, self.close_connection = body[: len(body) // 2], True
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def fail(self, status: int, code: str = "", **headers: str) -> None:
        body = json.dumps({"error": f"said of {self.path} to {self.headers}"}).encode()
        self.send(status, {"X-Error-Code": code, **headers}, body)

    def send_bytes(self, path: Path, headers: Mapping[str, str]) -> None:
        """A file, or the range of it that the request names."""
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or self.faults.get("no_ranges"):
            self.send(200, headers, data)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self.fail(416)
            return
        shown = f"bytes {start}-{stop - 1}/{len(data) + self.faults.get('total_off', 0)}"
        part = data[start : stop + self.faults.get("longer_by", 0)]
        part = part[: len(part) - self.faults.get("shorter_by", 0)]
        self.send(206, {"Content-Range": shown, **headers}, part)


class _Api(_Handler):
    """The Hub. Faults that strike a number of requests: ``busy``, ``broken``. Faults of listings:
    ``listing`` (their entries), ``endless``, ``same_page``, ``next_page`` (a URL). Faults of files:
    ``loop``, ``moved_to`` (a URL), ``commit``, ``linked_size``. ``revision``: the commit of any
    revision."""

    def answer(self, path: str) -> None:
        api = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/]+)/?(.*)", path)
        file = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        kept = re.fullmatch(r"/api/resolve-cache/datasets/([^/]+/[^/]+)/([^/]+)/(.+)", path)
        match = api or file or kept
        self.note(api[2] if api else "resolve")
        if match is None:
            self.fail(404)
            return
        repo = self.server.directory / match[1]
        if self._refuses(repo):
            return
        revision, inside = (api[3], api[4]) if api else match.groups()[1:]
        commit = _read(repo / "refs.json").get(unquote(revision), unquote(revision))
        if not (repo / commit).is_dir():
            self.fail(404, "RevisionNotFound")
        elif api and api[2] == "revision":
            commit = self.faults.get("revision", commit)
            self.send(
                200, {"Content-Type": "application/json"}, json.dumps({"sha": commit}).encode()
            )
        elif api:
            self._list(repo / commit, unquote(inside))
        elif file:
            self._resolve(match[1], repo / commit, unquote(inside))
        else:
            name = unquote(inside)
            self.send_bytes(repo / commit / name, self._facts(repo / commit, name))

    def _refuses(self, repo: Path) -> bool:
        signed_in = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        facts = _read(repo / "facts.json")
        if self.is_due("busy"):
            self.fail(429, RateLimit='"resolvers";r=0;t=41')
        elif self.is_due("broken"):
            self.fail(503)
        elif not repo.is_dir() or (facts.get("private") and not signed_in):
            self.fail(404 if signed_in else 401, "RepoNotFound")
        elif facts.get("gated") and not signed_in:
            self.fail(401, "GatedRepo")
        else:
            return False
        return True

    def _list(self, commit: Path, folder: str) -> None:
        if not (commit / folder).is_dir():
            self.fail(404, "EntryNotFound")
            return
        entries = self.faults.get("listing") or [*_entries(commit, commit / folder)]
        at = int(self.query.get("cursor", ["0"])[0])
        following = at + PAGE_ENTRIES
        link = ""
        if following < len(entries) or self.faults.get("endless") or self.faults.get("same_page"):
            following = at if self.faults.get("same_page") else following
            link = (
                f"{self.server.url}{self.path.partition('?')[0]}?recursive=true&cursor={following}"
            )
            link = f'<{self.faults.get("next_page", link)}>; rel="next"'
        body = json.dumps(entries[at : at + PAGE_ENTRIES]).encode()
        self.send(200, {"Link": link, "Content-Type": "application/json"}, body)

    def _resolve(self, repo: str, commit: Path, name: str) -> None:
        path = commit / name
        if not path.is_file():
            self.fail(404, "EntryNotFound")
            return
        facts = self._facts(commit, name)
        sent = quote(name)
        is_large = path.stat().st_size >= LARGE_BYTES
        if self.faults.get("loop"):
            self.send(302, {**facts, "Location": self.path})
        elif is_large:
            data = self.server.other.url
            there = f"{data}/{repo}/{commit.name}/{sent}?X-Sig={_signature(repo, commit.name)}"
            there = self.faults.get("moved_to", there)
            self.send(302, {**facts, "Location": there}, b"Found. Redirecting to there")
        else:
            there = f"/api/resolve-cache/datasets/{repo}/{commit.name}/{sent}"
            self.send(307, {**facts, "Location": there})

    def _facts(self, commit: Path, name: str) -> dict[str, str]:
        entry = _entry(commit, commit / name)
        facts = {
            "X-Repo-Commit": self.faults.get("commit", commit.name),
            "ETag": f'"{entry["oid"]}"',
        }
        if "lfs" in entry:
            facts["X-Linked-ETag"] = f'"{entry["lfs"]["oid"]}"'
            facts["X-Linked-Size"] = str(self.faults.get("linked_size", entry["lfs"]["size"]))
        return facts


class _Data(_Handler):
    """The server of bytes, which answers only requests for a signed address. Faults that strike a
    number of requests: ``expired``, ``cut``. Others: ``no_ranges``, ``on_to`` (a URL), and by how
    many bytes a range is wrong: ``longer_by``, ``shorter_by``, ``total_off``."""

    def answer(self, path: str) -> None:
        self.note("data")
        user, name, commit, file = unquote(path).strip("/").split("/", 3)
        given = self.query.get("X-Sig", [""])[0]
        if self.headers.get("Authorization"):
            self.fail(400)  # as stores with signed addresses do
        elif given != _signature(f"{user}/{name}", commit) or self.is_due("expired"):
            self.fail(403)
        elif "on_to" in self.faults:
            self.send(302, {"Location": self.faults["on_to"]})
        else:
            headers = {"ETag": '"of-the-store"', "Accept-Ranges": "bytes"}
            self.send_bytes(self.server.directory / user / name / commit / file, headers)


def _signature(repo: str, commit: str) -> str:
    return hashlib.sha256(f"{repo} {commit}".encode()).hexdigest()


def _entry(commit: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(commit).as_posix()
    if path.is_dir():
        return {
            "type": "directory",
            "path": name,
            "oid": hashlib.sha1(name.encode()).hexdigest(),
            "size": 0,
        }
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry = {"type": "file", "path": name, "oid": blob, "size": len(data)}
    if len(data) >= LARGE_BYTES:
        entry["lfs"] = {
            "oid": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "pointerSize": 134,
        }
    return entry


def _entries(commit: Path, folder: Path) -> Iterator[dict[str, Any]]:
    yield from (_entry(commit, path) for path in sorted(folder.rglob("*")))


def main() -> None:
    directory = Path(sys.argv[1])
    api, data = _Server(_Api, directory), _Server(_Data, directory)
    api.other = data
    serve_two(api, data)


if __name__ == "__main__":
    main()
