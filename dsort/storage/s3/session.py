"""Makes clients of S3 by boto3, once for all buckets that are reached in the same way.

The forks of a process use its clients: to load boto3 and make one takes 0.4 s of processor time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from typing import Any
from weakref import WeakValueDictionary

import boto3.session
import botocore.config
import botocore.session
from msgspec import Struct

from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.replies import check_replies, read_listings_quickly
from dsort.storage.together import made_once

__all__ = ["DEFAULT_REGION", "S3Api", "make_api"]

DEFAULT_REGION = "us-east-1"

_CONNECT_SECONDS_MAX = 10.0
_STALL_SECONDS_MAX = 60.0  # without a byte
_INHERITED_SECONDS_MAX = 60.0


class S3Api(Struct, frozen=True, eq=False, weakref=True):
    """A client of botocore, its region, and whether parts are to be sent with checksums
    (``AWS_REQUEST_CHECKSUM_CALCULATION``)."""

    client: Any
    region: str
    sends_checksums: bool


class _Inherited:
    """The clients of this process, by the settings with which they reach their buckets, for its
    forks.

    Only forks of a process with a single thread use them: an operation of another thread at the
    moment of the fork would stay half-done in the fork for ever. Forks use them only at their
    beginning, because credentials change.
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
        """The client that the parent process has made, else a new one."""
        reached = ref.endpoint_url, ref.region, ref.profile, limits.request_seconds_max
        variables = tuple((key, each) for key, each in os.environ.items() if key.startswith("AWS_"))
        key = *reached, _connections_max(limits), variables
        if time.monotonic() > self._until_s:
            self._before.clear()
        api = self._before.get(key) or made_once(key, lambda: _make_api(ref, limits))
        self._here[key] = api
        return api


_inherited = _Inherited()


def make_api(ref: BucketRef, limits: StoreLimits) -> S3Api:
    """A client for the bucket ``ref``. It finds credentials again, unless it is shared with a
    bucket that is opened together with this one, or made by the parent of a new fork. Raises
    botocore's errors."""
    return _inherited.api(ref, limits)


def _make_api(ref: BucketRef, limits: StoreLimits) -> S3Api:
    settings = botocore.session.Session(profile=ref.profile or None)
    wanted = settings.get_config_variable("request_checksum_calculation")
    session = boto3.session.Session(botocore_session=settings)
    region = ref.region or session.region_name or DEFAULT_REGION
    client = session.client(
        "s3",
        endpoint_url=ref.endpoint_url or None,
        region_name=region,
        # Given here, because botocore would make its own again for each request: 6% of its time.
        config=_config(ref, limits, user_agent=f"dsort {settings.user_agent()}"),
    )
    check_replies(client)
    read_listings_quickly(client)
    return S3Api(client, region, wanted != "when_required")


def _connections_max(limits: StoreLimits) -> int:
    """The connections of two buckets in a worker, the one that is read and the one that is
    written."""
    return 2 * limits.requests_in_flight_max + limits.parts_in_flight_max


def _config(ref: BucketRef, limits: StoreLimits, *, user_agent: str) -> botocore.config.Config:
    s3: dict[str, object] = {
        # Hashing every byte for the signature costs 0.8 s/GiB; https protects the bytes.
        "payload_signing_enabled": False,
    }
    if ref.endpoint_url:
        s3["addressing_style"] = "path"
    return botocore.config.Config(
        s3=s3,
        user_agent=user_agent,
        connect_timeout=min(_CONNECT_SECONDS_MAX, limits.request_seconds_max),
        read_timeout=min(_STALL_SECONDS_MAX, limits.request_seconds_max),
        retries={"total_max_attempts": 1},
        max_pool_connections=_connections_max(limits),
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
