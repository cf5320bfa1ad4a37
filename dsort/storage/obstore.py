"""A bucket in a store that the library obstore supports: Google's, Microsoft's, a web server."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import obstore
import obstore.exceptions
import obstore.exceptions as obs
from msgspec import Struct
from msgspec.structs import astuple, replace
from obstore.store import AzureStore, GCSStore, HTTPStore

from dsort.errors import (
    InvariantError,
    NamesTakenError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.log_lines import logger_of
from dsort.storage.bucket import COPY, Buffer, Meaning, ObjectInfo
from dsort.storage.hub_address import dataset_of_page
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import (
    ACCESS_HINT,
    CREDENTIALS_HINT,
    PRECONDITION_FAILED,
    Fetched,
    KeyPrefix,
    ObjectBucket,
    ObjectErrors,
    PreconditionError,
    StagedInStore,
    check_stored,
    checked,
    checked_token,
    meaning_of_status,
)
from dsort.storage.ref import BucketRef
from dsort.storage.transport import Transport

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, ObjectMeta, UpdateVersion, WritableFile
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        ObjectStore,
        RetryConfig,
    )

_KINDS: tuple[tuple[type[BaseException], Meaning], ...] = (
    (FileNotFoundError, Meaning(ObjectNotFoundError, "there is no such object")),
    (obs.PermissionDeniedError, Meaning(StorageAccessError, "access is denied", ACCESS_HINT)),
    (
        obs.UnauthenticatedError,
        Meaning(StorageAccessError, "the store wants credentials", CREDENTIALS_HINT),
    ),
    (obs.AlreadyExistsError, PRECONDITION_FAILED),
    (obs.PreconditionError, PRECONDITION_FAILED),
    (obs.NotModifiedError, PRECONDITION_FAILED),
    (obs.NotSupportedError, Meaning(StorageError, "the store does not offer that")),
    (obs.InvalidPathError, Meaning(StorageError, "obstore does not accept a name in the listing")),
    (ValueError, Meaning(StorageError, "obstore does not accept the name")),
)

_TEXTS: tuple[tuple[str, Meaning], ...] = (
    (
        r"token request|credential|managed identity|account (name|key)|must be specified",
        Meaning(StorageAccessError, "no usable credentials were found", CREDENTIALS_HINT),
    ),
    (r"certificate", Meaning(StorageError, "the store's certificate is not trusted here")),
    (
        r"range request|requested range|content-range|range header",
        Meaning(
            StorageError,
            "the store gave other bytes than those asked for",
            "it has to offer ranged reads",
        ),
    ),
    (
        r"error sending request|timed out|timeout|connect|reset|broken pipe|body|decod|incomplete",
        Meaning(TransientStorageError, "the connection to the store failed"),
    ),
)
"""Patterns in messages of obstore, and their meanings. The first pattern that matches counts."""


def meaning_of_obstore_error(error: BaseException) -> Meaning | None:
    """The meaning of ``error``, or None if it is no error of obstore."""
    for kind, meaning in _KINDS:
        if isinstance(error, kind):
            return meaning
    if isinstance(error, OSError):
        return Meaning(TransientStorageError, f"the connection failed ({type(error).__name__})")
    if not isinstance(error, obs.BaseError):
        return None
    text = str(error)
    status = re.search(r"status code:? (\d{3})", text)
    if status is not None:
        return meaning_of_status(int(status[1]))
    for pattern, meaning in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE):
            return meaning
    return Meaning(StorageError, "obstore failed")


ObstoreErrors = partial(ObjectErrors, meaning_of_obstore_error)
"""A context, by an action, that translates errors of obstore into ``StorageError``."""


_CHUNK_BYTES_MIN = 1 << 20  # of a stream; measured: 0.6-0.7 s/GiB from 64 KiB to 4 MiB, more above
_PAGE_OBJECTS = 1000
_MAKE_HINTS = {
    "gs": "make it: gcloud storage buckets create",
    "az": "make it: az storage container create",
}


class _Chunks:
    """The body of a reply, chunk by chunk."""

    def __init__(self, stream: BytesStream, name: str, bucket: str) -> None:
        self._stream: Iterator[Any] = iter(stream)
        self._chunk = memoryview(b"")
        self._errors = ObstoreErrors(f"read {name} in bucket {bucket}")

    def read_into(self, view: memoryview) -> int:
        if not len(self._chunk):
            with self._errors:
                self._chunk = memoryview(next(self._stream, b""))
        size = min(len(view), len(self._chunk))
        view[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def close(self) -> None:
        """Drop the stream, and with it the connection."""
        self._stream = iter(())
        self._chunk = memoryview(b"")


class ObstoreClient:
    """See :class:`~dsort.storage.objects.ObjectClient`. ``prefix``: the prefix of the bucket in
    ``store``. ``scheme``: the scheme of the bucket; with ``http`` and ``https``, objects can only
    be read.
    """

    def __init__(self, store: ObjectStore, *, uri: str, scheme: str, prefix: str = "") -> None:
        self.uri = uri
        self.store = store
        self._keys = KeyPrefix(prefix)
        self._scheme = scheme
        self._is_web = scheme in ("http", "https")

    def doing(self, action: str) -> ObjectErrors:
        """A context for a request with the purpose ``action``, such as ``read a.tar``."""
        return ObstoreErrors(f"{action} in bucket {self.uri}")

    def key(self, name: str) -> str:
        """The key of an object."""
        return self._keys.key(name)

    def exists(self) -> bool:
        """Whether the bucket can be listed. Web servers are assumed to exist."""
        if self._is_web:
            return True
        try:
            with ObstoreErrors(f"look for bucket {self.uri}"):
                next(iter(obstore.list(self.store, self._keys.key("") or None)), None)
        except ObjectNotFoundError:
            return False
        return True

    def create(self) -> None:
        """``ObjectNotFoundError`` if the bucket does not exist: dsort cannot make it, because that
        needs more than a name."""
        if not self.exists():
            raise ObjectNotFoundError(
                f"there is no bucket {self.uri}", hint=_MAKE_HINTS.get(self._scheme, "make it")
            )

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects whose names begin with ``prefix``. The names are filtered here, because
        obstore lists whole folders."""
        if self._is_web:
            dataset = dataset_of_page(self.uri)
            hint = f'write "{dataset}"' if dataset else "name the shards, by a template or a list"
            text = f"bucket {self.uri} cannot be listed: it is a web server"
            raise StorageError(text, hint=hint)
        wanted = self._keys.key(prefix)
        folder = wanted.rpartition("/")[0] or None
        with self.doing(f"list {prefix}*"):
            for page in obstore.list(self.store, folder, chunk_size=_PAGE_OBJECTS):
                yield [
                    _info(self._keys.name(meta["path"]), meta)
                    for meta in page
                    if meta["path"].startswith(wanted)
                ]

    def head(self, name: str) -> ObjectInfo:
        """Size, time and etag of the object."""
        with self.doing(f"find {name}"):
            return _info(name, obstore.head(self.store, self.key(name)))

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Request bytes ``start:stop``."""
        options: GetOptions = {}
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        if pinned is not None and not pinned.etag.startswith(_MADE_UP):
            options["if_match"] = pinned.etag
        with self.doing(f"read {name}"):
            reply = obstore.get(self.store, self.key(name), options=options)
        info = _info(name, reply.meta)
        if pinned is not None and (info.size_bytes, info.etag) != (pinned.size_bytes, pinned.etag):
            raise PreconditionError(f"{name} in bucket {self.uri} changed")
        if reply.range[0] != start:
            raise StorageError(
                f"{name} in bucket {self.uri}: bytes from {start:,} on were asked for, the store "
                f"gave those from {reply.range[0]:,} on"
            )
        return Fetched(info, _Chunks(reply.stream(_CHUNK_BYTES_MIN), name, self.uri))

    def put(self, name: str, data: bytes) -> None:
        """Store a small object."""
        self.need_writable(f"write {name}")
        with self.doing(f"write {name}"):
            obstore.put(self.store, self.key(name), data, use_multipart=False)

    def put_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already."""
        self.need_writable(f"write {name}")
        try:
            with self.doing(f"write {name}"):
                obstore.put(self.store, self.key(name), data, mode="create", use_multipart=False)
        except PreconditionError:
            return False
        return True

    def put_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object in place of the one with ``etag``. Requests the present object
        first, because the conditions of some stores use versions instead of ETags."""
        self.need_writable(f"write {name}")
        key = self.key(name)
        try:
            with self.doing(f"write {name}"):
                meta = obstore.head(self.store, key)
                if _info(name, meta).etag != etag:
                    return False
                # Google compares versions (generations), Microsoft ETags.
                known: UpdateVersion = {"e_tag": meta["e_tag"]}
                if meta["version"] is not None:
                    known["version"] = meta["version"]
                try:
                    obstore.put(self.store, key, data, mode=known, use_multipart=False)
                except (obs.NotSupportedError, NotImplementedError):
                    obstore.put(self.store, key, data, use_multipart=False)
        except (PreconditionError, ObjectNotFoundError):
            return False
        return True

    def copy(self, source: str, target: str, action: str, *, overwrite: bool) -> None:
        """Let the store copy an object. ``action``: the purpose of the copy."""
        with self.doing(action):
            obstore.copy(self.store, self.key(source), self.key(target), overwrite=overwrite)

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Missing objects are no error."""
        if names:
            self.need_writable(f"remove {names[0]}")
            with self.doing(f"remove {names[0]}"):
                try:
                    obstore.delete(self.store, [self.key(name) for name in names])
                except FileNotFoundError:  # an error in some stores
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            obstore.delete(self.store, self.key(name))

    def need_writable(self, action: str) -> None:
        """``StorageError`` for a web server."""
        if self._is_web:
            raise StorageError(
                f"cannot {action} in bucket {self.uri}: dsort only reads from web servers",
                hint="let outputs go to another bucket",
            )


