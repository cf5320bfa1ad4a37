"""The journal of a job in its output bucket: written while the job runs, read to resume it; and
notes of the job in buckets that some of its outputs have for themselves.

Lease, journal and manifest are in the main bucket alone. In another bucket, ``dsort gc`` reads the
notes, so that it does not remove staged objects as garbage.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from dsort.errors import (
    InvariantError,
    JobConflictError,
    ObjectNotFoundError,
    SpecError,
    StorageError,
)
from dsort.log_lines import logger_of
from dsort.results.journal_entries import JournalEvent, JournalState, decode_segment, encode_segment
from dsort.results.layout import (
    HOLD_PARTS,
    MANIFEST,
    RUN_PARTS,
    amended_name,
    elsewhere_name,
    job_directory,
    job_of,
    journal_prefix,
    lineage_names,
    manifest_name,
    on_shard_name,
    reactions_name,
    rejects_name,
    removed_name,
    report_name,
    result_name,
    segment_name,
    segment_of,
)
from dsort.results.lease import NO_LEASE, Lease, NoLease, last_attempt
from dsort.spec.load import parse_spec
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo
from dsort.storage.ref import BucketRef
from dsort.storage.routed import Routed, routed_outputs
from dsort.storage.small_objects import read_json, read_small

FLUSH_S = 1.0
EVENTS_MAX = 1000
READS_AT_ONCE = 16
SEGMENT_BYTES_MAX = 1 << 30

log = logger_of("job")


class NoJournalError(JobConflictError):
    """A job has no journal. Only the report of the job, if there is one, shows which files are
    left."""


class Journal:
    """Appends to a job's journal, in attempt ``attempt``.

    Events wait in memory. ``flush`` stores them, and so does ``append``, if the last flush was a
    second ago or 1,000 events wait. A death loses the events that wait. For one thread.
    """

    def __init__(
        self,
        bucket: Bucket,
        job_id: str,
        attempt: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._job_id = job_id
        self._attempt = attempt
        self._clock = clock
        self._flushed_s = clock()
        self._waiting: list[JournalEvent] = []
        self._sequence = 0

    @property
    def is_waiting(self) -> bool:
        """Whether some appended events are not stored yet."""
        return bool(self._waiting)

    def append(self, event: JournalEvent) -> None:
        """Append an event. ``StorageError`` if events had to be stored now and could not be. They
        are kept, and the next call tries again."""
        self._waiting.append(event)
        if len(self._waiting) >= EVENTS_MAX or self._clock() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Store all appended events; once it returns, they survive a death."""
        if self._waiting:
            name = segment_name(self._job_id, self._attempt, self._sequence)
            self._bucket.write(name, encode_segment(self._waiting))
            log.debug("the segment %s has %d events", name, len(self._waiting))
            self._waiting.clear()
            # Only after the write: a segment that could not be stored is tried again under its
            # number.
            self._sequence += 1
        self._flushed_s = self._clock()


class NoJournal:
    """The journal of a dry run, which stores nothing."""

    is_waiting = False

    def append(self, event: JournalEvent) -> None:
        """See :class:`Journal`."""

    def flush(self) -> None:
        """See :class:`Journal`."""


def read_journal(bucket: Bucket, job_id: str) -> JournalState:
    """The state that follows from the journal of a job.

    ``NoJournalError`` if there is none. ``JobConflictError`` if it has another format.
    ``StorageError`` if it is damaged.
    """
    state = JournalState()
    segments = _segments(bucket, job_id)
    if not segments:
        raise NoJournalError(
            f"job {job_id} has no journal in {bucket.uri}: there is nothing to resume",
            hint="start the job again",
        )
    with ThreadPoolExecutor(min(READS_AT_ONCE, len(segments))) as pool:
        read = partial(read_small, bucket, bytes_max=SEGMENT_BYTES_MAX)
        texts = pool.map(read, (name for _, name in segments))
        for (attempt, name), text in zip(segments, texts, strict=True):
            state.begin_attempt(attempt)
            try:
                for event in decode_segment(text):
                    state.apply(event)
            except (InvariantError, StorageError) as error:
                raise StorageError(f"{name}: {error.message}", hint=error.hint) from None
    # The last attempts may have died before they wrote a segment.
    state.begin_attempt(last_attempt(bucket, job_id))
    log.debug(
        "the journal of job %s has %d segments: %d attempts, %d shards extracted, %d created",
        *(job_id, len(segments), state.attempts, len(state.extracted), len(state.created)),
    )
    return state


