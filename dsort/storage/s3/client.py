"""The requests of a bucket in S3, made by botocore: :class:`S3Client`.

The library is botocore and not obstore, because botocore takes half of the processor time to read 1
GiB into a buffer, lists buckets with odd keys (``a//b``, a control character), and has uploads that
another process can complete.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any
from weakref import WeakValueDictionary

import boto3.session
import botocore.config
import botocore.exceptions as boto
import botocore.session
from msgspec import Struct

from dsort.errors import ObjectNotFoundError, StorageError, TransientStorageError
from dsort.storage.bucket import INTERNAL_PREFIX, ObjectInfo
from dsort.storage.limit import StoreLimits
from dsort.storage.object_reader import ByteStream
from dsort.storage.objects import Fetched, KeyPrefix, ObjectErrors, PreconditionError
from dsort.storage.redirects import RuledWeb
from dsort.storage.ref import BucketRef
from dsort.storage.s3.replies import (
    S3Errors,
    check_replies,
    code_of,
    field_of,
    list_pages,
    read_listings_quickly,
    sent_on_to,
    whole_seconds_ns,
)
from dsort.storage.transport import made_once

# --------------------------------------------------------------------------------------------------
# Makes clients of S3 by boto3, once for all buckets that are reached in the same way.
#
# The forks of a process use its clients: to load boto3 and make a client takes 0.4 s of processor
# time.


DEFAULT_REGION = "us-east-1"

_CONNECT_SECONDS_MAX = 10.0
_STALL_SECONDS_MAX = 60.0  # without a byte
_INHERITED_SECONDS_MAX = 60.0


class S3Api(Struct, frozen=True, eq=False, weakref=True):
    """A client of botocore, its region, and whether parts get checksums
    (``AWS_REQUEST_CHECKSUM_CALCULATION``)."""

    client: Any
    region: str
    sends_checksums: bool


class _Inherited:
    """Clients that forks of this process take over, by the settings that reach their buckets.

    Only forks of a process with a single thread use them, because work that another thread does at
    the moment of a fork stays half-done in the fork. Forks use them only at their beginning,
    because credentials change.
    """

    def __init__(self) -> None:
        self._here: WeakValueDictionary[Hashable, S3Api] = WeakValueDictionary()
        self._before: dict[Hashable, S3Api] = {}
        self._until_s = 0.0
        self._is_alone = False
        os.register_at_fork(before=self._look, after_in_child=self._inherit)

    def _look(self) -> None:
        self._is_alone = threading.active_count() == 1

    def _inherit(self) -> None:
        self._before = dict(self._here) if self._is_alone else {}
        for api in self._before.values():
            api.client.close()  # its connections belong to the parent process; it makes new ones
        self._here = WeakValueDictionary()
        self._until_s = time.monotonic() + _INHERITED_SECONDS_MAX

    def api(self, ref: BucketRef, limits: StoreLimits) -> S3Api:
        """A client for the bucket ``ref``. In a new fork, it is the client of the parent process;
        else the client of the buckets that are opened together with this one; else a new client,
        which searches for credentials. Raises botocore's errors."""
        reached = ref.endpoint_url, ref.region, ref.profile, limits.request_seconds_max
        variables = tuple((key, each) for key, each in os.environ.items() if key.startswith("AWS_"))
        key = *reached, _connections_max(limits), variables
        if time.monotonic() > self._until_s:
            self._before.clear()
        api = self._before.get(key) or made_once(key, lambda: _make_api(ref, limits))
        self._here[key] = api
        return api


_inherited = _Inherited()


def _make_api(ref: BucketRef, limits: StoreLimits) -> S3Api:
    settings = botocore.session.Session(profile=ref.profile or None)
    wanted = settings.get_config_variable("request_checksum_calculation")
    session = boto3.session.Session(botocore_session=settings)
    region = ref.region or session.region_name or DEFAULT_REGION
    client = session.client(
        "s3",
        endpoint_url=ref.endpoint_url or None,
        region_name=region,
        # Without a given user agent, botocore would make one for each request: 6 % of its time.
        config=_config(ref, limits, user_agent=f"dsort {settings.user_agent()}"),
    )
    check_replies(client)
    read_listings_quickly(client)
    return S3Api(client, region, wanted != "when_required")


