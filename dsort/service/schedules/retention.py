"""The work of a schedule's job after its commit: the job moves the ``latest`` pointer, then removes
the results that ``retain`` no longer keeps.

Any error here becomes a warning, because the result is committed. The steps can be repeated without
harm: if an attempt dies during them, the next attempt continues."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from sqlalchemy import ColumnElement, select, update

from dsort.errors import DsortError, JobConflictError, ObjectNotFoundError
from dsort.naming.overlap import names_made
from dsort.results.layout import index_name, job_directory, manifest_name
from dsort.results.manifest import Manifest, parse_manifest
from dsort.results.report import JobWarning
from dsort.results.views import Opener, ViewJob, places_of, places_read, views_into
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, schedule_runs
from dsort.service.jobs.queue import claim_outputs
from dsort.service.schedules.render import names_prefix
from dsort.sidecars.kinds import sidecar_names
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo
from dsort.storage.directory.bucket import remove_if_empty
from dsort.storage.ref import BucketRef
from dsort.storage.small_objects import read_small


class Result(Struct, frozen=True):
    """A job of a schedule that has made a result, or may have made one. ``after_commit``: as
    ``create`` writes it. ``claims``: (bucket URI, template) of all names that the job may write."""

    number: int
    job_id: str
    state: str
    due_at: float
    spec: Mapping[str, Any]
    after_commit: Mapping[str, Any]
    claims: Sequence[Sequence[str]] | None
    attempt: int

    @property
    def sources(self) -> dict[str, BucketRef]:
        """The buckets that the job reads, by the name of the input; a single input has the name
        ""."""
        inputs = self.spec.get("inputs")
        if not inputs:
            return {"": parse_bucket(self.spec["input_bck"])}
        return {each["name"]: parse_bucket(each["input_bck"]) for each in inputs}

    @property
    def output_bck(self) -> BucketRef:
        """The bucket that the job writes to."""
        return parse_bucket(self.spec["output_bck"])

    @property
    def order(self) -> tuple[float, int]:
        """The sort key of results: of two results, the newer was due later, or was due at the same
        time and submitted later."""
        return self.due_at, self.number

    def manifest_info(self, bucket: Bucket) -> ObjectInfo | None:
        """The manifest of the job in its output bucket; None if the manifest does not exist. A
        manifest means that the job has finished."""
        return bucket.stat_many([manifest_name(self.job_id)]).get(manifest_name(self.job_id))


class ScheduleResults:
    """The results of schedules in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def one(self, job_id: str) -> Result | None:
        """The result of job ``job_id``; None if it is not a job of a schedule."""
        found = self._read(jobs.c.job_id == job_id)
        return found[0] if found else None

    def unfinished(self, schedule_id: str) -> Sequence[Result]:
        """The jobs of a schedule that have not ended, newest first."""
        return self._read(_of(schedule_id), jobs.c.state.in_(("queued", "running")))

    def finished(self, schedule_id: str) -> Sequence[Result]:
        """The jobs of a schedule that have finished and whose outputs have not been removed, newest
        first."""
        removed = select(schedule_runs.c.job_id).where(
            schedule_runs.c.schedule_id == schedule_id,
            schedule_runs.c.removed_at.is_not(None),
            schedule_runs.c.job_id.is_not(None),
        )
        return self._read(
            _of(schedule_id), jobs.c.state == "finished", jobs.c.job_id.not_in(removed)
        )

    def views(self) -> Sequence[ViewJob]:
        """The newest finished jobs that wrote views, of all users."""
        is_view = jobs.c.spec["output"].as_string() == "view"
        query = select(jobs.c.job_id, jobs.c.spec).where(jobs.c.state == "finished", is_view)
        newest = query.order_by(jobs.c.number.desc()).limit(VIEWS_MAX)
        return [ViewJob(*row) for row in self._database.rows(newest)]

    @contextlib.contextmanager
    def hold(self, result: Result, others: Iterable[Result]) -> Iterator[None]:
        """Within the context, no job begins that would write names of ``others``, even if a user
        resumes a job of ``others``. ``JobConflictError`` if a job of ``others`` runs, or if another
        process has taken over the job of ``result``."""
        if result.state != "running":
            yield
            return
        own = list(result.claims or ())
        self._claim(result, [*own, *(claim for each in others for claim in each.claims or ())])
        yield
        self._claim(result, own)  # by the claims, retention later finds this job's own outputs

    def _claim(self, result: Result, claims: Sequence[Sequence[str]]) -> None:
        if not claim_outputs(self._database, result.job_id, result.attempt, claims):
            raise JobConflictError(f"another attempt of job {result.job_id} has begun")

    def mark_removed(self, result: Result, *, now_s: float) -> None:
        """Store that the outputs of ``result`` are removed."""
        with self._database.writing() as connection:
            connection.execute(
                update(schedule_runs)
                .where(schedule_runs.c.job_id == result.job_id)
                .values(removed_at=now_s)
            )

    def _read(self, *conditions: ColumnElement[bool]) -> list[Result]:
        query = select(*(jobs.c[name] for name in Result.__struct_fields__)).where(
            jobs.c.after_commit.is_not(None), jobs.c.due_at.is_not(None), *conditions
        )
        rows = self._database.rows(query)
        found = [Result(*row) for row in rows if row.after_commit is not None]  # nor JSON's null
        return sorted(found, key=lambda each: each.order, reverse=True)


