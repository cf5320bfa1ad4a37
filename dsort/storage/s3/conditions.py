"""Whether a store supports ``If-None-Match`` when uploads are completed:
:class:`CompletionCondition`.

If it does, no request is needed before each shard is published to check that its name is free.
"""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from dsort.errors import StorageError
from dsort.storage.objects import PreconditionError
from dsort.storage.request_counts import PROBED_AFTER
from dsort.storage.s3.client import S3Client

__all__ = ["CompletionCondition"]


class CompletionCondition:
    """Probes a store once, with an object of dsort's own, after ``PROBED_AFTER`` completions: that
    takes seven requests. AWS is not probed, because it documents the condition. Several threads may
    use it at once.

    Of completions at the same moment, AWS accepts one, SeaweedFS all: so jobs are kept apart by
    their claims and leases, as in stores without the condition. The condition only saves
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
        """Whether a completion under the condition certainly fails if an object of that name
        exists. ``token``: that of the object to be published; the name of the probe begins with
        it."""
        if self._is_heeded is not None:
            return self._is_heeded
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
        and kept the object. A store that fails here counts as one without the condition."""
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
                is_refused = client.head(name).size_bytes == len(before)
                with client.doing(f"abort the upload of {name}"):
                    client.api.abort_multipart_upload(**target, UploadId=upload)
            client.delete([name])
        except StorageError:
            return False
        return is_refused
