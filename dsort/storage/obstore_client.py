"""What obstore does for a bucket in Google's or Microsoft's store, or on a web server:
:class:`ObstoreClient`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
import obstore.exceptions
from obstore.store import AzureStore, GCSStore, HTTPStore

from dsort.errors import ObjectNotFoundError, StorageError
from dsort.storage.bucket import ObjectInfo
from dsort.storage.limits import StoreLimits
from dsort.storage.object_bucket import Fetched, KeyPrefix
from dsort.storage.object_errors import PreconditionError
from dsort.storage.obstore_errors import ObstoreErrors
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, ObjectMeta
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        ObjectStore,
        RetryConfig,
    )

__all__ = ["ObstoreClient", "open_store"]

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
        """The connection goes with the stream."""
        self._stream = iter(())
        self._chunk = memoryview(b"")


class ObstoreClient:
    """See :class:`~dsort.storage.object_bucket.ObjectClient`. ``prefix``: of the bucket, in
    ``store``. ``scheme`` is the bucket's; of ``http`` and ``https`` objects can be read, no more.
    """

    def __init__(self, store: ObjectStore, *, uri: str, scheme: str, prefix: str = "") -> None:
        self.uri = uri
        self.store = store
        self._keys = KeyPrefix(prefix)
        self._scheme = scheme
        self._is_web = scheme in ("http", "https")

    def doing(self, action: str) -> ObstoreErrors:
        """A context for a request that shall ``action``, such as ``read a.tar``."""
        return ObstoreErrors(f"{action} in bucket {self.uri}")

    def key(self, name: str) -> str:
        """The key of an object."""
        return self._keys.key(name)

    def exists(self) -> bool:
        """Whether the bucket can be listed. Web servers are taken to be there."""
        if self._is_web:
            return True
        try:
            with ObstoreErrors(f"look for bucket {self.uri}"):
                next(iter(obstore.list(self.store, self._keys.key("") or None)), None)
        except ObjectNotFoundError:
            return False
        return True

    def create(self) -> None:
        """``ObjectNotFoundError`` if there is none: it takes more than a name to make one."""
        if not self.exists():
            raise ObjectNotFoundError(
                f"there is no bucket {self.uri}", hint=_MAKE_HINTS.get(self._scheme, "make it")
            )

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects whose names begin with ``prefix``. obstore lists whole folders."""
        if self._is_web:
            raise StorageError(
                f"bucket {self.uri} cannot be listed: it is a web server",
                hint="name the shards, by a template or a list",
            )
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
        """What the object is."""
        with self.doing(f"find {name}"):
            return _info(name, obstore.head(self.store, self.key(name)))

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Ask for bytes ``start:stop``."""
        options: GetOptions = {}
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        if pinned is not None and not _is_made_up(pinned):
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
        """Store a small object unless there is one."""
        self.need_writable(f"write {name}")
        try:
            with self.doing(f"write {name}"):
                obstore.put(self.store, self.key(name), data, mode="create", use_multipart=False)
        except PreconditionError:
            return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; none need be there."""
        if names:
            self.need_writable(f"remove {names[0]}")
            with self.doing(f"remove {names[0]}"):
                try:
                    obstore.delete(self.store, [self.key(name) for name in names])
                except FileNotFoundError:  # some stores mind
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            obstore.delete(self.store, self.key(name))

    def need_writable(self, action: str) -> None:
        """``StorageError`` on the web."""
        if self._is_web:
            raise StorageError(
                f"cannot {action} in bucket {self.uri}: dsort only reads from web servers",
                hint="let outputs go to another bucket",
            )


def open_store(ref: BucketRef, limits: StoreLimits) -> ObjectStore:
    """obstore's store for ``ref``. It looks for credentials itself, where the tools of Google and
    Microsoft do; ``StorageAccessError`` if it sees by now that there are none."""
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=min(10.0, limits.request_seconds_max)),
        "read_timeout": timedelta(seconds=min(60.0, limits.request_seconds_max)),
        "timeout": timedelta(days=1),  # of a whole stream, however slowly it is wanted
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


def _is_made_up(info: ObjectInfo) -> bool:
    """Whether the server gave no ETag: then its time and size have to do."""
    return info.etag.startswith(_MADE_UP)