def _of(schedule_id: str) -> ColumnElement[bool]:
    return (jobs.c.schedule_id == schedule_id) & (jobs.c.kind == "run")


MANIFEST_BYTES_MAX = 4 << 30
REMOVED_AT_ONCE_MAX = 16
STORE_CLOCK_NS = 2_000_000_000
"""Stores report times in whole seconds, some of them the time when an upload began."""
VIEWS_MAX = 1_000
_NAMES_SHOWN = 3


class _Stored(Struct):
    """A result with its manifest, and the places (see ``places_of``) that the job read and
    wrote."""

    result: Result
    bucket: Bucket
    manifest: Manifest
    info: ObjectInfo
    inputs: frozenset[str]
    outputs: frozenset[str]


class _Fate(Struct):
    """The fate of the outputs of one result. ``remove``: these are removed; the others stay.
    ``changed``: they differ from the manifest. ``inputs``: they are inputs of a result that is
    kept. ``strange``: the job does not make such names, or their directory leads out of the
    bucket."""

    remove: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)


def apply_retention(
    result: Result, results: ScheduleResults, open_bucket: Opener, *, now_s: float
) -> list[str]:
    """Remove the results that the schedule of ``result``, which has just been committed, no longer
    keeps. Return texts about objects that could not be removed, with the reasons; no error is
    raised for them.

    Only objects that a manifest lists as outputs are removed. Some objects are never removed:
    objects with names that the job's spec does not make, because strangers with write access could
    write a manifest; inputs of the same result, or of a result that is kept; objects of a newer
    result of the schedule; and objects that differ from the manifest, or were written after it. The
    manifest is removed last: after an interruption the next attempt reads in the manifest which
    objects are left.
    """
    keep = result.after_commit["retain"]
    schedule_id = result.after_commit["schedule_id"]
    if any(each.job_id != result.job_id for each in results.unfinished(schedule_id)):
        # The job may be writing the objects that retention would check; it applies retention itself
        # once it has finished.
        return []
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
    kept: list[_Stored] = []
    old: list[_Stored] = []
    for each in newest_first:
        stored = _load(each, open_bucket)
        if stored is None:  # a result whose manifest is gone does not count
            results.mark_removed(each, now_s=now_s)
        else:
            (kept if len(kept) < result.after_commit["retain"] else old).append(stored)
    held = _held(kept, old, results, open_bucket) if old else {}
    held.pop(result.job_id, None)
    warnings = [_stays(held)] if held else []
    for at in reversed(range(len(old))):  # from the oldest on
        if old[at].result.job_id == result.job_id:
            continue  # a job that a user resumed, long after its due time: its result stays for now
        if old[at].result.job_id in held:
            continue
        newer = [*kept, *old[:at]]
        try:
            warnings += _remove(old[at], kept, newer, results, now_s)
        except (DsortError, OSError) as error:
            job_id = old[at].result.job_id
            warnings.append(f"the result of job {job_id} is not removed whole: {error}")
    return warnings


