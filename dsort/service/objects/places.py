"""The bucket or object that a request names, and whether the caller may use it; and pages of
buckets, objects and shards.

In ``/v1/records/BUCKET/NAME`` the bucket is one part of the path: a name as in a spec, or a URI
with encoded slashes (``s3%3A%2F%2Fdata``). In ``/v1/shards/BUCKET`` it is the rest of the path.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePath
from typing import Final, Literal
from urllib.parse import quote, unquote, unquote_to_bytes

from msgspec import Struct, field
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from dsort.containers.registry import is_supported
from dsort.errors import (
    ForbiddenError,
    NotFoundError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.naming.names import INTERNAL_PART, is_internal
from dsort.naming.patterns import has_wildcard
from dsort.service.config import ServiceConfig, SpecPolicy
from dsort.service.database.tables import joined_uris
from dsort.service.security.guard import check_bucket, check_object, policy_of_bucket
from dsort.service.security.spec_text import bounded_problems
from dsort.service.security.tokens import Identity
from dsort.settings import resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.spec.part import FieldError
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import parse_address

PATH_BYTES_MAX: Final = 8192


class Asking(Struct, frozen=True):
    """The caller of a request for a place, and the rules for the request. ``provider``: the
    bucket's provider, if the request names one. ``writes``: whether the request writes to the
    place."""

    identity: Identity
    config: ServiceConfig
    policy: SpecPolicy
    provider: str = ""
    writes: bool = False


class ObjectPlace(Struct, frozen=True):
    """A bucket that the caller may use, or an object in it. ``uri``: of the bucket, as in tokens.
    ``name``: "" for the bucket itself. ``asked``: the bucket as the caller names it."""

    ref: BucketRef
    uri: str
    name: str
    asking: Asking
    asked: str

    def opened(self) -> Bucket:
        """The bucket of the place. Links that lead out of a directory are never followed, because
        the token was checked for that directory."""
        run = self.asking.config.run
        ref = resolve_ref(self.ref, run.settings)
        limits = run.settings.limits(ref)
        return open_bucket(ref, root=run.root, limits=limits, policy=self.policy())

    def policy(self, file_uris: Iterable[str] = ()) -> FetchPolicy:
        """The fetch policy for this bucket alone. ``file_uris``: further files that may be read."""
        return policy_of_bucket(self.uri, self.asking.policy, file_uris)

    @property
    def client(self) -> str:
        """The name of the caller."""
        return self.asking.identity.name

    @property
    def shown_bucket(self) -> str:
        """The bucket as the caller names it, for messages, in which clients look whether the bucket
        or the object is missing."""
        provider = self.asking.provider
        return f"{provider}://{self.asked}" if provider else self.uri

    @property
    def shown(self) -> str:
        """``shown_bucket`` with the name of the object."""
        return f"{self.shown_bucket}/{self.name}"


def object_of_path(path: bytes, asking: Asking) -> ObjectPlace:
    """The object that a request names. ``path``: the path as the client sent it, from the bucket
    on. ``SpecError`` if no object can have the name; ``ForbiddenError`` if the caller may not use
    the bucket, whether it exists or not."""
    bucket, slash, name = path.partition(b"/")
    if not slash or not name:
        raise SpecError("no object is named", hint="the path ends in /BUCKET/NAME")
    ref, asked = _ref(path, bucket, asking)
    found = _text(name, "name")
    if found.endswith("/") and not asking.writes:  # a directory's name
        place = replace(bucket_of_path(bucket, asking), name=found)
        raise NotFoundError(f"there is no object {place.shown}")
    uri = check_object(ref, found, asking.policy)
    _allow(uri, asking)
    return ObjectPlace(ref, uri, found, asking, asked)


def bucket_of_path(path: bytes, asking: Asking) -> ObjectPlace:
    """The bucket that the path of a request names; errors as for ``object_of_path``."""
    ref, asked = _ref(path, path, asking)
    uri = check_bucket(ref, asking.policy)
    _allow(uri, asking)
    return ObjectPlace(ref, uri, "", asking, asked)


def _ref(path: bytes, bucket: bytes, asking: Asking) -> tuple[BucketRef, str]:
    if len(path) > PATH_BYTES_MAX:
        raise SpecError(f"the path has more than {PATH_BYTES_MAX:,} bytes")
    ais_is_there = asking.config.run.settings.ais_is_there
    text = _text(bucket, "bucket")
    given: object = {"name": text, "provider": asking.provider} if asking.provider else text
    with bounded_problems():
        try:
            return parse_bucket(given, ais_is_there=ais_is_there), text
        except FieldError as error:
            problems = [replace(each, path="bucket") for each in error.problems]
            raise SpecError(problems) from None
        except ValueError as error:
            raise SpecError([SpecProblem("bucket", str(error))]) from None


def _allow(uri: str, asking: Asking) -> None:
    identity = asking.identity
    may = identity.may_write if asking.writes else identity.may_read
    if not may(joined_uris([uri])):
        what = "output" if asking.writes else "input"
        raise ForbiddenError(
            f"the token of {identity.name} is not for the {what} {uri}",
            hint="`dsort token ls` shows the buckets of each token",
        )


def _text(part: bytes, field: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise SpecError([SpecProblem(field, "is not UTF-8")]) from None


def sent_path(request: HTTPConnection) -> bytes:
    """The path of a request as the client sent it. In the path that the web server decodes, encoded
    slashes look like other slashes."""
    path: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return path.partition(b"?")[0]


@contextmanager
def missing(place: ObjectPlace) -> Iterator[None]:
    """Turns the error of a missing object or bucket into a 404."""
    try:
        yield
    except ObjectNotFoundError:
        if not place.name:
            raise NotFoundError(f'bucket "{place.shown_bucket}" does not exist') from None
        raise NotFoundError(f"there is no object {place.shown}") from None


BUCKETS_MAX: Final = 10_000
PAGE_MAX: Final = 10_000
PAGE_S_MAX: Final = 10.0
SHARDS_MAX: Final = 200
NAMES_A_LISTING: Final = 1_000
LIST_S_MAX: Final = 10.0
HELD_MAX: Final = 8  # the listing of a flat directory takes 300 bytes a name
HELD_S_MAX: Final = 60.0
TEXT_BYTES_MAX: Final = 8192
CURSOR_CHARACTERS_MAX: Final = 3 * TEXT_BYTES_MAX + 64


class PageAsked(Struct, frozen=True):
    """A page of the objects whose names begin with ``prefix``. ``after``: the names of the page
    come after this name. ``listing``: the identifier of the previous page's listing, "" for the
    first page. ``flat``: False shows all objects below a ``/`` behind the prefix as one
    directory."""

    prefix: str = ""
    after: str = ""
    listing: str = ""
    size: int = PAGE_MAX
    flat: bool = True

    @classmethod
    def at(cls, cursor: str, *, size: int, prefix: str = "") -> PageAsked:
        """The page that begins at the ``ListingPage.cursor`` of the page before; "": the first."""
        listing, _, quoted = cursor.partition(":")
        after = unquote(quoted, errors="surrogateescape")
        return cls(prefix=prefix, after=after, listing=listing if after else "", size=size)

    def check(self) -> None:
        """``SpecError`` for a prefix with which no name can begin, and for texts that are too
        long."""
        problems = [
            SpecProblem(name, f"has more than {TEXT_BYTES_MAX:,} bytes")
            for name, text in (("prefix", self.prefix), ("continuation_token", self.after))
            if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX
        ]
        *directories, _ = self.prefix.split("/")
        if "\0" in self.prefix or {"", ".", ".."} & {*directories}:
            problems.append(SpecProblem("prefix", "is the beginning of no name"))
        if is_internal(self.prefix):
            problems.append(
                SpecProblem("prefix", f"is under {INTERNAL_PART}, which is dsort's own")
            )
        if self.size < 0:
            problems.append(SpecProblem("pagesize", "is less than 0"))
        if problems:
            raise SpecError(problems)

    def directory_of(self, name: str) -> str:
        """The directory that the page shows in place of ``name``; "" if it shows ``name``
        itself."""
        first, slash, _ = name.removeprefix(self.prefix).partition("/")
        return "" if self.flat or not slash else f"{self.prefix}{first}/"

    @property
    def place(self) -> tuple[str, str, str, bool]:
        """The listing that the page continues, and the place in it."""
        return self.listing, self.prefix, self.after, self.flat


class Entry(Struct, frozen=True):
    """An entry of a list. ``checksum``: "" if it is not known."""

    name: str
    size_bytes: int = 0
    kind: Literal["object", "directory", "archive", "member"] = "object"
    mtime_ns: int = 0
    checksum: str = ""


class ListingPage(Struct):
    """``after``: the last name before the next page; "" on the last page."""

    listing: str
    entries: list[Entry] = field(default_factory=list)
    after: str = ""

    @property
    def cursor(self) -> str:
        """The listing and the place in it as one text; "" for the last page. The place is quoted:
        a name may be no UTF-8."""
        return self.after and f"{self.listing}:{quote(self.after, errors='surrogateescape')}"


class _Held(Struct, frozen=True):
    """A listing that is held until its next page is requested."""

    names: Iterator[ObjectInfo]
    held_at: float


class Listings:
    """Makes pages, and holds a few listings for a minute, until their next pages are requested.
    Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, ...], _Held] = OrderedDict()

    def page(self, bucket: Bucket, uri: str, owner: str, asked: PageAsked) -> ListingPage:
        """A page of the bucket ``uri`` for ``owner``. The page has at most ``asked.size`` entries
        (0: the most that a page may have) and takes ten seconds at most. ``SpecError``,
        ``StorageError``."""
        asked.check()
        names = self._take((uri, owner, *map(str, asked.place)))
        if names is None:
            names = _behind(bucket.list(asked.prefix), asked.after)
        page = ListingPage(asked.listing or uuid.uuid4().hex)
        entries_max = min(asked.size or PAGE_MAX, PAGE_MAX)
        ends_at = self._clock() + PAGE_S_MAX
        # The page before may have ended within a directory, which is shown once.
        shown = asked.directory_of(asked.after)
        for info in names:
            directory = asked.directory_of(info.name)
            if not is_internal(info.name) and not (directory and directory == shown):
                shown = directory
                page.entries.append(
                    Entry(directory, kind="directory") if directory else _entry(info)
                )
            if len(page.entries) >= entries_max or self._clock() > ends_at:
                page.after = info.name
                following = replace(asked, listing=page.listing, after=page.after)
                self._hold((uri, owner, *map(str, following.place)), names)
                break
        return page

    def _take(self, key: tuple[str, ...]) -> Iterator[ObjectInfo] | None:
        with self._lock:
            self._forget_old()
            held = self._held.pop(key, None)
        return None if held is None else held.names

    def _hold(self, key: tuple[str, ...], names: Iterator[ObjectInfo]) -> None:
        with self._lock:
            self._held[key] = _Held(names, self._clock())
            self._forget_old()

    def _forget_old(self) -> None:
        oldest_at = self._clock() - HELD_S_MAX
        while self._held and (
            len(self._held) > HELD_MAX or next(iter(self._held.values())).held_at < oldest_at
        ):
            self._held.popitem(last=False)


