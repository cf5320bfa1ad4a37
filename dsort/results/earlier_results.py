"""Results of earlier jobs: their objects, the times of their commits, and the jobs that replaced
them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

from dsort.data.tally import Tally
from dsort.errors import ObjectNotFoundError, ShardEndError, StorageError
from dsort.moves.input_shard import InputShard
from dsort.results.job_ids import moment_of_id
from dsort.results.layout import job_of, manifest_name
from dsort.results.manifest import Manifest
from dsort.results.transaction import each_at_once
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo
from dsort.storage.routed import place_of
from dsort.storage.small_objects import read_bytes, read_small

MANIFESTS_MAX = 16
MANIFEST_BYTES_MAX = 16 << 20
"""A manifest of this size has some 100,000 outputs. Larger manifests are not read, because every
job would read them before it begins."""
HEAD_BYTES: Final = 1 << 10
CLOCKS_APART_MAX: Final = timedelta(days=1)
_CREATED: Final = re.compile(rb'"created"\s*:\s*"([^"\\]{1,40})"')
_IN_THE_YEAR: Final = "%m%d-%H%M%S.%f"
MANIFESTS_READ_MAX: Final = 100
LATER_MANIFEST_BYTES_MAX: Final = 256 << 20


class KnownOutput(Struct, frozen=True):
    """An object as the job ``job_id`` wrote it. ``written_ns``: when its manifest was written;
    ``sources``: (name, etag) of each object that the job read."""

    job_id: str
    file_bytes: int
    xxh3: str
    written_ns: int
    sources: frozenset[tuple[str, str]]


def known_outputs(bucket: Bucket, names: Iterable[str]) -> dict[str, KnownOutput]:
    """The facts about ``names`` in the manifests of ``bucket``; if several manifests have a name,
    the newest one counts. The result is empty for a bucket that cannot be listed, because a job can
    do without these facts."""
    wanted, found = set(names), dict[str, KnownOutput]()
    try:
        for info in _newest_manifests(bucket):
            if not wanted:
                break
            job_id, content = job_of(info.name), _content(bucket.read(info.name))
            rows = [row for row in _outputs_in(content) if row[0] in wanted]
            sources = frozenset(_inputs_in(content)) if rows else frozenset()
            for name, file_bytes, xxh3 in rows:
                found[name] = KnownOutput(job_id, file_bytes, xxh3, info.mtime_ns, sources)
                wanted.discard(name)
    except StorageError:
        return found
    return found


def _newest_manifests(bucket: Bucket) -> Sequence[ObjectInfo]:
    small = [info for info in manifests_in(bucket) if info.size_bytes <= MANIFEST_BYTES_MAX]
    newest = sorted(small, key=lambda info: info.mtime_ns, reverse=True)[:MANIFESTS_MAX]
    return newest_first(bucket, newest)


def listed_outputs(data: bytes) -> Iterator[tuple[str, int, str]]:
    """(name, file_bytes, xxh3) of each output in a manifest; anything malformed is left out."""
    return _outputs_in(_content(data))


def _outputs_in(content: Any) -> Iterator[tuple[str, int, str]]:
    for row in _rows(content, "outputs"):
        name, file_bytes, xxh3 = row.get("name"), row.get("file_bytes"), row.get("xxh3")
        if isinstance(name, str) and type(file_bytes) is int and isinstance(xxh3, str):
            yield name, file_bytes, xxh3


def _inputs_in(content: Any) -> Iterator[tuple[str, str]]:
    for row in _rows(content, "inputs"):
        name, etag = row.get("name"), row.get("etag")
        if isinstance(name, str) and isinstance(etag, str):
            yield name, etag


def _content(data: bytes) -> Any:
    """The JSON value of a manifest; None if it is no JSON."""
    try:
        return json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def _rows(content: Any, field: str) -> Iterator[dict[str, Any]]:
    rows = content.get(field) if isinstance(content, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            yield row


def checksums(
    inputs: Sequence[InputShard], known: Mapping[str, KnownOutput]
) -> dict[int, tuple[str, str]]:
    """(XXH3, job id) by ordinal of each input that a job wrote and that was not changed since."""
    found = {}
    for ordinal, shard in enumerate(inputs):
        wrote = known.get(shard.name)
        if wrote and wrote.file_bytes == shard.size_bytes and shard.mtime_ns <= wrote.written_ns:
            found[ordinal] = (wrote.xxh3, wrote.job_id)
    return found


def compare_sizes(
    inputs: Sequence[InputShard],
    known: Mapping[str, KnownOutput],
    incomplete_shards: str,
    tally: Tally,
) -> None:
    """``ShardEndError`` for an input whose size differs from the manifest of the job that wrote it,
    unless it was written again after that. If ``incomplete_shards`` allows such an input, it is
    counted instead."""
    for shard in inputs:
        wrote = known.get(shard.name)
        if not wrote or wrote.file_bytes == shard.size_bytes:
            continue
        text = f"{shard.size_bytes:,} bytes; job {wrote.job_id} wrote {wrote.file_bytes:,}"
        if shard.mtime_ns > wrote.written_ns:
            tally.add("replaced_inputs", 1, [f"{shard.name} ({text})"])
        elif incomplete_shards == "abort":
            raise ShardEndError(
                f"shard {shard.name} may not be whole: it has {text}",
                hint="fetch or make it again; incomplete_shards: warn uses its readable part",
            )
        else:
            tally.add("incomplete_shards", 1, [f"{shard.name} ({text})"])


def count_read_again(
    inputs: Sequence[InputShard], known: Mapping[str, KnownOutput], tally: Tally
) -> None:
    """Count the inputs that an earlier job read, if outputs of that job are among the inputs, too:
    a job that writes to its input bucket adds shards, and the next job over the bucket reads all of
    them."""
    sources = {wrote.job_id: wrote.sources for wrote in known.values()}
    for shard in inputs:
        for job_id, read in sources.items():
            if (shard.name, shard.etag) in read:
                tally.add("read_again", 1, [f"{shard.name} (by job {job_id})"])
                break


# The moment of a commit is the field `created` of its manifest. The store's time of a manifest may
# be the time of a copy, and the id of a job has the time at which the job began.
class Commit(NamedTuple):
    """When a result was committed; commits sort by time. ``moment``: in UTC, as
    ``20260131-235959.123456``."""

    moment: str
    job_id: str


def commit_of(created: str, job_id: str) -> Commit:
    """The commit of a job whose manifest has this ``created``. If ``created`` is no time, the begin
    of the job is used instead."""
    try:
        moment = datetime.fromisoformat(created)
        at = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (OverflowError, ValueError):
        return Commit(moment_of_id(job_id), job_id)
    return Commit(f"{at.year:04d}{at.strftime(_IN_THE_YEAR)}", job_id)


def commits(bucket: Bucket, job_ids: Iterable[str]) -> list[Commit]:
    """The commits of the jobs that have a manifest in ``bucket``, the newest first."""
    found: list[Commit] = []

    def look(job_id: str) -> None:
        try:
            with bucket.open(manifest_name(job_id)) as opened:
                head = read_bytes(opened, 0, min(opened.info.size_bytes, HEAD_BYTES))
        except ObjectNotFoundError:
            return
        created = _CREATED.search(head)
        text = created[1].decode("ascii", "replace") if created else ""
        found.append(commit_of(text, job_id))

    each_at_once(bucket, [*job_ids], look)
    return sorted(found, reverse=True)


def newest_first(bucket: Bucket, manifests: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """The given manifests of ``bucket``, the last commit first."""
    if len(manifests) < 2:
        return [*manifests]
    by_job = {job_of(info.name): info for info in manifests}
    return [by_job[each.job_id] for each in commits(bucket, by_job)]


# Manifests are in the bucket, if it was an output bucket before. Everyone with access may have
# written there: unreadable manifests are passed over, and only a few are read.
def manifests_in(bucket: Bucket) -> Iterator[ObjectInfo]:
    """All manifests in ``bucket``."""
    for info in bucket.list(INTERNAL_PREFIX):
        if info.name == manifest_name(job_of(info.name)):
            yield info


def later_than(before: Commit | None) -> str:
    """The present time in the form of a manifest. It is later than ``before``, even if this clock
    is behind, because the result with the latest commit counts as the newest one of a bucket."""
    now = datetime.now(UTC)
    if before:
        with contextlib.suppress(ValueError):  # the moment may come from any job id
            earlier = datetime.strptime(before.moment, f"%Y{_IN_THE_YEAR}").replace(tzinfo=UTC)
            if now <= earlier < now + CLOCKS_APART_MAX:
                now = earlier + timedelta(microseconds=1)
    return now.isoformat(timespec="microseconds")


class Replacement(Struct, frozen=True):
    """A job that committed a result under names of another result. ``names``: the sorted names of
    the other result's shards that the later job has replaced; ``total``: how many shards that
    result had."""

    job_id: str
    names: tuple[str, ...]
    total: int

    @property
    def words(self) -> str:
        """What happened to the result, in words."""
        which = "all" if len(self.names) == self.total else f"{len(self.names):,} of"
        return f"{which} {self.total:,} output shards were replaced by job {self.job_id}"


def later_results(bucket: Bucket, created: str, job_id: str) -> list[str]:
    """The ids of the jobs whose results were committed to ``bucket`` after the result of
    ``job_id``; the last commit first. ``created``: the time of that result."""
    own = commit_of(created, job_id)
    others = {job_of(info.name) for info in manifests_in(bucket)} - {job_id}
    return [each.job_id for each in commits(bucket, others) if each > own]


def replacements(bucket: Bucket, manifest: Manifest) -> list[Replacement]:
    """The jobs that replaced shards of the result of ``manifest``, which is in ``bucket``; the last
    commit comes first. Only shards in the bucket of the manifest are checked, and only the newest
    manifests are read."""
    later = later_results(bucket, manifest.created, manifest.job_id)
    left = {
        shard.name: (shard.file_bytes, shard.xxh3)
        for shard in manifest.outputs
        if not place_of(shard.name)[0]
    }
    found: list[Replacement] = []
    for job_id in later[:MANIFESTS_READ_MAX]:
        try:
            data = read_small(bucket, manifest_name(job_id), bytes_max=LATER_MANIFEST_BYTES_MAX)
        except ObjectNotFoundError:
            continue
        rows = [row for row in listed_outputs(data) if row[0] in left]
        changed = {name: size for name, size, xxh3 in rows if left[name] != (size, xxh3)}
        there = bucket.stat_many(changed)
        # A shard of another size was written by a third job, or again by the earlier job.
        names = [name for name, info in there.items() if info.size_bytes == changed[name]]
        if names:
            found.append(Replacement(job_id, tuple(sorted(names)), len(manifest.outputs)))
        for name, *_ in rows:
            left.pop(name, None)
    return found