def _held(
    kept: Sequence[_Stored], old: Sequence[_Stored], results: ScheduleResults, open_bucket: Opener
) -> dict[str, str]:
    """The ``old`` results into which views point: by job id, a description of the view."""
    oldest_first = [*reversed(old), *reversed(kept)]  # an object belongs to the newest result
    owners = {place: each.result.job_id for each in oldest_first for place in each.outputs}
    buckets = [each.bucket for each in old]
    found = views_into(owners, buckets, open_bucket, known=results.views())
    return {
        each.result.job_id: found[each.result.job_id] for each in old if each.result.job_id in found
    }


def _stays(held: Mapping[str, str]) -> str:
    """A text about the results that stay because views point into them."""
    results = f"{len(held):,} older result{'s' * (len(held) > 1)}"
    shown = _shown([f"that of job {job_id} ({view})" for job_id, view in held.items()])
    return f"{results} will stay until no view points into them any more: {shown}"


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
        inputs=places_read(result.sources, manifest.inputs, open_bucket),
        outputs=places_of(bucket, manifest.stored_names),
    )


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
    with ThreadPoolExecutor(REMOVED_AT_ONCE_MAX if bucket.seals_on_finish else 1) as threads:
        list(threads.map(bucket.delete, fate.remove))
    _remove_empty_directories(bucket, fate.remove)
    if fate.inputs:
        # Later these objects may no longer be inputs. Then the manifest lists the objects that are
        # left to remove.
        return [
            f"{_shown(fate.inputs)} of the result of job {job_id} stay: they are inputs of a "
            "result that is kept"
        ]
    bucket.delete(manifest_name(job_id))
    bucket.discard(job_directory(job_id))
    results.mark_removed(old.result, now_s=now_s)
    return [
        f"{_shown(names)} of the result of job {job_id} stay: {why}"
        for names, why in (
            (fate.changed, "they differ from its manifest"),
            (fate.strange, "its manifest lists them, but it has not made them there"),
        )
        if names
    ]


def _fate(old: _Stored, inputs: frozenset[str], outputs: frozenset[str]) -> _Fate:
    fate = _Fate()
    sizes = {each.name: each.file_bytes for each in old.manifest.outputs}
    sizes |= {each.name: each.file_bytes for each in old.manifest.sidecars}
    late_ns = old.info.mtime_ns + (STORE_CLOCK_NS if old.bucket.seals_on_finish else 0)
    names = old.manifest.stored_names
    templates = [template for _, template in old.result.claims or ()]
    own = {index_name(old.result.job_id), *names_made(templates, names)}
    shards = [each.name for each in old.manifest.outputs if each.name in own]
    own.update(each.name for each in sidecar_names(old.manifest.spec.index, shards))
    for name, info in sorted(old.bucket.stat_many(names).items()):
        places = places_of(old.bucket, [name])
        if name not in own or _is_behind_a_link(old.bucket, name):
            fate.strange.append(name)
        elif not places.isdisjoint(inputs):
            fate.inputs.append(name)
        elif not places.isdisjoint(outputs):
            continue  # the object belongs to a newer result now
        elif (
            info.mtime_ns > late_ns
            or info.size_bytes != sizes.get(name, info.size_bytes)
            or name.startswith(INTERNAL_PREFIX)  # no job has such outputs: the manifest was edited
        ):
            fate.changed.append(name)
        else:
            fate.remove.append(name)
    return fate


def _is_behind_a_link(bucket: Bucket, name: str) -> bool:
    """Whether a directory on the way to ``name`` is a link: nothing is removed behind a link."""
    path = bucket.local_path(name)
    if path is None:
        return False
    *directories, _ = name.split("/")
    top = path.parents[len(directories)]
    return Path(os.path.realpath(path.parent)) != Path(os.path.realpath(top), *directories)


def _remove_empty_directories(bucket: Bucket, names: Iterable[str]) -> None:
    """In a directory bucket, remove those directories of the objects that are empty now."""
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


POINTER_BYTES_MAX = 1 << 20
POINTER_TRIES_MAX = 10
_OURS = ("schedule", "job_id", "run_id", "manifest")


