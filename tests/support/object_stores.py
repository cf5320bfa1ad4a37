"""Buckets of a running S3 server, for tests."""

from __future__ import annotations

import io
from typing import Any

from botocore.awsrequest import AWSResponse

from dsort.retry import RetryPolicy
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from dsort.storage.transport import Transport
from tests.support.seaweedfs import S3Server

MIB = 1 << 20
TOKEN = ".dsort/job1/staged/0"
NO_WAIT = RetryPolicy(tries_max=3, sleep=lambda _: None)
SMALL = StoreLimits(
    requests_in_flight_max=8,
    part_bytes=5 * MIB,  # S3 accepts no smaller part, except the last one
    parts_in_flight_max=2,
    range_bytes=4 * MIB,
    tries_max=2,
    retry_seconds_max=5.0,
    request_seconds_max=20.0,
)
"""Limits with which small objects have several parts and ranges."""


def new_s3_bucket(
    server: S3Server,
    *,
    prefix: str = "",
    limits: StoreLimits = SMALL,
    retry: RetryPolicy | None = None,
) -> S3Bucket:
    """A new bucket. Credentials have to be in the environment."""
    path = server.new_bucket_name() + (f"/{prefix}" if prefix else "")
    bucket = S3Bucket(
        BucketRef("s3", path, endpoint_url=server.endpoint_url),
        limits,
        Transport(limits, policy=retry),
    )
    bucket.create()
    return bucket


def waiting(bucket: S3Bucket) -> list[str]:
    """The names that have unfinished uploads."""
    return sorted(upload.name for upload in bucket.unfinished_uploads())


def upload(bucket: S3Bucket, name: str, data: bytes) -> str:
    """Stage ``data``. Returns the receipt."""
    with bucket.stage(TOKEN, name=name, size_bytes=len(data)) as staged:
        for at in range(0, len(data), MIB):
            staged.write_at(at, [memoryview(data)[at : at + MIB]])
        return staged.finish()


def answer(bucket: S3Bucket, operation: str, statuses: list[int]) -> list[int]:
    """Answer the next requests of one kind with ``statuses``, without sending them. Returns the
    list of statuses that are left."""

    def before_send(request: Any, **_: object) -> AWSResponse | None:
        if not statuses:
            return None
        body = io.BytesIO()
        body.stream = lambda: iter(())  # type: ignore[attr-defined]
        return AWSResponse(request.url, statuses.pop(0), {}, body)

    bucket._client.api.meta.events.register(f"before-send.s3.{operation}", before_send)
    return statuses


def count_requests(bucket: S3Bucket) -> list[str]:
    """A list to which the kind of each request from now on is appended."""
    made: list[str] = []

    def before_send(event_name: str, **_: object) -> None:
        made.append(event_name.rpartition(".")[2])

    bucket._client.api.meta.events.register("before-send.s3", before_send)
    return made