def journal_left(bucket: Bucket, directory: JobDirectory) -> JournalState:
    """The state that follows from the journal of a job that died; empty if there is no journal, or
    dsort cannot read it: an unreadable journal must not prevent the removal of other files."""
    if not directory.has_journal:
        return JournalState()
    try:
        state = read_journal(bucket, directory.job_id)
        state.check()
        return state
    except (InvariantError, JobConflictError, StorageError):
        return JournalState()


def _segments(bucket: Bucket, job_id: str) -> list[tuple[int, str]]:
    """(attempt, name) of each segment, in order. ``StorageError`` if a segment is missing between
    others."""
    by_attempt: dict[int, dict[int, str]] = defaultdict(dict)
    try:
        for found in bucket.list(journal_prefix(job_id)):
            if segment := segment_of(found.name):
                attempt, sequence = segment
                by_attempt[attempt][sequence] = found.name
    except ObjectNotFoundError:
        return []  # there is not even a bucket
    for attempt, names in by_attempt.items():
        # Numbers begin at 0, so a whole attempt has one more name than its last number.
        if len(names) <= max(names):
            missing = next(at for at in range(len(names) + 1) if at not in names)
            raise StorageError(
                f"segment {missing} of attempt {attempt} is missing in the journal of job "
                f"{job_id} in {bucket.uri}",
                hint="the job cannot be resumed; start it again",
            )
    return [
        (attempt, by_attempt[attempt][at])
        for attempt in sorted(by_attempt)
        for at in sorted(by_attempt[attempt])
    ]


class JobDirectory(Struct, frozen=True):
    """The content of ``.dsort/<job id>/`` of a bucket: its objects, by the part to which they
    belong.

    ``objects`` and ``size_bytes`` count all but manifest and report; ``newest_ns``: when the last
    of these was written, in ns since 1970 (0: there are none). ``has_result``: the directory has a
    manifest, so it is no garbage. Older versions may have written the manifest of another job
    there.
    """

    job_id: str
    has_result: bool
    has_manifest: bool
    has_report: bool
    has_journal: bool
    parts: frozenset[str]
    objects: int
    size_bytes: int
    newest_ns: int


def list_job_directories(bucket: Bucket, job_id: str = "") -> list[JobDirectory]:
    """All job directories of a bucket, by job id, or the one of ``job_id``."""
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for each in bucket.list(job_directory(job_id) if job_id else INTERNAL_PREFIX):
        if owner := job_of(each.name):
            found[owner].append(each)
    return [_directory(owner, objects) for owner, objects in sorted(found.items())]


def _directory(job_id: str, objects: Iterable[ObjectInfo]) -> JobDirectory:
    kept_names = {manifest_name(job_id), report_name(job_id), result_name(job_id)}
    names = {each.name for each in objects}
    if manifest_name(job_id) in names:
        beside = (reactions_name(job_id), rejects_name(job_id), on_shard_name(job_id))
        amending = (removed_name(job_id), amended_name(job_id))
        kept_names |= {*beside, *amending, *lineage_names(job_id)}
    run = [each for each in objects if each.name not in kept_names]
    inside = {each.name.removeprefix(job_directory(job_id)) for each in run}
    parts = frozenset(name.partition("/")[0] for name in inside)
    return JobDirectory(
        job_id=job_id,
        has_result=any(name.endswith(f"/{MANIFEST}") for name in names),
        has_manifest=manifest_name(job_id) in names,
        has_report=report_name(job_id) in names,
        has_journal="journal" in parts,
        parts=parts,
        objects=len(run),
        size_bytes=sum(each.size_bytes for each in run),
        newest_ns=max((each.mtime_ns for each in run), default=0),
    )


def discard_run(
    bucket: Bucket, job_id: str, *, lease: Lease | NoLease = NO_LEASE, names: Collection[str] = ()
) -> None:
    """Remove all of a job but its manifest and its report.

    ``lease``: the lease of the job, if it is still renewed. It is closed once most objects are
    removed, because removal may take longer than a lease lasts. ``names``: the names of its output
    shards, if uploads to them may be unfinished.
    """
    own = job_directory(job_id)
    log.debug("the working files of job %s are removed from %s", job_id, bucket.uri)
    try:
        bucket.discard(*(f"{own}{part}" for part in RUN_PARTS), names=names)
    finally:
        lease.close()
    bucket.discard(*(f"{own}{part}" for part in HOLD_PARTS))