def open_store(ref: BucketRef, limits: StoreLimits) -> ObjectStore:
    """obstore's store for ``ref``. obstore searches for credentials in the same places as the tools
    of Google and Microsoft; ``StorageAccessError`` if it finds none."""
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=min(10.0, limits.request_seconds_max)),
        "read_timeout": timedelta(seconds=min(60.0, limits.request_seconds_max)),
        "timeout": timedelta(days=1),  # for a whole stream, which may be read slowly
        "allow_http": ref.scheme == "http" or ref.endpoint_url.startswith("http://"),
    }
    once: RetryConfig = {"max_retries": 0}
    bucket = ref.path.partition("/")[0]
    with ObstoreErrors(f"open bucket {ref.uri}"):
        if ref.scheme == "gs":
            place: GCSConfig = {"base_url": ref.endpoint_url} if ref.endpoint_url else {}
            return GCSStore(bucket, config=place, client_options=options, retry_config=once)
        if ref.scheme == "az":
            where: AzureConfig = {"endpoint": ref.endpoint_url} if ref.endpoint_url else {}
            return AzureStore(bucket, config=where, client_options=options, retry_config=once)
        return HTTPStore(
            f"{ref.scheme}://{quote(ref.path, safe='/:')}",
            client_options=options,
            retry_config=once,
        )


