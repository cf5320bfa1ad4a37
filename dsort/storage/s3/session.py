"""A client of botocore for S3, made quickly.

A session of botocore finds credentials, region and profile, as boto3's would: boto3's adds nothing
to it that is used here, and loading it costs 0.1 s of processor time. What botocore knows about
services is read in a way that costs a third of its own.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import botocore.config
import botocore.loaders
import botocore.session
from pydantic_core import from_json

from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef

__all__ = ["DEFAULT_REGION", "S3Api", "make_api"]

DEFAULT_REGION = "us-east-1"

_CONNECT_SECONDS_MAX = 10.0
_STALL_SECONDS_MAX = 60.0  # without a byte


class S3Api(NamedTuple):
    """A client of botocore, the region it is for, and whether the user wants parts to be sent with
    checksums (``AWS_REQUEST_CHECKSUM_CALCULATION``)."""

    client: Any
    region: str
    sends_checksums: bool


def make_api(ref: BucketRef, limits: StoreLimits) -> S3Api:
    """A client for the bucket ``ref``. Credentials are found anew. Raises botocore's errors."""
    session = botocore.session.Session(profile=ref.profile or None)
    if not session.get_config_variable("data_path"):
        session.register_component("data_loader", _service_models())
    wanted = session.get_config_variable("request_checksum_calculation")
    region = ref.region or session.get_config_variable("region") or DEFAULT_REGION
    client = session.create_client(
        "s3",
        endpoint_url=ref.endpoint_url or None,
        region_name=region,
        # botocore would put its own together anew for each request: 6% of what one takes.
        config=_config(ref, limits, user_agent=f"dsort {session.user_agent()}"),
    )
    return S3Api(client, region, wanted != "when_required")


class _ModelFiles(botocore.loaders.JSONFileLoader):  # type: ignore[misc]
    """Files of what botocore knows, parsed into plain dicts: a fifth of the time of its own."""

    def _load_file(self, full_path: str, open_method: Any) -> Any:
        if not Path(full_path).is_file():
            return None
        with open_method(full_path, "rb") as file:
            return from_json(file.read())


class _ServiceModels(botocore.loaders.Loader):  # type: ignore[misc]
    """What botocore knows about services. Its own loader looks into the directories of all 400
    of them to load one."""

    def list_available_services(self, type_name: str) -> list[str]:
        """Directories that may be of services; ``type_name`` is not looked for in them."""
        return self._directories

    @cached_property
    def _directories(self) -> list[str]:
        places = [place for place in map(Path, self.search_paths) if place.is_dir()]
        return sorted({each.name for place in places for each in place.iterdir()})


@cache
def _service_models() -> botocore.loaders.Loader:
    """Loaded once for all buckets of a process, and of those that it forks."""
    return _ServiceModels(file_loader=_ModelFiles())


def _config(ref: BucketRef, limits: StoreLimits, *, user_agent: str) -> botocore.config.Config:
    s3: dict[str, object] = {
        # Hashing every byte for the signature costs 0.8 s/GiB; https is what keeps them whole.
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
        max_pool_connections=limits.requests_in_flight_max + limits.parts_in_flight_max,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