def _entry(info: ObjectInfo) -> Entry:
    return Entry(info.name, info.size_bytes, mtime_ns=info.mtime_ns)


def _behind(names: Iterator[ObjectInfo], after: str) -> Iterator[ObjectInfo]:
    """The ``names``, in byte order, that come after ``after``."""
    last = after.encode("utf-8", "surrogateescape")
    return (each for each in names if each.name.encode("utf-8", "surrogateescape") > last)


def listed_shards(
    listings: Listings,
    place: ObjectPlace,
    *,
    text: str,
    cursor: str,
    limit: int,
) -> tuple[list[Entry], str]:
    """(at least ``limit`` shards whose names contain ``text``, the place where the next page
    begins; "" at the end). Fewer, if that takes long. ``SpecError``, ``StorageError``."""
    bucket, wanted, ends_at = place.opened(), text.lower(), time.monotonic() + LIST_S_MAX
    found: list[Entry] = []
    while True:
        size = NAMES_A_LISTING if wanted else max(limit - len(found), 1)
        page = listings.page(bucket, place.uri, place.client, PageAsked.at(cursor, size=size))
        found += [
            each for each in page.entries if is_supported(each.name) and wanted in each.name.lower()
        ]
        cursor = page.cursor
        if not cursor or len(found) >= limit or time.monotonic() > ends_at:
            return found, cursor