def move_pointer(result: Result, results: ScheduleResults, open_bucket: Opener) -> str:
    """Make the schedule's pointer name ``result``, which has been committed, or a newer committed
    result. The pointer only moves forward: a run that was due earlier and ends later does not
    change the pointer. Returns the reason if the pointer could not be written, else ""."""
    place = result.after_commit["pointer"]
    bucket = open_bucket(parse_bucket(place["bucket"]))
    name: str = place["name"]
    written: str | None = None
    for _ in range(POINTER_TRIES_MAX):
        # Each try reads the newest result again: since the last read, another process may have
        # written a newer pointer, which ours has replaced.
        newest, info, output_uri = _newest(result, results, open_bucket)
        if info is None or newest.job_id == written:
            return ""
        before, etag = _read(bucket, name)
        if before is not None and not all(isinstance(before.get(key), str) for key in _OURS):
            return f"{name} in {bucket.uri} is no pointer of a schedule, and is left as it is"
        if before is not None and before["run_id"] > newest.after_commit["run_id"]:
            return ""
        content = pointer_content(newest, info, output_uri)
        if before is None:
            is_ours = bucket.write_new(name, content)
        else:
            is_ours = bucket.write_over(name, content, etag)
        written = newest.job_id if is_ours else None
    return f"{name} in {bucket.uri} is changed by other writers again and again"


def pointer_content(result: Result, manifest: ObjectInfo, output_uri: str) -> bytes:
    """The pointer that names ``result``, whose ``manifest`` is in the bucket ``output_uri``. Its
    ``output_format`` is null if shards have several templates."""
    template = None if result.spec.get("outputs") else result.spec.get("output_format")
    committed = datetime.fromtimestamp(manifest.mtime_ns / 1e9, UTC)
    run = result.after_commit
    content = {
        "schedule": run["schedule"],
        "job_id": result.job_id,
        "output_uri": output_uri,
        "manifest": manifest_name(result.job_id),
        "prefix": names_prefix(template),
        "output_format": template,
        "run_id": run["run_id"],
        "date": run["date"],
        "epoch": run["epoch"],
        "committed_at": committed.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _newest(
    result: Result, results: ScheduleResults, open_bucket: Opener
) -> tuple[Result, ObjectInfo | None, str]:
    """The newest committed result that is not older than ``result``, its manifest, and the URI of
    the manifest's bucket."""
    schedule_id = result.after_commit["schedule_id"]
    known = [*results.unfinished(schedule_id), *results.finished(schedule_id)]
    newer = [each for each in known if each.order > result.order]
    for each in sorted(newer, key=lambda each: each.order, reverse=True):
        place = each.after_commit["pointer"]
        if place == result.after_commit["pointer"]:
            bucket = open_bucket(each.output_bck)
            info = each.manifest_info(bucket)
            if info is not None:
                return each, info, bucket.uri
    bucket = open_bucket(result.output_bck)
    return result, result.manifest_info(bucket), bucket.uri


def _read(bucket: Bucket, name: str) -> tuple[Mapping[str, Any] | None, str]:
    """(content of the pointer, or None without a pointer; the pointer's etag, which was read before
    the content)."""
    stored = bucket.stat_many([name]).get(name)
    if stored is None:
        return None, ""
    try:
        content = json.loads(read_small(bucket, name, bytes_max=POINTER_BYTES_MAX))
    except ObjectNotFoundError:
        return None, ""
    except (ValueError, RecursionError):
        content = {}
    return content if isinstance(content, dict) else {}, stored.etag


def run_after_commit(database: Database, job_id: str, open_bucket: Opener) -> list[JobWarning]:
    """Do the work that the schedule of the finished job ``job_id`` requires. A job without a
    schedule needs no such work.

    ``open_bucket``: opens buckets as the job itself does. Database errors are raised.
    """
    results = ScheduleResults(database)
    result = results.one(job_id)
    if result is None:
        return []
    warnings = []
    if result.after_commit["pointer"] is not None:
        try:
            problem = move_pointer(result, results, open_bucket)
        except DsortError as error:
            # The pointer may name a result that retention would remove: retention has to wait.
            text = f"the pointer to the latest result stays as it was: {error}"
            return [JobWarning(job_id, "latest", text)]
        if problem:
            warnings.append(JobWarning(job_id, "latest", problem))
    if result.after_commit["retain"] is not None:
        texts = apply_retention(result, results, open_bucket, now_s=time.time())
        warnings += [JobWarning(job_id, "retain", text) for text in texts]
    return warnings
