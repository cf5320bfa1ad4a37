"""The buckets of a service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import BaseModel, Field

from dsort.errors import ForbiddenError, SpecError
from dsort.naming.patterns import has_wildcard
from dsort.service.config import ServiceConfig
from dsort.service.security.guard import check_bucket
from dsort.service.security.policy import SpecPolicy
from dsort.service.security.tokens import Identity
from dsort.spec.buckets import parse_bucket
from dsort.storage.addresses import parse_address
from dsort.storage.ref import BucketRef
from dsort.storage.registry import provider_of

__all__ = ["BUCKETS_MAX", "BucketModel", "bucket_model", "known_buckets"]

BUCKETS_MAX: Final = 10_000


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


class BucketModel(BaseModel):
    """A bucket as AIStore's clients know it: a directory under the data root is one of theirs."""

    name: str
    provider: str = Field(examples=["ais", "aws"])
    namespace: dict[str, str]


def bucket_model(uri: str, root: Path | None = None) -> dict[str, Any]:
    """The ``BucketModel`` of ``uri``. A directory under ``root`` has its name in specs, any other
    directory its path; a prefix stays a part of the name."""
    try:
        ref = parse_bucket(uri)
    except SpecError:  # the service that wrote the row could parse it
        return {"name": uri, "provider": "", "namespace": {"uuid": "", "name": ""}}
    name = ref.uri if ref.scheme in ("http", "https") else ref.path
    provider = provider_of(ref.scheme)
    if ref.scheme == "file" and root is not None and PurePath(name).is_relative_to(root):
        name, provider = str(PurePath(name).relative_to(root)), "ais"
    return {"name": name, "provider": provider, "namespace": {"uuid": "", "name": ""}}