def _connections_max(limits: StoreLimits) -> int:
    """The connections of a worker, which reads one bucket and writes another."""
    return 2 * limits.requests_in_flight_max + limits.parts_in_flight_max


def _config(ref: BucketRef, limits: StoreLimits, *, user_agent: str) -> botocore.config.Config:
    s3: dict[str, object] = {
        # Hashing every byte for the signature costs 0.8 s/GiB; https protects the bytes.
        "payload_signing_enabled": False,
    }
    # Servers other than AWS seldom have a DNS name for each bucket.
    if ref.endpoint_url:
        s3["addressing_style"] = "path"
    return botocore.config.Config(
        s3=s3,
        user_agent=user_agent,
        connect_timeout=min(_CONNECT_SECONDS_MAX, limits.request_seconds_max),
        read_timeout=min(_STALL_SECONDS_MAX, limits.request_seconds_max),
        # `transport` retries, by one policy for all stores.
        retries={"total_max_attempts": 1},
        max_pool_connections=_connections_max(limits),
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


_READ_BYTES = 4 << 20  # at once; the most that is lost when a connection breaks
_COPIED_BYTES = 1 << 20  # at once, where urllib3 copies the bytes
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})")
_DELETED_MAX = 1000  # keys in one DeleteObjects, a limit of the API
NOT_OFFERED = ("NotImplemented", "501")
"""The error codes of stores for a header that they recognise and do not support."""


