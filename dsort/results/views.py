"""Views that point into results. Unless a user forces it, a result is not removed as long as a view
points into it.

A view is found by its manifest, in the bucket of the result, or by its job in a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

from dsort.errors import DsortError, InputError, ObjectNotFoundError
from dsort.results.earlier_results import manifests_in
from dsort.results.layout import job_of, manifest_name
from dsort.results.manifest import Manifest, ManifestInput, parse_manifest
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef, object_uri
from dsort.storage.small_objects import read_small

MANIFESTS_READ_MAX: Final = 1_000
MANIFEST_BYTES_MAX: Final = 256 << 20
_MAY_BE_VIEW: Final = re.compile(rb'"output"\s*:\s*"view"')

Opener = Callable[[BucketRef], Bucket]
"""Opens a bucket with the addresses and limits from the settings of the process."""


class ViewJob(NamedTuple):
    """A finished job of a database that wrote a view. ``spec``: canonical."""

    job_id: str
    spec: Mapping[str, Any]


class _View(NamedTuple):
    uri: str
    manifest: Manifest


def views_into(
    owners: Mapping[str, str],
    buckets: Sequence[Bucket],
    open_bucket: Opener,
    *,
    known: Iterable[ViewJob] = (),
    manifests_max: int = MANIFESTS_READ_MAX,
) -> dict[str, str]:
    """For each owner of objects to which a view points: the view, in words.

    ``owners``: for each object, by its place (see ``places_of``), the job of its result, or any
    other text. ``buckets``: where the objects are; the ``manifests_max`` newest manifests in each
    are read. ``known``: jobs whose views may be in other buckets. ``DsortError`` if such a view may
    point into ``buckets``, and its manifest cannot be read.
    """
    found: dict[str, str] = {}
    open_once = cache(open_bucket)
    for uri, manifest in _views(buckets, open_once, known, manifests_max):
        places = places_read(_sources(manifest.spec, open_once), manifest.inputs, open_once)
        for place in places & owners.keys():
            found.setdefault(owners[place], f"the view of job {manifest.job_id} in {uri}")
    return found


def has_views(bucket: Bucket, *, manifests_max: int = MANIFESTS_READ_MAX) -> bool:
    """Whether there is a view among the ``manifests_max`` newest manifests of ``bucket``."""
    return bucket.exists() and any(True for _ in _views_in(bucket, manifests_max))


def _views(
    buckets: Sequence[Bucket],
    open_bucket: Opener,
    known: Iterable[ViewJob],
    manifests_max: int,
) -> Iterator[_View]:
    seen: set[tuple[str, str]] = set()
    for bucket in {each.uri: each for each in buckets}.values():
        for manifest in _views_in(bucket, manifests_max):
            seen.add((bucket.uri, manifest.job_id))
            yield _View(bucket.uri, manifest)
    for job_id, fields in known:
        spec = parse_spec(dict(fields)).spec
        if not _may_read(spec, buckets, open_bucket):
            continue
        files = open_bucket(spec.output_bck)
        if (files.uri, job_id) not in seen:
            try:
                yield _View(files.uri, _manifest_in(files, job_id))
            except ObjectNotFoundError:
                continue  # the view was removed


def _views_in(bucket: Bucket, manifests_max: int) -> Iterator[Manifest]:
    """The views among the newest manifests of ``bucket``. Strangers may have written there. A
    manifest that cannot be read counts as no view, because no reader could open it."""
    newest = sorted(manifests_in(bucket), key=lambda info: info.mtime_ns, reverse=True)
    for info in newest[:manifests_max]:
        try:
            data = read_small(bucket, info.name, bytes_max=MANIFEST_BYTES_MAX)
            # Few manifests are of views, and parsing one takes far longer than a search.
            manifest = parse_manifest(data) if _MAY_BE_VIEW.search(data) else None
        except (InputError, ObjectNotFoundError):
            continue
        if manifest and manifest.spec.output == "view" and manifest.job_id == job_of(info.name):
            yield manifest


def _manifest_in(bucket: Bucket, job_id: str) -> Manifest:
    data = read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
    return parse_manifest(data)


def _may_read(spec: JobSpec, buckets: Sequence[Bucket], open_bucket: Opener) -> bool:
    """Whether an input bucket of ``spec`` may have objects of ``buckets``. Directories may be in
    each other, or be reached through links."""
    for ref in _sources(spec, open_bucket).values():
        source = open_bucket(ref)
        for bucket in buckets:
            are_files = bucket.local_path("x") is not None and source.local_path("x") is not None
            one, other = f"{bucket.uri}/", f"{source.uri}/"
            if are_files or one.startswith(other) or other.startswith(one):
                return True
    return False


def _sources(spec: JobSpec, open_bucket: Opener) -> dict[str, BucketRef]:
    """The input buckets by name, without buckets that this process may not open: such a bucket has
    no result of its jobs."""
    found = {}
    for each in spec.sources:
        with suppress(DsortError):
            open_bucket(each.bucket)
            found[each.name] = each.bucket
    return found


def places_read(
    sources: Mapping[str, BucketRef], inputs: Iterable[ManifestInput], open_bucket: Opener
) -> frozenset[str]:
    """The places of the inputs that a manifest lists. ``sources``: the buckets by the names of the
    inputs ("" if there is only one)."""
    places = frozenset[str]()
    listed = [each.name for each in inputs]
    for name, ref in sources.items():
        start = f"{name}/" if name else ""
        inside = [each.removeprefix(start) for each in listed if each.startswith(start)]
        places |= places_of(open_bucket(ref), inside) if inside else frozenset()
    return places


def places_of(bucket: Bucket, names: Iterable[str]) -> frozenset[str]:
    """Identifiers of the places of objects. One bucket may be a directory in another, or a link to
    it, so an object has the same place in every bucket that contains it. A link has two places: its
    own and its target's."""
    places = set()
    parents: dict[str, str] = {}
    for name in names:
        path = bucket.local_path(name)
        if path is None:
            places.add(object_uri(bucket.uri, name))
            continue
        parent = str(path.parent)
        if parent not in parents:
            parents[parent] = os.path.realpath(parent)
        own = f"{parents[parent]}/{path.name}"
        places.add(own)
        if path.is_symlink():
            places.add(os.path.realpath(own))
    return frozenset(places)
