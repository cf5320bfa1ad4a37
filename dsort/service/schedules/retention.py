"""``retain``: results of a schedule that are older than the newest few are removed.

What a manifest lists as outputs is removed, and nothing else; of that, never

- what the job does not make by its spec: whoever can write to a bucket could write a manifest;
- what is an input of the same result, or of one that is kept;
- what a newer result of the schedule has an output of the same name for;
- what is not as the manifest says, or was written after the manifest was.

Outputs go first, the manifest last: whoever is interrupted finds the rest by it, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dsort.errors import DsortError, ObjectNotFoundError
from dsort.job.manifest import index_name, manifest_name
from dsort.naming.overlap import names_made
from dsort.service.schedules.results import Opener, Result, ScheduleResults
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo
from dsort.storage.directory.removal import remove_if_empty
from dsort.storage.small_objects import read_small
from dsort.verification.manifest_file import StoredManifest, parse_manifest

__all__ = ["apply_retention", "places_of"]

MANIFEST_BYTES_MAX = 4 << 30
REMOVED_AT_ONCE_MAX = 16
STORE_CLOCK_NS = 2_000_000_000
"""Stores tell times in whole seconds, some of them when an upload began."""
_NAMES_SHOWN = 3


@dataclass(slots=True)
class _Stored:
    """A result with its manifest, and the places (see ``places_of``) of what it read and wrote."""

    result: Result
    bucket: Bucket
    manifest: StoredManifest
    info: ObjectInfo
    inputs: frozenset[str]
    outputs: frozenset[str]


@dataclass(slots=True)
class _Fate:
    """What becomes of the outputs of one result: ``remove``, or left because they ``changed``, or
    are ``inputs`` of something that is kept, or ``strange``: no names that the job makes, or in
    directories that lead out of its bucket."""

    remove: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)


def apply_retention(
    result: Result, results: ScheduleResults, open_bucket: Opener, *, now_s: float
) -> list[str]:
    """Remove what the schedule of ``result``, which has just been committed, does not keep any
    more. What could not be removed, and why, in words; nothing is raised for that."""
    keep = result.after_commit["retain"]
    schedule_id = result.after_commit["schedule_id"]
    if any(each.job_id != result.job_id for each in results.unfinished(schedule_id)):
        return []  # it may be writing what we would look at; it is its turn once it has finished
    known = {each.job_id: each for each in (*results.finished(schedule_id), result)}
    if len(known) <= keep:
        return []
    newest_first = sorted(known.values(), key=lambda each: each.order, reverse=True)
    others = [each for each in newest_first if each.job_id != result.job_id]
    try:
        with results.hold(result, others):
            return _remove_old(result, newest_first, results, open_bucket, now_s)
    except DsortError as error:
        return [f"older results are not removed: {error}"]


def _remove_old(
    result: Result,
    newest_first: Sequence[Result],
    results: ScheduleResults,
    open_bucket: Opener,
    now_s: float,
) -> list[str]:
    keep = result.after_commit["retain"]
    kept, old = _split(newest_first, keep, open_bucket, results, now_s)
    warnings: list[str] = []
    for at in reversed(range(len(old))):  # the oldest first
        if old[at].result.job_id == result.job_id:
            continue  # gone on with on purpose, long after it was due: it stays until the next one
        newer = [*kept, *old[:at]]
        try:
            warnings += _remove(old[at], kept, newer, results, now_s)
        except (DsortError, OSError) as error:
            job_id = old[at].result.job_id
            warnings.append(f"the result of job {job_id} is not removed whole: {error}")
    return warnings


def places_of(bucket: Bucket, names: Iterable[str]) -> frozenset[str]:
    """Where objects are, in words that are the same whatever bucket they are seen through: one
    bucket may be a directory in another, or a link to it. A link is in both places, its own and
    where it leads to."""
    places = set()
    parents: dict[str, str] = {}
    for name in names:
        path = bucket.local_path(name)
        if path is None:
            encoded = name.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
            places.add(f"{bucket.uri}/{encoded}")
            continue
        parent = str(path.parent)
        if parent not in parents:
            parents[parent] = os.path.realpath(parent)
        own = f"{parents[parent]}/{path.name}"
        places.add(own)
        if path.is_symlink():
            places.add(os.path.realpath(own))
    return frozenset(places)


def _split(
    newest_first: Sequence[Result],
    keep: int,
    open_bucket: Opener,
    results: ScheduleResults,
    now_s: float,
) -> tuple[list[_Stored], list[_Stored]]:
    """(those that are kept, those that are not), newest first. One whose manifest is gone is no
    result any more."""
    kept: list[_Stored] = []
    old: list[_Stored] = []
    for each in newest_first:
        stored = _load(each, open_bucket)
        if stored is None:
            results.mark_removed(each, now_s=now_s)
        elif len(kept) < keep:
            kept.append(stored)
        else:
            old.append(stored)
    return kept, old


def _load(result: Result, open_bucket: Opener) -> _Stored | None:
    bucket = open_bucket(result.output_bck)
    name = manifest_name(result.job_id)
    try:
        info = bucket.stat(name)
        manifest = parse_manifest(read_small(bucket, name, bytes_max=MANIFEST_BYTES_MAX))
    except ObjectNotFoundError:
        return None
    return _Stored(
        result=result,
        bucket=bucket,
        manifest=manifest,
        info=info,
        inputs=places_of(open_bucket(result.input_bck), (each.name for each in manifest.inputs)),
        outputs=places_of(bucket, _output_names(manifest)),
    )


def _output_names(manifest: StoredManifest) -> list[str]:
    index = [] if manifest.index is None else [manifest.index]
    return [*(each.name for each in manifest.outputs), *index]


def _remove(
    old: _Stored,
    kept: Sequence[_Stored],
    newer: Sequence[_Stored],
    results: ScheduleResults,
    now_s: float,
) -> list[str]:
    bucket, job_id = old.bucket, old.result.job_id
    inputs = old.inputs.union(*(each.inputs for each in kept))
    outputs = frozenset[str]().union(*(each.outputs for each in newer))
    fate = _fate(old, inputs, outputs)
    _each(bucket, fate.remove, bucket.delete)
    _remove_empty_directories(bucket, fate.remove)
    if fate.inputs:
        # They will be inputs no more one day, and then the manifest says what is left to do.
        return [
            f"{_shown(fate.inputs)} of the result of job {job_id} stay: they are inputs of a "
            "result that is kept"
        ]
    bucket.delete(manifest_name(job_id))
    bucket.discard(f"{INTERNAL_PREFIX}{job_id}/")
    results.mark_removed(old.result, now_s=now_s)
    return [
        f"{_shown(names)} of the result of job {job_id} stay: {why}"
        for names, why in (
            (fate.changed, "they are not as its manifest says"),
            (fate.strange, "its manifest lists them, but it has not made them there"),
        )
        if names
    ]


def _fate(old: _Stored, inputs: frozenset[str], outputs: frozenset[str]) -> _Fate:
    fate = _Fate()
    sizes = {each.name: each.file_bytes for each in old.manifest.outputs}
    late_ns = old.info.mtime_ns + (STORE_CLOCK_NS if old.bucket.seals_on_finish else 0)
    names = _output_names(old.manifest)
    templates = [template for _, template in old.result.claims or ()]
    own = {index_name(old.result.job_id), *names_made(templates, names)}
    for name, info in sorted(old.bucket.stat_many(names).items()):
        places = places_of(old.bucket, [name])
        if name not in own or _is_behind_a_link(old.bucket, name):
            fate.strange.append(name)
        elif not places.isdisjoint(inputs):
            fate.inputs.append(name)
        elif not places.isdisjoint(outputs):
            continue  # a newer result's by now
        elif (
            info.mtime_ns > late_ns
            or info.size_bytes != sizes.get(name, info.size_bytes)
            or name.startswith(INTERNAL_PREFIX)  # no job has such outputs: it was edited
        ):
            fate.changed.append(name)
        else:
            fate.remove.append(name)
    return fate


def _is_behind_a_link(bucket: Bucket, name: str) -> bool:
    """Whether a directory on the way to ``name`` is a link: nothing is removed behind one."""
    path = bucket.local_path(name)
    if path is None:
        return False
    *directories, _ = name.split("/")
    top = path.parents[len(directories)]
    return Path(os.path.realpath(path.parent)) != Path(os.path.realpath(top), *directories)


def _each(bucket: Bucket, names: Sequence[str], do: Callable[[str], None]) -> None:
    if not bucket.seals_on_finish:
        for name in names:
            do(name)
        return
    with ThreadPoolExecutor(REMOVED_AT_ONCE_MAX) as threads:
        for _ in threads.map(do, names):
            pass


def _remove_empty_directories(bucket: Bucket, names: Iterable[str]) -> None:
    """The directories of a directory bucket that the objects were in, and which are empty now."""
    parents = {name.rpartition("/")[0] for name in names}
    for parent in sorted(parents, key=len, reverse=True):
        while parent:
            path = bucket.local_path(parent)
            if path is None or path.is_symlink() or not path.is_dir():
                break
            remove_if_empty(path)
            if path.exists():
                break
            parent = parent.rpartition("/")[0]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
