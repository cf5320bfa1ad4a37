"""A bucket of an S3 store."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions as boto
from msgspec import Struct

from dsort.errors import InvariantError, NamesTakenError, ObjectNotFoundError, StorageError
from dsort.log_lines import logger_of
from dsort.storage.bucket import INTERNAL_PREFIX
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import (
    ObjectBucket,
    PreconditionError,
    check_stored,
    checked,
    checked_token,
    common_prefix,
)
from dsort.storage.ref import BucketRef
from dsort.storage.request_counts import PROBED_AFTER, part_bytes_for
from dsort.storage.s3.client import NOT_OFFERED, S3Client
from dsort.storage.s3.copies import Copies
from dsort.storage.s3.replies import code_of, field_of, whole_seconds_ns
from dsort.storage.s3.upload import PartBuffers, Receipt, S3StagedObject, abort
from dsort.storage.transport import Transport

# --------------------------------------------------------------------------------------------------
# Whether a store supports ``If-None-Match`` when uploads are completed:
# :class:`CompletionCondition`.
#
# If it does, no request has to check, before a shard is published, that its name is free.


class CompletionCondition:
    """Probes a store once, with an object of dsort's own, after ``PROBED_AFTER`` completions: that
    takes seven requests. AWS is not probed, because it documents the condition. Several threads may
    use it at once.

    Of several completions at the same moment, AWS accepts one, and SeaweedFS all. So claims and
    leases keep jobs apart, whether or not the store supports ``If-None-Match``, which only saves
    requests."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        host = urlsplit(str(client.api.meta.endpoint_url)).hostname or ""
        is_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        self._is_heeded: bool | None = True if is_aws else None
        self._completions = 0
        self._probing = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether the store is known to support the condition."""
        return self._is_heeded or False

    def is_heeded(self, token: str) -> bool:
        """Whether this store is known to refuse a conditional completion if an object already has
        the name. ``token``: the token of the object to publish, with which the name of the probe
        begins."""
        if self._is_heeded is not None:
            return self._is_heeded
        # Another thread probes: until the result is known, names are checked by requests.
        if not self._probing.acquire(blocking=False):
            return False
        try:
            self._completions += 1
            if self._is_heeded is None and self._completions > PROBED_AFTER:
                self._is_heeded = self._probe(f"{token}.condition")
            return self._is_heeded or False
        finally:
            self._probing.release()

    def _probe(self, name: str) -> bool:
        """Try to complete an upload over an existing object. Returns whether the store refused that
        and kept the object. If a request fails, the store counts as a store without the
        condition."""
        client, target = self._client, self._client.target(name)
        before = b"before"
        try:
            client.put(name, before)
            with client.doing(f"try a condition with {name}"):
                upload = client.api.create_multipart_upload(**target)["UploadId"]
                part = client.api.upload_part(
                    **target, UploadId=upload, PartNumber=1, Body=b"after it"
                )
            try:
                with client.doing(f"try a condition with {name}"):
                    client.api.complete_multipart_upload(
                        **target,
                        UploadId=upload,
                        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
                        IfNoneMatch="*",
                    )
                is_refused = False
            except PreconditionError:
                # A store may refuse and overwrite all the same. The two contents differ in length.
                is_refused = client.head(name).size_bytes == len(before)
                with client.doing(f"abort the upload of {name}"):
                    client.api.abort_multipart_upload(**target, UploadId=upload)
            client.delete([name])
        except StorageError:
            return False
        return is_refused


_OPAQUE_ETAGS = ("ServerSideEncryption", "SSECustomerAlgorithm")
"""If a reply has one of these fields with another value than AES256, the ETag is no MD5, and is not
made from the MD5s of the parts (AWS, "Checking object integrity")."""

log = logger_of("storage")


class UnfinishedUpload(Struct, frozen=True):
    """A multipart upload that was begun and neither completed nor aborted. ``began_ns``: its
    beginning in ns since 1970."""

    name: str
    upload_id: str
    began_ns: int


class S3Bucket(ObjectBucket):
    """Objects of an S3 bucket, below the prefix of ``ref`` (see
    :class:`~dsort.storage.bucket.Bucket`).

    A staged object is a multipart upload to the final name; ``publish`` completes it. Its token is
    no name in the store.
    """

    def __init__(
        self, ref: BucketRef, limits: StoreLimits, transport: Transport | None = None
    ) -> None:
        self._client = S3Client(ref, limits)
        super().__init__(ref.uri, self._client, limits, transport)
        self._ref = ref
        self._buffers: dict[int, PartBuffers] = {}
        self._uploaders: ThreadPoolExecutor | None = None
        self._upload_lock = threading.Lock()
        self._condition = CompletionCondition(self._client)

    @property
    def surely_heeds_conditions(self) -> bool:
        """Whether publishing a name surely takes only one request, even without a probe of the
        store."""
        return self._condition.is_known

    def __reduce__(self) -> tuple[object, ...]:
        return (S3Bucket, (self._ref, self._limits))

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> S3StagedObject:
        """Prepare an upload to ``name``. No request is made before there is a part to send."""
        checked_token(token)
        checked(name)
        part_bytes = part_bytes_for(size_bytes, self._limits)
        with self._upload_lock:
            buffers = self._buffers.get(part_bytes)
            if buffers is None:
                buffers = PartBuffers(part_bytes, self._limits.parts_in_flight_max)
                self._buffers[part_bytes] = buffers
        return S3StagedObject(
            self._client, name, buffers, self._upload_pool, self.transport, size_bytes=size_bytes
        )

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Complete the upload of ``receipt``. Without ``overwrite``, ``StorageError`` if ``name``
        exists. This is checked in advance if the store may lack ``If-None-Match``."""
        checked_token(token)
        checked(name)
        if not receipt:
            raise ObjectNotFoundError(f"nothing was staged as {token} in bucket {self.uri}")
        upload = Receipt.parse(receipt)
        if upload.name != name:
            raise InvariantError(f"{upload.name} was staged, {name} is to be published")
        if not (overwrite or self._condition.is_heeded(token)) and self._is_there(upload):
            return
        try:
            if self._complete(upload, overwrite=overwrite):
                return
        except PreconditionError:
            if not self._is_there(upload):
                raise StorageError(
                    f"cannot publish {name} in bucket {self.uri}: the store reports that the name "
                    "is taken, and that no object has it"
                ) from None
        except ObjectNotFoundError:  # an earlier call may have completed it without returning
            if not self._is_result(upload):
                raise
        check_stored(self.stat(upload.name), upload.size_bytes, self.uri)

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of uploads that the store lists as unfinished, or that became objects."""
        waiting, published = self._parted(tokens)
        return waiting | published

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of uploads that became objects. An upload that the store still lists as
        unfinished has no name yet, even if an object with the same content has that name."""
        return self._parted(tokens)[1]

    def keep_aside(self, name: str, token: str) -> str:
        """Let the store keep ``name``, as a version or a copy; see ``storage.s3.copies``."""
        checked_token(token)
        return Copies(self._client, self.ask).keep(checked(name), token)

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Let the store copy the kept object to ``name``."""
        checked_token(token)
        Copies(self._client, self.ask).put_back(token, checked(name), receipt)

    def _parted(self, tokens: Mapping[str, tuple[str, str]]) -> tuple[set[str], set[str]]:
        """(tokens of uploads that wait to be completed, tokens of uploads that became objects)."""
        uploads = {
            token: Receipt.parse(receipt) for token, (_, receipt) in tokens.items() if receipt
        }
        if not uploads:
            return set(), set()
        names = common_prefix([upload.name for upload in uploads.values()])
        listed = {(each.name, each.upload_id) for each in self.unfinished_uploads(names)}
        waiting = {
            token for token, upload in uploads.items() if (upload.name, upload.upload_id) in listed
        }
        gone = sorted(uploads.keys() - waiting)
        are_results = self.pool().map(lambda token: self._is_result(uploads[token]), gone)
        return waiting, {
            token for token, is_result in zip(gone, are_results, strict=True) if is_result
        }

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Remove dsort's own objects under ``token_prefixes``; abort unfinished uploads to names
        under these prefixes, and to ``names``. If their prefixes are close, one listing covers
        both."""
        self._delete_internal(token_prefixes)
        wanted = {checked(name) for name in names}
        listed = {common_prefix(token_prefixes)}
        if wanted:
            of_names = common_prefix(wanted)
            both = common_prefix({of_names, *listed})
            is_near = both == of_names or both.startswith(INTERNAL_PREFIX)
            listed = {both} if is_near else {of_names, *listed}
        for prefix in sorted(listed):
            for upload in self.unfinished_uploads(prefix):
                if upload.name in wanted or upload.name.startswith(token_prefixes):
                    self.abort_upload(upload.name, upload.upload_id)

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Unfinished uploads, also of other programs, to names that begin with ``prefix``."""
        action = f"list unfinished uploads to {prefix}*"
        return self.ask(action, lambda: [*self._uploads_to(prefix, action)])

    def _uploads_to(self, prefix: str, action: str) -> Iterator[UnfinishedUpload]:
        client = self._client
        with client.doing(action):
            pages = client.api.get_paginator("list_multipart_uploads").paginate(
                Bucket=client.bucket, Prefix=client.key_of(prefix)
            )
            for page in pages:
                for upload in page.get("Uploads", []):
                    key = field_of(upload, "Key", "an upload")
                    yield UnfinishedUpload(
                        client.name_of(key),
                        field_of(upload, "UploadId", key),
                        whole_seconds_ns(field_of(upload, "Initiated", key)),
                    )

    def abort_upload(self, name: str, upload_id: str) -> None:
        """Abort an unfinished upload, which frees its parts. A missing upload is no error."""
        self.ask(f"abort the upload of {name}", partial(abort, self._client, name, upload_id))

    def _upload_pool(self) -> ThreadPoolExecutor:
        with self._upload_lock:
            if self._uploaders is None:
                self._uploaders = ThreadPoolExecutor(
                    self._limits.parts_in_flight_max, thread_name_prefix="dsort-upload"
                )
            return self._uploaders

    def _complete(self, upload: Receipt, *, overwrite: bool) -> bool:
        """Complete the upload. Returns whether the store reports that it has checked the whole
        object."""
        client = self._client
        listed: Sequence[str] = upload.etags or self._list_parts(upload)
        request: dict[str, Any] = {
            **client.target(upload.name),
            "UploadId": upload.upload_id,
            "MultipartUpload": {"Parts": upload.completion(listed)},
            **upload.whole,
        }

        def complete() -> Mapping[str, Any]:
            api: Any = client.api
            with client.doing(f"publish {upload.name}"):
                try:
                    condition = {} if overwrite else {"IfNoneMatch": "*"}
                    done: Mapping[str, Any] = api.complete_multipart_upload(**request, **condition)
                except boto.ClientError as error:
                    if overwrite or code_of(error) not in NOT_OFFERED:
                        raise
                    done = api.complete_multipart_upload(**request)
            return done

        reply = self.ask(f"publish {upload.name}", complete)
        log.debug("the upload of %s to %s is complete", upload.name, self.uri)
        return bool(upload.whole) and upload.whole.items() <= reply.items()

    def _list_parts(self, upload: Receipt) -> list[str]:
        """The ETags of the parts that the store has."""
        client, action = self._client, f"list the parts of {upload.name}"

        def listed() -> list[str]:
            with client.doing(action):
                pages = client.api.get_paginator("list_parts").paginate(
                    **client.target(upload.name), UploadId=upload.upload_id
                )
                parts = [part for page in pages for part in page.get("Parts", [])]
            return [str(field_of(part, "ETag", upload.name)) for part in parts]

        return self.ask(action, listed)

    def _is_there(self, upload: Receipt) -> bool:
        """Whether ``upload`` has been completed. ``StorageError`` if another object has the
        name."""
        if self._stat_or_none(upload.name) is None:
            return False
        # If our upload still waits, an object with the same content comes from another upload.
        if self._is_waiting(upload) or not self._is_result(upload):
            raise NamesTakenError(
                f"{upload.name} in bucket {self.uri} exists already", hint="remove it or rename it"
            )
        return True

    def _is_waiting(self, upload: Receipt) -> bool:
        client, action = self._client, f"find the upload of {upload.name}"

        def find() -> None:
            with client.doing(action):
                client.api.list_parts(
                    **client.target(upload.name), UploadId=upload.upload_id, MaxParts=1
                )

        try:
            self.ask(action, find)
        except ObjectNotFoundError:
            return False
        return True

    def _is_result(self, upload: Receipt) -> bool:
        """Whether the object ``upload.name`` is the result of ``upload``, which no longer exists.

        Its ETag decides. Where ETags are no MD5s, size, number of parts and time decide, although
        another upload to the same name could have the same values.
        """
        find = partial(self._client.head_reply, upload.name)
        try:
            reply = self.ask(f"find {upload.name}", find)
        except ObjectNotFoundError:
            return False
        if int(field_of(reply, "ContentLength", upload.name)) != upload.size_bytes:
            return False
        etag = str(field_of(reply, "ETag", upload.name)).strip('"')
        if etag == upload.digest:
            return True
        is_opaque = any(reply.get(field, "AES256") != "AES256" for field in _OPAQUE_ETAGS)
        return (
            is_opaque
            and etag.endswith(f"-{upload.part_count}")
            and upload.began_s > 0
            and int(field_of(reply, "LastModified", upload.name).timestamp()) >= upload.began_s
        )
