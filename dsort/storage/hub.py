"""Datasets of the Hugging Face Hub as buckets that are only read.

The Hub lists the files of a commit, and redirects readers of a large file to a server that has its
bytes. A bucket reads one commit only: the commit that its revision named when the bucket was first
used.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote, urljoin

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import (
    ChangedInputError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.bucket import ObjectInfo
from dsort.storage.hub_address import HUB_ENDPOINT, HUB_FORM, HUB_PATH, HUB_WRITE_HINT
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import (
    Fetched,
    KeyPrefix,
    ObjectBucket,
    PreconditionError,
    checked,
    meaning_of_status,
    one_line,
)
from dsort.storage.redirects import (
    Reply,
    RuledWeb,
    WebBody,
    WebErrors,
    is_safe_place,
    origin_of,
)
from dsort.storage.ref import BucketRef, BucketTextError, checked_endpoint
from dsort.storage.transport import Transport

PAGE_BYTES_MAX: Final = 32 << 20
PAGES_MAX: Final = 20_000
_OBJECT_BYTES_MAX: Final = 1 << 50
_RATE_WINDOW_S: Final = 300.0
"""The Hub counts requests in windows of five minutes, and may ask to wait for the next one."""
_MOVED_S: Final = 600.0
"""The seconds for which the address of a file's bytes is used again. The Hub signs addresses for an
hour."""
_MOVED_MAX: Final = 4096
_TOKEN_BYTES_MAX: Final = 4096

_OK: Final = 200
_PART: Final = 206
_COMMIT: Final = r"[0-9a-f]{40}"
_NATURAL: Final = r"[0-9]{1,19}"
_RANGE: Final = rf"bytes ({_NATURAL})-({_NATURAL})/({_NATURAL})"
_ETAG: Final = r'(?:W/)?"?([A-Za-z0-9._-]{1,128})"?'
_NEXT_PAGE: Final = r'<([^<>]*)>\s*;\s*rel="?next"?'

_TOKEN_HINTS: Final = {
    False: "set HF_TOKEN, or sign in with `hf auth login`; workers need the token, too",
    True: "see that the token (HF_TOKEN, or that of `hf auth login`) is valid and may read it",
}
"""Hints for a refused access, by whether the request had a token."""


_NO_ENTRY: Final = "EntryNotFound"
"""The commit has no such file or folder."""
_REASONS: Final[Mapping[str, tuple[type[StorageError], str, str]]] = {
    "RepoNotFound": (
        StorageAccessError,
        "there is no such dataset, or it is private",
        "check its name; for a private one, {}",
    ),
    "RevisionNotFound": (
        ObjectNotFoundError,
        "the dataset has no such revision",
        "write @ and a branch, a tag or a commit behind the name of the dataset; for a branch with "
        "a slash, write its commit",
    ),
    _NO_ENTRY: (ObjectNotFoundError, "there is no such object", ""),
    "GatedRepo": (
        StorageAccessError,
        "the dataset is gated",
        "accept its terms on its page; then {}",
    ),
    "DisabledRepo": (StorageAccessError, "the Hub has disabled the dataset", ""),
}
"""Meanings of the header X-Error-Code, which explains a status. ``{}``: a hint about the token."""


class _Lfs(Struct):
    oid: str
    size: int


class _Entry(Struct):
    """A line of a listing."""

    type: str
    path: str
    oid: str = ""
    size: int = 0
    lfs: _Lfs | None = None


class _Revision(Struct):
    sha: str


def hub_token(home: str) -> str:
    """The token of the user for the Hub at ``home``; "" if there is none, or if ``home`` is neither
    Hugging Face's Hub nor the value of the variable ``HF_ENDPOINT``: a spec must not be able to
    send the token elsewhere."""
    environment = os.environ
    if home not in (HUB_ENDPOINT, _endpoint(environment.get("HF_ENDPOINT", ""))):
        return ""
    if not is_safe_place(home):
        return ""
    token = environment.get("HF_TOKEN", "").strip()
    if not token:
        cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
        place = environment.get("HF_HOME") or f"{cache}/huggingface"
        path = environment.get("HF_TOKEN_PATH") or f"{place}/token"
        try:
            with Path(path).expanduser().open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeError, RuntimeError):  # RuntimeError: the user has no home
            return ""
    # With a line end in it, the rest of the token would be a header.
    return token if re.fullmatch(r"[!-~]+", token) else ""


def _endpoint(text: str) -> str:
    """``text`` as the settings write an endpoint; "" if ``text`` is no endpoint."""
    try:
        return checked_endpoint(text)
    except BucketTextError:
        return ""


class HubClient:
    """See :class:`~dsort.storage.objects.ObjectClient`. ``commit``: if "", it is the commit that
    the revision names when the first request is made."""

    def __init__(self, ref: BucketRef, limits: StoreLimits, commit: str = "") -> None:
        place = re.fullmatch(HUB_PATH, ref.path)
        if place is None:
            raise ObjectNotFoundError(f"bucket {ref.uri} is no dataset of the Hub", hint=HUB_FORM)
        self.uri = ref.uri
        self._repo = place["repo"]
        self._revision = place["revision"] or "main"
        self._prefix = place["prefix"] or ""
        self._keys = KeyPrefix(self._prefix)
        self._home = (ref.endpoint_url or HUB_ENDPOINT).rstrip("/")
        token = hub_token(self._home)
        self._has_token = bool(token)
        self._web = RuledWeb(
            self._home, limits, {"Authorization": f"Bearer {token}"} if token else {}
        )
        is_commit = re.fullmatch(_COMMIT, self._revision) is not None
        self._commit = commit or (self._revision if is_commit else "")
        self._lock = threading.Lock()
        self._moved: dict[ObjectInfo, tuple[str, float]] = {}

    # --- the dataset ------------------------------------------------------------------------------

    @property
    def known_commit(self) -> str:
        """The commit that all requests are about; "" if no request was made yet."""
        return self._commit

    @property
    def finding(self) -> str:
        """The request for the commit, as it completes "cannot ..."."""
        return f"find revision {self._revision} of bucket {self.uri}"

    def commit(self) -> str:
        """The commit that all requests are about."""
        with self._lock:
            if not self._commit:
                action = self.finding
                revision = quote(self._revision, safe="")
                url = f"{self._home}/api/datasets/{self._repo}/revision/{revision}"
                reply = self._asked("GET", f"{url}?expand=sha", action)
                commit: str = _parsed(reply, _Revision, action).sha
                if not re.fullmatch(_COMMIT, commit):
                    raise StorageError(f"cannot {action}: the Hub names no commit")
                self._commit = commit
            return self._commit

    def path_at(self, commit: str) -> str:
        """The path of the bucket, with ``commit`` as the revision."""
        path = f"datasets/{self._repo}@{commit}"
        return f"{path}/{self._prefix}" if self._prefix else path

    def exists(self) -> bool:
        """True. If the dataset or its revision cannot be found, an error is raised."""
        self.commit()
        return True

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All files whose names begin with ``prefix``. ``StorageError`` for a listing that has a
        name twice, an impossible name or size, or no end."""
        wanted, action = self._keys.key(prefix), f"list {prefix}* in bucket {self.uri}"
        folder = quote(wanted.rpartition("/")[0])
        start = f"{self._home}/api/datasets/{self._repo}/tree/{self.commit()}"
        url = f"{start}/{folder}?recursive=true" if folder else f"{start}?recursive=true"
        pages: set[str] = set()
        names: set[str] = set()
        while url:
            if url in pages or len(pages) == PAGES_MAX:
                raise StorageError(f"cannot {action}: the listing of the Hub has no end")
            pages.add(url)
            reply = self._web.reply(action, "GET", url, {})
            if reply.headers.get("X-Error-Code") == _NO_ENTRY:
                reply.close()
                if self._prefix and wanted.rpartition("/")[0] == self._prefix.rstrip("/"):
                    raise ObjectNotFoundError(
                        f"cannot {action}: the dataset has no folder {self._prefix}",
                        hint=f"`dsort ls hf://datasets/{self._repo}` lists its files",
                    )
                return  # there is no such folder below that of the bucket
            _check(reply, action, has_token=self._has_token)
            entries = _parsed(reply, list[_Entry], action)
            found = [
                self._listed(entry, names)
                for entry in entries
                if entry.type == "file" and entry.path.startswith(wanted)
            ]
            yield found
            url = self._next_page(url, reply, action)

    def _listed(self, entry: _Entry, names: set[str]) -> ObjectInfo:
        name = checked(self._keys.name(entry.path))
        size_bytes, etag = (
            (entry.size, entry.oid) if entry.lfs is None else (entry.lfs.size, entry.lfs.oid)
        )
        what = f"object {name} in bucket {self.uri}"
        if name in names:
            raise StorageError(f"{what} is listed twice")
        names.add(name)
        if not 0 <= size_bytes <= _OBJECT_BYTES_MAX:
            raise StorageError(f"{what} is listed with {size_bytes} bytes")
        if not re.fullmatch(_ETAG, etag):
            raise StorageError(f"{what} is listed without an etag")
        return ObjectInfo(name, size_bytes, 0, etag)

    def _next_page(self, url: str, reply: Reply, action: str) -> str:
        link = re.search(_NEXT_PAGE, reply.said.get("link", ""))
        if link is None:
            return ""
        with WebErrors(action):
            following: str = urljoin(url, link[1])
            if origin_of(following) != origin_of(self._home):
                raise StorageError(f"cannot {action}: the next page is on another server")
        return following

    # --- files ------------------------------------------------------------------------------------

    def head(self, name: str) -> ObjectInfo:
        """Size and etag of the file."""
        action = f"find {name} in bucket {self.uri}"
        # The facts are in the reply of the Hub; the server of the bytes has an ETag of its own.
        reply = self._asked("HEAD", self._url(name), action, leaves=False)
        reply.close()
        return self._info(name, reply)

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Request bytes ``start:stop``. The address to which the Hub sends readers of the file is
        used again, because the Hub limits the number of requests."""
        action = f"read {name} in bucket {self.uri}"
        wanted: dict[str, str] = {}
        if start or stop is not None:
            wanted["Range"] = f"bytes={start}-" + ("" if stop is None else str(stop - 1))
        if pinned is not None and (moved_to := self._moved_to(pinned)):
            try:
                reply = self._asked("GET", moved_to, action, wanted)
            except StorageError:
                self._moved.pop(pinned, None)  # its signature may have expired
            else:
                return self._fetched(pinned, reply, start, stop, action)
        reply = self._asked("GET", self._url(name), action, wanted)
        try:
            info = self._info(name, reply)
        except StorageError:
            reply.raw.close()
            raise
        if reply.moved_to:
            if len(self._moved) >= _MOVED_MAX:
                # All addresses go at once: they expire within minutes anyway.
                self._moved.clear()
            self._moved[info] = (reply.moved_to, time.monotonic() + _MOVED_S)
        if pinned is not None and (info.size_bytes, info.etag) != (pinned.size_bytes, pinned.etag):
            reply.raw.close()
            raise PreconditionError(f"{name} in bucket {self.uri} changed")
        return self._fetched(info, reply, start, stop, action)

    def _moved_to(self, info: ObjectInfo) -> str:
        url, until_s = self._moved.get(info, ("", 0.0))
        return url if time.monotonic() < until_s else ""

    def _fetched(
        self, info: ObjectInfo, reply: Reply, start: int, stop: int | None, action: str
    ) -> Fetched:
        """The reply with the bytes ``start:stop`` of the file ``info``. ``StorageError`` for any
        other bytes."""
        end = info.size_bytes if stop is None else stop
        problem = _wrong_bytes(reply, start, end, info.size_bytes)
        if problem:
            reply.raw.close()
            raise StorageError(f"cannot {action}: {problem}")
        return Fetched(info, WebBody(reply.raw, end - start, action))

    def _url(self, name: str) -> str:
        path = quote(self._keys.key(name))
        return f"{self._home}/datasets/{self._repo}/resolve/{self.commit()}/{path}"

    def _info(self, name: str, reply: Reply) -> ObjectInfo:
        """The facts of a file in the reply about it."""
        said, what = reply.said, f"object {name} in bucket {self.uri}"
        commit = said.get("x-repo-commit", self.commit())
        if commit != self.commit():
            raise ChangedInputError(
                f"{what} was requested at commit {self.commit()}, the Hub sent that of commit "
                f"{one_line(commit)!r}"
            )
        etag = re.fullmatch(_ETAG, said.get("x-linked-etag") or said.get("etag", ""))
        size = said.get("x-linked-size") or _size_by(reply)
        if etag is None or not re.fullmatch(_NATURAL, size):
            raise TransientStorageError(f"the Hub's reply about {what} has no size or no etag")
        return ObjectInfo(name, int(size), 0, etag[1])

    # --- requests ---------------------------------------------------------------------------------

    def _asked(
        self,
        method: str,
        url: str,
        action: str,
        headers: Mapping[str, str] | None = None,
        *,
        leaves: bool = True,
    ) -> Reply:
        """The reply to a request, if it is a success, or a redirection that is not to be
        followed."""
        reply = self._web.reply(action, method, url, headers or {}, leaves=leaves)
        _check(reply, action, has_token=self._has_token)
        return reply

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """``StorageError``: nothing is written to a dataset."""
        raise StorageError(f"bucket {self.uri} can only be read", hint=HUB_WRITE_HINT)

    create = put = put_new = put_over = delete = refuse


def _wrong_bytes(reply: Reply, start: int, end: int, size_bytes: int) -> str:
    """The reason why a reply does not have the bytes ``start:end`` of a file of ``size_bytes``; ""
    if it has these bytes."""
    headers = reply.headers
    given = re.fullmatch(_RANGE, headers.get("Content-Range", ""))
    is_whole = (start, end) == (0, size_bytes)
    if headers.get("Content-Encoding", "identity") != "identity":
        return "the bytes came in an encoding that was not asked for"
    if reply.status != (_PART if given else _OK) or not (given or is_whole):
        return "the reply has no range of the file"
    if given and tuple(map(int, given.groups())) != (start, end - 1, size_bytes):
        return (
            f"bytes {start:,} to {end:,} of {size_bytes:,} were asked for, the reply has {given[0]}"
        )
    length = headers.get("Content-Length", "")
    if length != str(end - start):
        has = f"{one_line(length)} bytes" if length else "no length"
        return f"{end - start:,} bytes were asked for, the reply has {has}"
    return ""


def _size_by(reply: Reply) -> str:
    """The size of the whole file by the last reply; "" if it is a redirection."""
    given = re.fullmatch(_RANGE, reply.headers.get("Content-Range", ""))
    if given is not None or reply.status != _OK:
        return given[3] if given else ""
    return reply.headers.get("Content-Length", "")


def _parsed(reply: Reply, kind: Any, action: str) -> Any:
    """The JSON document of a reply. ``StorageError`` if it is no ``kind``."""
    with WebErrors(action):
        try:
            return msgspec.json.decode(reply.text(PAGE_BYTES_MAX), type=kind)
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"cannot {action}: the reply does not come from the Hub: {one_line(str(error))}",
                hint="check HF_ENDPOINT, and proxies on the way to the Hub",
            ) from None


def _check(reply: Reply, action: str, *, has_token: bool) -> None:
    """Raise the error that a reply reports. ``has_token``: whether the request had a token."""
    if reply.status < 400:
        return
    reply.close()
    code = reply.headers.get("X-Error-Code", "")
    kind, reason, hint = meaning_of_status(reply.status)
    if code in _REASONS:
        kind, reason, hint = _REASONS[code]
    elif kind is StorageAccessError:
        hint = "{}"
    error = kind(f"cannot {action}: {reason}", hint=hint.replace("{}", _TOKEN_HINTS[has_token]))
    if isinstance(error, TransientStorageError):
        error.retry_after_s = _asked_wait_s(reply.headers)
    raise error


def _asked_wait_s(headers: Mapping[str, str]) -> float:
    """The seconds that the Hub asks to wait, one window at most."""
    plain = re.fullmatch(r"\s*([0-9]{1,9})\s*", headers.get("Retry-After", ""))
    window = re.search(r";\s*t=([0-9]{1,9})", headers.get("RateLimit", ""))
    asked = plain or window
    return min(float(asked[1]), _RATE_WINDOW_S) if asked else 0.0


class HubBucket(ObjectBucket):
    """A dataset of the Hub at one commit, below the prefix of ``ref`` (see
    :class:`~dsort.storage.bucket.Bucket`). It is only read."""

    def __init__(
        self,
        ref: BucketRef,
        limits: StoreLimits,
        transport: Transport | None = None,
        *,
        commit: str = "",
    ) -> None:
        """``transport``: failed requests are tried again for at least two windows of the Hub, even
        if its policy allows less."""
        self._client = HubClient(ref, limits, commit)
        given = transport or Transport(limits)
        seconds_max = max(given.policy.seconds_max, 2 * _RATE_WINDOW_S)
        policy = replace(given.policy, seconds_max=seconds_max)
        super().__init__(
            ref.uri, self._client, limits, Transport(limits, limiter=given.limiter, policy=policy)
        )
        self._ref = ref

    def __reduce__(self) -> tuple[object, ...]:
        return (_opened, (self._ref, self._limits, self._client.known_commit))

    def exists(self) -> bool:
        """See ``HubClient.exists``."""
        return self.transport.call(self._client.finding, self._client.exists)

    def at_commit(self) -> BucketRef:
        """The reference of this bucket with its commit as the revision."""
        commit = self.transport.call(self._client.finding, self._client.commit)
        return replace(self._ref, path=self._client.path_at(commit))

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """No object is ever staged."""
        return set()

    published = still_staged

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        self._client.refuse()

    stage = publish = keep_aside = put_back = discard = _refuse


def _opened(ref: BucketRef, limits: StoreLimits, commit: str) -> HubBucket:
    return HubBucket(ref, limits, commit=commit)