Opened = Callable[[BucketRef], Bucket]
_BYTES_MAX = 1 << 16
_NOTE = elsewhere_name("").rpartition("/")[2]


def note_elsewhere(bucket: Bucket, job_id: str) -> None:
    """Note in all other buckets of ``bucket`` where the job is."""
    _note(bucket, job_id, elsewhere_name(job_id))


def forget_elsewhere(bucket: Bucket, job_id: str) -> None:
    """Remove the notes in other buckets, so that only the job's result is left there."""
    for other in _others(bucket).values():
        other.delete(elsewhere_name(job_id))
        other.discard(elsewhere_name(job_id))


def tell_result(bucket: Bucket, job_id: str) -> None:
    """Note in all other buckets of ``bucket`` where the manifest is, which exists by now."""
    _note(bucket, job_id, result_name(job_id))


def _note(bucket: Bucket, job_id: str, name: str) -> None:
    content = json.dumps({"job_id": job_id, "output_uri": bucket.uri}).encode()
    for other in _others(bucket).values():
        other.write(name, content)


def result_elsewhere(bucket: Bucket, job_id: str) -> str:
    """The URI of the bucket with the manifest of a job, from the job's note in ``bucket``.
    ``StorageError`` if dsort did not write the note."""
    found = read_json(bucket, result_name(job_id), bytes_max=_BYTES_MAX)
    uri = found.get("output_uri") if isinstance(found, dict) else None
    if not isinstance(uri, str) or found.get("job_id") != job_id:
        raise StorageError(f"{result_name(job_id)} in {bucket.uri} does not name the job's bucket")
    return uri


def is_elsewhere(directory: JobDirectory) -> bool:
    """Whether the job of a directory is in another bucket, and has only outputs in this bucket."""
    return _NOTE in directory.parts


def is_note_alone(directory: JobDirectory) -> bool:
    """Whether only the note of a job in another bucket is left, as after an aborted job."""
    return directory.parts == {_NOTE}


def refuse_unnoted(bucket: Bucket, job_id: str) -> None:
    """``JobConflictError`` if a bucket of the job has no note of it."""
    for other in _others(bucket).values():
        if not _is_noted(other, bucket, job_id):
            raise JobConflictError(
                f"the files of job {job_id} in {bucket.uri} name the bucket {other.uri}, "
                "which has no note of the job",
                hint="start the job again",
            )


def outputs_left(
    main: Bucket, job_id: str, spec: Mapping[str, Any], opened: Opened | None
) -> Bucket:
    """All buckets to which a job with this ``spec`` in its journal has written, as one bucket;
    ``main`` itself if there is no other. ``StorageError`` if a bucket cannot be opened. If
    ``opened`` is None, no bucket is opened."""
    try:
        targets = parse_spec(dict(spec)).spec.targets
    except SpecError:
        return main
    own = {target.place: target.bucket for target in targets if target.bucket}
    others = {name: opened(ref) for name, ref in own.items() if opened}
    noted = {name: each for name, each in others.items() if _is_noted(each, main, job_id)}
    return routed_outputs(main, noted) if own else main


def _others(bucket: Bucket) -> Mapping[str, Bucket]:
    return bucket.others if isinstance(bucket, Routed) else {}


def _is_noted(other: Bucket, main: Bucket, job_id: str) -> bool:
    try:
        found = read_json(other, elsewhere_name(job_id), bytes_max=_BYTES_MAX)
    except ObjectNotFoundError:
        return False
    except StorageError as error:
        raise StorageError(f"{other.uri}: {error.message}", hint=error.hint) from None
    uri = found.get("output_uri") if isinstance(found, dict) else None
    if uri == main.uri:
        return True
    place = main.local_path("x")
    if not isinstance(uri, str) or not place:
        return False
    there = unquote(uri.removeprefix("file://"), errors="surrogateescape")
    # It may be the same directory by another path, through a link.
    return os.path.realpath(there) == os.path.realpath(place.parent)