def _info(name: str, meta: ObjectMeta) -> ObjectInfo:
    seconds = int(meta["last_modified"].timestamp())
    etag = meta["e_tag"] or f"{_MADE_UP}{seconds}-{meta['size']}"
    return ObjectInfo(name, meta["size"], seconds * 1_000_000_000, etag)


_MADE_UP = "time-size:"
"""The prefix of the ETags that dsort makes, from time and size, for servers that send no ETags."""


_GATHERED_BYTES = 1 << 20  # slices may be small, and each call of obstore takes time
_NO_RANGES = 1 << 62

log = logger_of("storage")


class ObstoreBucket(ObjectBucket):
    """Objects of a store (see :class:`~dsort.storage.bucket.Bucket`).

    A staged object is an object with its token as its name; for ``publish``, the store copies it.
    """

    def __init__(
        self,
        client: ObstoreClient,
        limits: StoreLimits,
        transport: Transport | None = None,
        *,
        ref: BucketRef | None = None,
    ) -> None:
        super().__init__(client.uri, client, limits, transport)
        self._client = client
        self._ref = ref

    @classmethod
    def of(
        cls, ref: BucketRef, limits: StoreLimits, transport: Transport | None = None
    ) -> ObstoreBucket:
        """The bucket of a ``gs``, ``az``, ``http`` or ``https`` reference."""
        is_web = ref.scheme in ("http", "https")
        if is_web:  # the path is a part of the store's URL; many servers do not support ranges
            limits = replace(limits, range_bytes=_NO_RANGES)
        prefix = "" if is_web else ref.path.partition("/")[2]
        client = ObstoreClient(
            open_store(ref, limits), uri=ref.uri, scheme=ref.scheme, prefix=prefix
        )
        return cls(client, limits, transport, ref=ref)

    def __reduce__(self) -> tuple[object, ...]:
        if self._ref is None:
            raise InvariantError(f"{self!r} cannot be opened anew elsewhere")
        return (ObstoreBucket.of, (self._ref, self._limits))

    def stage(
        self, token: str, *, name: str = "", size_bytes: int | None = None
    ) -> ObstoreStagedObject:
        """Prepare to store ``token``. No request is made before bytes are written."""
        checked_token(token)
        self._client.need_writable(f"write {name or token}")
        return ObstoreStagedObject(self._client, token, self._limits, self.transport)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Copy a staged object to ``name``, inside the store, and remove it.

        Without ``overwrite``, an existing ``name`` is a ``StorageError``. But an object that has
        the size of the staged object, and is not older, counts as the copy that an earlier,
        unfinished call made.
        """
        checked_token(token)
        checked(name)
        client = self._client
        log.debug("the object %s in %s gets the name %s", token, self.uri, name)
        if not receipt:
            raise ObjectNotFoundError(f"nothing was staged as {token} in bucket {self.uri}")
        size_bytes, stored_ns = _parsed(receipt)
        action = f"publish {name}"
        try:
            self.ask(action, partial(client.copy, token, name, action, overwrite=overwrite))
        except (PreconditionError, ObjectNotFoundError) as error:
            is_gone = isinstance(error, ObjectNotFoundError)
            info = self._stat_or_none(name)
            if info is None and is_gone:
                raise
            if info is None or info.size_bytes != size_bytes or info.mtime_ns < stored_ns:
                raise NamesTakenError(
                    f"{name} in bucket {self.uri} exists already", hint="remove it or rename it"
                ) from None
        check_stored(self.stat(name), size_bytes, self.uri)
        self.delete(token)

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of objects that have, under either name, the size that they had when they were
        finished."""
        return self._as_stored(
            {token: (token, name) for token, (name, _) in tokens.items()}, tokens
        )

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of objects that have their names, with the size that they had when they were
        finished."""
        return self._as_stored({token: (name,) for token, (name, _) in tokens.items()}, tokens)

    def _as_stored(
        self, places: Mapping[str, tuple[str, ...]], tokens: Mapping[str, tuple[str, str]]
    ) -> set[str]:
        """The tokens of objects that are, at one of their ``places``, as they were finished."""
        infos = self.stat_many({place for each in places.values() for place in each})
        found = set()
        for token, (_, receipt) in tokens.items():
            size_bytes, stored_ns = _parsed(receipt) if receipt else (-1, 0)
            for info in filter(None, map(infos.get, places[token])):
                if info.size_bytes == size_bytes and info.mtime_ns >= stored_ns:
                    found.add(token)
        return found

    def keep_aside(self, name: str, token: str) -> str:
        """Let the store copy ``name`` to ``token``; "" if there is no such object."""
        checked_token(token)
        info = self._stat_or_none(checked(name))
        if info is None:
            return ""
        self._copy(name, token, info.size_bytes, f"keep {name} while it is replaced")
        return COPY

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Let the store copy ``token`` to ``name``, and remove ``token``."""
        checked_token(token)
        self._copy(token, checked(name), self.stat(token).size_bytes, f"put back {name}")
        self.delete(token)

    def _copy(self, source: str, target: str, size_bytes: int, action: str) -> None:
        self.ask(action, partial(self._client.copy, source, target, action, overwrite=True))
        check_stored(self.stat(target), size_bytes, self.uri)

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Remove dsort's own objects under ``token_prefixes``. (The stores themselves remove
        uploads that were begun and never finished, after days.)"""
        self._delete_internal(token_prefixes)


class ObstoreStagedObject(StagedInStore):
    """An object on its way to the store (see :class:`~dsort.storage.bucket.StagedObject`)."""

    def __init__(
        self, client: ObstoreClient, token: str, limits: StoreLimits, transport: Transport
    ) -> None:
        super().__init__(token)
        self._client = client
        self._transport = transport
        self._token = token
        self._limits = limits
        self._writer: WritableFile | None = None
        self._buffer = bytearray()

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Write ``slices``. ``offset`` has to be where the last write ended."""
        self._check_order(offset)
        for piece in slices:
            self._buffer += piece
            self._size_bytes += len(piece)
            if len(self._buffer) >= _GATHERED_BYTES:
                self._flush()

    def finish(self) -> str:
        """Store the rest. Afterwards the object is whole, under its token."""
        if not self._receipt:
            self._flush()
            assert self._writer is not None
            with self._client.doing(f"write {self._token}"):
                self._transport.call_once(self._writer.close)
            info = self._transport.call(
                f"find {self._token} in bucket {self._client.uri}",
                partial(self._client.head, self._token),
            )
            check_stored(info, self._size_bytes, self._client.uri)
            self._receipt = json.dumps({"size_bytes": info.size_bytes, "stored_ns": info.mtime_ns})
        return self._receipt

    def close(self) -> None:
        """Release the writer. An object that was not finished is never stored."""
        self._writer = None

    def _flush(self) -> None:
        self._transport.limiter.take(len(self._buffer))
        self._transport.call_once(self._write)
        self._buffer = bytearray()  # a new one: obstore may still read the old one

    def _write(self) -> None:
        with self._client.doing(f"write {self._token}"):
            if self._writer is None:
                self._writer = obstore.open_writer(
                    self._client.store,
                    self._client.key(self._token),
                    buffer_size=self._limits.part_bytes,
                    max_concurrency=self._limits.parts_in_flight_max,
                )
            if self._buffer:
                self._writer.write(self._buffer)


class _Receipt(Struct):
    size_bytes: int
    stored_ns: int


def _parsed(receipt: str) -> tuple[int, int]:
    try:
        return astuple(msgspec.json.decode(receipt, type=_Receipt))
    except (RecursionError, msgspec.DecodeError, UnicodeEncodeError) as error:
        raise StorageError(f"not a receipt: {receipt[:100]!r}") from error