class _OneRead:
    """The file of a reply, whose ``readinto`` returns after one read of the connection. The
    ``readinto`` of the file itself would wait until the buffer is full, and so for ever for a
    server that sends a byte now and then."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.readinto = file.readinto1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Body:
    """The body of a GetObject.

    urllib3 reads into memory of its own, and copies: 0.1 s/GiB. So the bytes are read from the
    reply of ``http.client`` inside urllib3's reply. At the end of the bytes, the connection is
    returned to urllib3.
    """

    def __init__(self, body: Any, name: str, bucket: str) -> None:
        self._body = body
        self._errors = S3Errors(f"read {name} in bucket {bucket}")
        self._raw = getattr(body, "_raw_stream", None)
        below = getattr(self._raw, "_fp", None)
        self._below = below if isinstance(below, http.client.HTTPResponse) else None
        if self._below is not None and not self._below.chunked:
            self._below.fp = _OneRead(self._below.fp)  # type: ignore[assignment]

    def read_into(self, view: memoryview) -> int:
        with self._errors:
            if self._below is None or self._raw is None:
                copied: int = self._body.readinto(view[:_COPIED_BYTES])
                return copied
            got = self._below.readinto(view[:_READ_BYTES])
            # `http.client` closes its reply at the end of the body; the connection is free then.
            if self._below.isclosed():
                self._raw.release_conn()
        return got

    def close(self) -> None:
        self._body.close()


class S3Client:
    """One bucket of an S3 store, by botocore. See :class:`~dsort.storage.objects.ObjectClient`.

    botocore finds the credentials (environment, profile, SSO, role). No request is retried here.
    """

    def __init__(self, ref: BucketRef, limits: StoreLimits) -> None:
        self.uri = ref.uri
        self.bucket, _, prefix = ref.path.partition("/")
        self._keys = KeyPrefix(prefix)
        self._limits = limits
        self._was_seen = False
        self._sends_on = False
        with S3Errors(f"open bucket {self.uri}"):
            self._made = _inherited.api(ref, limits)
        self.api: Any = self._made.client
        self.region: str = self._made.region
        self.checks_parts = self._made.sends_checksums
        """Whether parts are sent with a CRC32C (0.04 s/GiB), so that the store refuses damaged
        parts."""

    def doing(self, action: str) -> ObjectErrors:
        """A context for a request with the purpose ``action``, such as ``read a.tar``."""
        return S3Errors(f"{action} in bucket {self.uri}")

    def target(self, name: str) -> dict[str, str]:
        """The object ``name``, as arguments for botocore."""
        return {"Bucket": self.bucket, "Key": self._keys.key(name)}

    def name_of(self, key: str) -> str:
        """The name of the object with that key."""
        return self._keys.name(key)

    def key_of(self, name: str) -> str:
        """The key of the object ``name``; or, for a prefix of names, the prefix of their keys."""
        return self._keys.key(name)

    def exists(self) -> bool:
        """Whether the bucket exists. ``StorageAccessError`` if the credentials forbid the
        request."""
        try:
            with S3Errors(f"look for bucket {self.uri}"):
                self.api.head_bucket(Bucket=self.bucket)
        except ObjectNotFoundError:
            return False
        self._was_seen = True
        return True

    def create(self) -> None:
        """Make the bucket if it does not exist. A bucket that was seen is not requested again."""
        if self._was_seen or self.exists():
            return
        where: dict[str, Any] = {}
        if self.region != DEFAULT_REGION:  # the only region that must not be named
            where = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
        with S3Errors(f"create bucket {self.uri}"):
            try:
                self.api.create_bucket(Bucket=self.bucket, **where)
            except boto.ClientError as error:
                if code_of(error) != "BucketAlreadyOwnedByYou":  # another process was faster
                    raise

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects whose names begin with ``prefix``, in the store's order, one page for each
        request."""
        with self.doing(f"list {prefix}*"):
            for page in list_pages(self.api, self.bucket, self._keys.key(prefix)):
                yield [
                    ObjectInfo(
                        self._keys.name(info.name), info.size_bytes, info.mtime_ns, info.etag
                    )
                    for info in page
                ]

    def head(self, name: str) -> ObjectInfo:
        """Size, time and etag of the object."""
        return _info(name, self.head_reply(name))

    def head_reply(self, name: str, version: str = "") -> dict[str, Any]:
        """The store's reply to a HeadObject. ``version``: "" for the present version."""
        more = {"VersionId": version} if version else {}
        with self.doing(f"find {name}"):
            reply: dict[str, Any] = self.api.head_object(**self.target(name), **more)
        return reply

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Request bytes ``start:stop``."""
        if pinned is None and self._sends_on:
            return self._fetch_as_found(name, start, stop)
        more = {"IfMatch": pinned.etag} if pinned is not None else {}
        if start or stop is not None:
            more["Range"] = f"bytes={start}-" + ("" if stop is None else str(stop - 1))
        stream: ByteStream
        with self.doing(f"read {name}"):
            try:
                reply = self.api.get_object(**self.target(name), **more)
                stream = _Body(reply["Body"], name, self.uri)
            except boto.ClientError as error:
                place = sent_on_to(error)
                if not place:
                    raise
                if pinned is None:
                    self._sends_on = True
                    return self._fetch_as_found(name, start, stop)
                head, action = partial(self.head_reply, name), f"read {name} in bucket {self.uri}"
                wanted = more.get("Range", "")
                reply, stream = self._web.body_sent_on(place, wanted, head, action)
        try:
            info = _info(name, reply, start)
        except StorageError:
            stream.close()
            raise
        if pinned is not None and (info.size_bytes, info.etag) != (pinned.size_bytes, pinned.etag):
            stream.close()  # the store does not support If-Match
            if info.etag == pinned.etag:
                raise TransientStorageError(
                    f"{name} in bucket {self.uri}: the store reports {info.size_bytes:,} bytes in "
                    f"place of {pinned.size_bytes:,}, with the same etag"
                )
            raise PreconditionError(f"{name} in bucket {self.uri} changed")
        return Fetched(info, stream)

    def _fetch_as_found(self, name: str, start: int, stop: int | None) -> Fetched:
        """The bytes of the present object, from a gateway that redirects its readers. The object
        may be replaced before ``fetch`` requests its facts, so ``fetch`` compares them with the
        facts that are requested here first."""
        try:
            return self.fetch(name, start, stop, self.head(name))
        except PreconditionError:
            text = f"{name} in bucket {self.uri} was replaced while it was opened"
            raise TransientStorageError(text) from None

    @cached_property
    def _web(self) -> RuledWeb:
        return RuledWeb(self.api.meta.endpoint_url, self._limits, {})

    def put(self, name: str, data: bytes) -> None:
        """Store a small object."""
        with self.doing(f"write {name}"):
            self.api.put_object(**self.target(name), Body=data)

    def put_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already. The object is requested first, because
        some stores ignore the condition, and some refuse it."""
        try:
            self.head(name)
        except ObjectNotFoundError:
            pass
        else:
            return False
        return self._put_if(name, data, IfNoneMatch="*")

    def put_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object in place of the object ``name``, if that has ``etag``. A store
        without such conditions stores it in any case."""
        try:
            if self._put_if(name, data, IfMatch=etag):
                return True
            if self.head(name).etag != etag or not self._refuses_what_holds:
                return False
        except ObjectNotFoundError:
            return False
        self.put(name, data)
        return True

    @cached_property
    def _refuses_what_holds(self) -> bool:
        """Whether ``If-Match`` fails even for the right ETag, as in radosgw 16. This is probed
        once, with an object of dsort's own, which no other program changes meanwhile."""
        name = f"{INTERNAL_PREFIX}condition-{secrets.token_hex(8)}"
        self.put(name, b"before")
        try:
            return not self._put_if(name, b"after it", IfMatch=self.head(name).etag)
        finally:
            self.delete([name])

    def _put_if(self, name: str, data: bytes, **condition: str) -> bool:
        """Store a small object under a condition, or without one if the store does not support
        conditions. False if the condition does not hold."""
        target = self.target(name)
        try:
            with self.doing(f"write {name}"):
                try:
                    self.api.put_object(**target, Body=data, **condition)
                except boto.ClientError as error:
                    if code_of(error) not in NOT_OFFERED:
                        raise
                    self.api.put_object(**target, Body=data)
        except PreconditionError:
            return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Missing objects are no error."""
        if len(names) == 1:
            with self.doing(f"remove {names[0]}"):
                self.api.delete_object(**self.target(names[0]))
            return
        for first in range(0, len(names), _DELETED_MAX):
            keys = [{"Key": self._keys.key(name)} for name in names[first : first + _DELETED_MAX]]
            with self.doing(f"remove {names[first]} and others"):
                reply = self.api.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True}
                )
                # The status is 200 even if some objects could not be removed.
                for failed in reply.get("Errors", []):
                    raise boto.ClientError({"Error": failed}, "DeleteObjects")


def _info(name: str, reply: dict[str, Any], start: int = 0) -> ObjectInfo:
    """The facts of the whole object in a reply. ``StorageError`` if its bytes do not begin at
    ``start``."""
    size = int(field_of(reply, "ContentLength", name))
    given = str(reply.get("ContentRange", ""))  # such as bytes 5-9/10
    begins = 0
    if given:
        match = _CONTENT_RANGE.fullmatch(given)
        if match is None:
            raise TransientStorageError(f"the store's reply about {name} has no range of bytes")
        begins, size = int(match[1]), int(match[2])
    if begins != start:
        raise StorageError(
            f"{name}: bytes from {start:,} on were asked for, the store gave those from {begins:,} "
            "on",
            hint="this store does not offer ranged reads, which dsort needs",
        )
    mtime_ns = whole_seconds_ns(field_of(reply, "LastModified", name))
    return ObjectInfo(name, size, mtime_ns, str(field_of(reply, "ETag", name)))
