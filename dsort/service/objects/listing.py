"""The buckets of a service, and the objects of a bucket, a page at a time.

A page names the place where the next one begins. Until the next page is requested, the listing
itself is held for a while: finding the same place again would cost as much as all pages before it.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePath
from typing import Final, Literal
from urllib.parse import quote, unquote

from msgspec import Struct, field

from dsort.containers.registry import is_supported
from dsort.errors import ForbiddenError, SpecError, SpecProblem
from dsort.naming.names import INTERNAL_PART, is_internal
from dsort.naming.patterns import has_wildcard
from dsort.service.config import ServiceConfig
from dsort.service.objects.places import ObjectPlace
from dsort.service.security.guard import check_bucket
from dsort.service.security.policy import SpecPolicy
from dsort.service.security.tokens import Identity
from dsort.storage.addresses import parse_address
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.ref import BucketRef

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
    """A page of the objects whose names begin with ``prefix``. ``after``: the page's names come
    after this one. ``listing``: the identifier of the previous page's listing, "" for the first
    page. ``flat``: False shows all objects below a ``/`` behind the prefix as one directory."""

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
        """``SpecError`` for a prefix that no name can have, and for texts that are too long."""
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
        """The directory that stands for ``name`` in the page; "" if ``name`` itself is shown."""
        first, slash, _ = name.removeprefix(self.prefix).partition("/")
        return "" if self.flat or not slash else f"{self.prefix}{first}/"

    def goes_on(self, page: ListingPage) -> tuple[str, str, str, bool]:
        """The ``place`` of the request for the page after ``page``."""
        return page.listing, self.prefix, page.after, self.flat

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
    """``after``: where the next page begins; "" for the last one."""

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
    """Makes pages, and holds listings between them: a few, for a minute. Safe to use from many
    threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, ...], _Held] = OrderedDict()

    def page(self, bucket: Bucket, uri: str, owner: str, asked: PageAsked) -> ListingPage:
        """A page of the bucket ``uri`` for ``owner``. It has at most ``asked.size`` entries (0: the
        most that a page may have) and takes ten seconds at most. ``SpecError``,
        ``StorageError``."""
        asked.check()
        names = self._take((uri, owner, *map(str, asked.place)))
        if names is None:
            names = _behind(bucket.list(asked.prefix), asked.after)
        page = ListingPage(asked.listing or uuid.uuid4().hex)
        entries_max = min(asked.size or PAGE_MAX, PAGE_MAX)
        ends_at = self._clock() + PAGE_S_MAX
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
                self._hold((uri, owner, *map(str, asked.goes_on(page))), names)
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
    """Those of ``names``, which are in byte order, that come after ``after``."""
    last = after.encode("utf-8", "surrogateescape")
    return (each for each in names if each.name.encode("utf-8", "surrogateescape") > last)


def listed_shards(
    listings: Listings,
    place: ObjectPlace,
    *,
    text: str,
    cursor: str,
    limit: int,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Entry], str]:
    """(at least ``limit`` shards whose names contain ``text``, where the next page begins, or "" at
    the end). Fewer, if that takes long. ``SpecError``, ``StorageError``."""
    bucket, wanted, ends_at = place.opened(), text.lower(), clock() + LIST_S_MAX
    found: list[Entry] = []
    while True:
        size = NAMES_A_LISTING if wanted else max(limit - len(found), 1)
        page = listings.page(bucket, place.uri, place.client, PageAsked.at(cursor, size=size))
        found += [
            each for each in page.entries if is_supported(each.name) and wanted in each.name.lower()
        ]
        cursor = page.cursor
        if not cursor or len(found) >= limit or clock() > ends_at:
            return found, cursor


def random_shards(
    bucket: Bucket, count: int, seed: str, clock: Callable[[], float] = time.monotonic
) -> list[Entry]:
    """``count`` of the shards at random, each with equal probability, in the order of their names;
    chosen from those that are listed in ten seconds."""
    draw, ends_at, seen = random.Random(seed), clock() + LIST_S_MAX, 0
    kept: list[ObjectInfo] = []
    for info in bucket.list(""):
        if not is_supported(info.name) or is_internal(info.name):
            continue
        seen += 1
        if len(kept) < count:
            kept.append(info)
        elif (place := draw.randrange(seen)) < count:
            kept[place] = info
        if clock() > ends_at:
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
        if not has_wildcard(pattern):
            refs.append(parse_address(pattern))
    fetch = policy.fetch_policy()
    for ref in refs:
        try:
            yield check_bucket(ref, policy, fetch)
        except (ForbiddenError, SpecError):  # a directory of the service itself, or behind a link
            continue


def name_in_specs(uri: str, root: Path) -> str:
    """The bucket ``uri`` as specs name it: a directory under ``root`` by its name there."""
    path = PurePath(parse_address(uri).path) if uri.startswith("file://") else root
    return str(path.relative_to(root)) if root in path.parents else uri
