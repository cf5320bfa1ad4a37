"""Makes clients of botocore for S3 quickly.

A process makes a client for each bucket, or one for the buckets that it opens together, and its
forks use that client: making one takes most of a worker's time before its first task.

A session of botocore finds credentials, region and profile in the same way as one of boto3, which
adds nothing that is used here and costs 0.1 s of processor time to load. The descriptions of
services are read in a way that takes a third of the time of botocore's own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import botocore.config
import botocore.loaders
import botocore.session
from msgspec import Struct
from pydantic_core import from_json

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
    session = botocore.session.Session(profile=ref.profile or None)
    if not session.get_config_variable("data_path"):
        session.register_component("data_loader", _service_models())
    wanted = session.get_config_variable("request_checksum_calculation")
    region = ref.region or session.get_config_variable("region") or DEFAULT_REGION
    client = session.create_client(
        "s3",
        endpoint_url=ref.endpoint_url or None,
        region_name=region,
        # Given here, because botocore would make its own again for each request: 6% of its time.
        config=_config(ref, limits, user_agent=f"dsort {session.user_agent()}"),
    )
    check_replies(client)
    read_listings_quickly(client)
    return S3Api(client, region, wanted != "when_required")


def _connections_max(limits: StoreLimits) -> int:
    """The connections of two buckets in a worker, the one that is read and the one that is
    written."""
    return 2 * limits.requests_in_flight_max + limits.parts_in_flight_max


class _ModelFiles(botocore.loaders.JSONFileLoader):  # type: ignore[misc]
    """Reads botocore's descriptions of services into plain dicts, in a fifth of the time of its own
    loader."""

    def _load_file(self, full_path: str, open_method: Any) -> Any:
        if not Path(full_path).is_file():
            return None
        with open_method(full_path, "rb") as file:
            return from_json(file.read())


class _ServiceModels(botocore.loaders.Loader):  # type: ignore[misc]
    """Loads botocore's descriptions of services. botocore's own loader reads the directories of all
    400 services to load one."""

    def list_available_services(self, type_name: str) -> list[str]:
        """All directories that may describe services, without checking them for ``type_name``."""
        return self._directories

    @cached_property
    def _directories(self) -> list[str]:
        places = [place for place in map(Path, self.search_paths) if place.is_dir()]
        return sorted({each.name for place in places for each in place.iterdir()})


@cache
def _service_models() -> botocore.loaders.Loader:
    """The loader for all buckets of a process and of its forks."""
    return _ServiceModels(file_loader=_ModelFiles())


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