def random_shards(bucket: Bucket, count: int, seed: str) -> list[Entry]:
    """``count`` random shards, each with equal probability, in the order of their names. The choice
    is among the shards that can be listed in ten seconds."""
    draw, ends_at, seen = random.Random(seed), time.monotonic() + LIST_S_MAX, 0
    kept: list[ObjectInfo] = []
    for info in bucket.list(""):
        if not is_supported(info.name) or is_internal(info.name):
            continue
        seen += 1
        if len(kept) < count:
            kept.append(info)
        elif (place := draw.randrange(seen)) < count:
            kept[place] = info
        if time.monotonic() > ends_at:
            break
    return [Entry(each.name, each.size_bytes) for each in sorted(kept, key=lambda one: one.name)]


def known_buckets(identity: Identity, config: ServiceConfig, policy: SpecPolicy) -> list[str]:
    """The URIs of buckets that the caller may read: directories in the data root, and buckets that
    the operator has allowed without a wildcard. Buckets of a store that match an allowed pattern
    are not listed."""
    found = (uri for uri in _all_buckets(config, policy) if identity.may_read(uri))
    return [*islice(dict.fromkeys(found), BUCKETS_MAX)]


def _all_buckets(config: ServiceConfig, policy: SpecPolicy) -> Iterator[str]:
    root = config.run.root
    names = sorted(each.name for each in os.scandir(root) if each.is_dir()) if root.is_dir() else ()
    refs = [BucketRef("", name) for name in names if not name.startswith(".")]
    for pattern in policy.allow:
        # A pattern may name no bucket, although the places below it are buckets, as in
        # hf://datasets/USER.
        with contextlib.suppress(SpecError):
            refs += [] if has_wildcard(pattern) else [parse_address(pattern)]
    fetch = policy.fetch_policy()
    for ref in refs:
        try:
            yield check_bucket(ref, policy, fetch)
        except (ForbiddenError, SpecError):  # the service's own directory, or behind a link
            continue


def name_in_specs(uri: str, root: Path) -> str:
    """The name of the bucket ``uri`` in specs: for a directory under ``root``, its name there."""
    path = PurePath(parse_address(uri).path) if uri.startswith("file://") else root
    return str(path.relative_to(root)) if root in path.parents else uri
