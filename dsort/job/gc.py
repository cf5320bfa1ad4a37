"""Finds and removes the files that dead jobs left behind.

Files of running jobs, manifests, and reports of aborted jobs are not garbage.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import xxhash
from msgspec import Struct, field

from dsort.containers.registry import container_of
from dsort.errors import (
    InputError,
    JobConflictError,
    ObjectNotFoundError,
    StorageError,
)
from dsort.job.amend import forget_removed
from dsort.job.sidecars import directory_file_names, noted_sidecars
from dsort.log_lines import logger_of
from dsort.results.journal import (
    JobDirectory,
    Opened,
    discard_run,
    forget_elsewhere,
    is_elsewhere,
    is_note_alone,
    journal_left,
    list_job_directories,
    outputs_left,
)
from dsort.results.journal_entries import JobAccepted
from dsort.results.layout import (
    index_name,
    job_directory,
    job_of,
    lineage_names,
    reactions_name,
    writes_prefix,
)
from dsort.results.lease import JobHold, Lease, last_attempt, read_hold
from dsort.results.transaction import Transaction
from dsort.runtime.machine import HERE, Machine
from dsort.runtime.ray.directory import rays_left, remove_ray_directory
from dsort.sidecars.kinds import parse_kinds, sidecar_names
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_blocks

OWNER_FILE: Final = "owner.json"
"""A file in each scratch directory: ``job_id``, ``output_uri`` and ``created`` of its job."""

_SCRATCH_DIRECTORIES = "dsort-*"
OWNER_BYTES_MAX = 1 << 16

log = logger_of("job")


class Upload(Protocol):
    """An upload that was begun and never completed. ``began_ns``: when the upload began, in ns
    since 1970."""

    @property
    def name(self) -> str: ...
    @property
    def upload_id(self) -> str: ...
    @property
    def began_ns(self) -> int: ...


@runtime_checkable
class KeepsUploads(Protocol):
    """A bucket whose store keeps uploaded parts until their upload is completed or aborted."""

    def unfinished_uploads(self) -> Iterable[Upload]: ...

    def abort_upload(self, name: str, upload_id: str) -> None: ...


class Garbage(Struct, frozen=True):
    """One thing that a job left behind.

    ``kind`` is ``job`` (a job's directory in the bucket), ``file`` (a write that was cut short),
    ``upload``, ``scratch`` (a directory of this machine), or ``ray`` (the directory of a Ray that a
    job had started, which belongs to no bucket). ``where``: name in the bucket, or path. ``job_id``
    is "" if no dead job is known to have left it. ``age_s``: seconds since it was last written to.
    ``resumable``: the job can be resumed as long as this garbage is not removed.
    """

    kind: str
    where: str
    what: str
    job_id: str
    objects: int
    size_bytes: int
    age_s: float
    resumable: bool = False
    upload_id: str = ""


def find_garbage(
    bucket: Bucket,
    *,
    scratch_bases: Sequence[Path] = (),
    ray_bases: Sequence[Path] = (),
    machine: Machine = HERE,
) -> list[Garbage]:
    """Everything that dead jobs left: in ``bucket``, in their ``dsort-*`` directories under
    ``scratch_bases``, and under ``ray_bases`` if a job had started a Ray; and unfinished uploads in
    the bucket that belong to no running job. Garbage of any age is found."""
    search = _Search(bucket, machine, list_job_directories(bucket))
    return [
        *search.jobs(),
        *search.files(),
        *search.uploads(),
        *(found for base in scratch_bases for found in search.scratch(base)),
        *(found for base in dict.fromkeys(ray_bases) for found in search.rays(base)),
    ]


def remove_garbage(
    bucket: Bucket,
    garbage: Garbage,
    *,
    machine: Machine = HERE,
    opened: Opened | None = None,
) -> None:
    """Remove ``garbage``. ``JobConflictError`` if a process has begun to run the job meanwhile.
    ``opened``: opens the buckets that outputs of the job have for themselves."""
    log.debug("%s is removed: %s", garbage.where, garbage.what)
    if garbage.kind == "job":
        _remove_job(bucket, garbage.job_id, machine, opened)
    elif garbage.kind == "file":
        bucket.delete(garbage.where)
    elif garbage.kind == "upload":
        if isinstance(bucket, KeepsUploads):
            bucket.abort_upload(garbage.where, garbage.upload_id)
    elif garbage.kind == "ray":
        remove_ray_directory(Path(garbage.where), machine=machine)
    else:
        try:
            shutil.rmtree(garbage.where)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot remove {garbage.where}: {error.strerror}") from None


def tidy_finished(
    bucket: Bucket,
    job_id: str,
    *,
    scratch_bases: Sequence[Path] = (),
    machine: Machine = HERE,
    opened: Opened | None = None,
) -> list[Garbage]:
    """Remove all garbage of a job that died after its manifest was written; returns this garbage.
    Nothing is removed while the coordinator is alive, because the coordinator removes the same
    things. ``opened``: as for ``remove_garbage``."""
    search = _Search(bucket, machine, list_job_directories(bucket, job_id))
    if not any(each.has_manifest and each.objects for each in search.directories):
        left = []
    else:
        left = [*(each for each in search.uploads() if each.job_id == job_id), *search.jobs()]
    scratch = (found for base in scratch_bases for found in search.scratch(base))
    left += [each for each in scratch if each.job_id == job_id]
    for each in left:
        remove_garbage(bucket, each, machine=machine, opened=opened)
    return left


def _remove_job(bucket: Bucket, job_id: str, machine: Machine, opened: Opened | None) -> None:
    # The lease is taken first, so that the job is not resumed while it is being removed.
    attempt = last_attempt(bucket, job_id) + 1
    lease = Lease.take(bucket, job_id, attempt=attempt, machine=machine)
    lease.keep()
    outputs = bucket
    try:
        kept = False
        for directory in list_job_directories(bucket, job_id):
            spec = journal_left(bucket, directory).accepted.spec
            outputs = outputs_left(bucket, directory.job_id, spec, opened)
            kept = directory.has_result or directory.has_report
            if directory.has_result and not directory.has_manifest:
                raise JobConflictError(f"the directory of job {directory.job_id} has a result")
            if directory.has_manifest:
                with contextlib.suppress(InputError):  # the manifest may be of a newer dsort
                    forget_removed(bucket, job_id)
            else:
                _remove_named(outputs, directory)
                for name in (reactions_name(job_id), *lineage_names(job_id)):
                    bucket.delete(name)
        # Removal may have taken long: nothing more is removed once another process has the job.
        lease.check()
        discard_run(outputs, job_id, lease=lease)
        if not kept:
            outputs.discard(job_directory(job_id))
        forget_elsewhere(outputs, job_id)
    finally:
        lease.close()


def _remove_named(bucket: Bucket, directory: JobDirectory) -> None:
    """Remove the output shards that a job had named before it died: without a manifest they are no
    result. An object is removed only if it has the bytes that the job wrote: another program may
    have stored something else under the name. Objects that the job had replaced are put back;
    ``StorageError`` if that fails."""
    state = journal_left(bucket, directory)
    planned, accepted = state.planned.shards, state.accepted
    names = [row.name for row in planned]
    beside = _beside(accepted, names)
    done = Transaction(bucket, directory.job_id).put_back([*names, *beside])
    if done.lost:
        raise StorageError(
            f"job {directory.job_id} is not removed: {done.words(bucket.uri)}",
            hint="free the name of the kept object, or move or remove the kept object",
        )
    if not state.committing:
        return
    notes = {"overwrite", "amend"} & {name for name, value in accepted.spec.items() if value}
    if notes and not done.was_noted:
        return  # the job gave no names: objects with equal bytes may be an older job's
    bucket.delete(index_name(directory.job_id))
    for each in noted_sidecars(bucket, directory.job_id):
        name = each.name
        if name in beside and name not in done.kept and _xxh3(bucket, name) == each.xxh3:
            bucket.delete(name)
    for ordinal, row in enumerate(planned):
        created = state.created.get(ordinal)
        if row.name in done.kept:
            continue
        if created and _xxh3(bucket, row.name) == created.xxh3:
            bucket.delete(row.name)


def _xxh3(bucket: Bucket, name: str) -> str:
    """XXH3 (64 bits) of an object, as in journals and manifests; "" if there is none."""
    digest = xxhash.xxh3_64()
    try:
        with bucket.open(name) as opened:
            for block in read_blocks(opened):
                digest.update(block)
    except ObjectNotFoundError:
        return ""
    return digest.hexdigest()


_COPIED = "a materialization that died; the next `dsort materialize` into the bucket removes it"


class _Search(Struct):
    bucket: Bucket
    machine: Machine
    directories: list[JobDirectory]
    holds: dict[str, JobHold] = field(default_factory=dict)

    def jobs(self) -> Iterator[Garbage]:
        for each in self.directories:
            if each.has_result and not each.has_manifest:
                continue  # holds a manifest of another job
            if is_elsewhere(each) and not is_note_alone(each):
                continue  # found in the bucket that has the job's files
            if each.objects and not self._is_live(each.job_id):
                died = each.has_journal and not each.has_manifest
                copied = died and journal_left(self.bucket, each).materializes
                yield Garbage(
                    kind="job",
                    where=job_directory(each.job_id),
                    what=_COPIED if copied else _what_is_left(each),
                    job_id=each.job_id,
                    objects=each.objects,
                    size_bytes=each.size_bytes,
                    age_s=self._age_s(each.newest_ns),
                    resumable=died and not copied,
                )

    def files(self) -> Iterator[Garbage]:
        for each in self.bucket.list(writes_prefix()):
            age_s = self._age_s(each.mtime_ns)
            what = "a write that was cut short"
            yield Garbage("file", each.name, what, "", 1, each.size_bytes, age_s)

    def uploads(self) -> Iterator[Garbage]:
        bucket = self.bucket
        found = list(bucket.unfinished_uploads()) if isinstance(bucket, KeepsUploads) else []
        if not found:
            return
        live = self._owners(each for each in self.directories if self._is_live(each.job_id))
        dead = self._owners(each for each in self.directories if not self._is_live(each.job_id))
        has_guests = any(is_elsewhere(each) for each in self.directories)
        for each in found:
            if _owner(each.name, live):
                continue  # not garbage, even if a dead job wrote to this name, too
            job_id = _owner(each.name, dead)
            if has_guests and not job_id:
                continue  # may be of jobs in other buckets, which have these jobs' names
            what = "an unfinished upload" + (
                f" of job {job_id}" if job_id else " of a job that is unknown here"
            )
            age_s = self._age_s(each.began_ns, job_id)
            yield Garbage("upload", each.name, what, job_id, 1, 0, age_s, upload_id=each.upload_id)

    def scratch(self, base: Path) -> Iterator[Garbage]:
        for path in sorted(base.glob(_SCRATCH_DIRECTORIES)):
            job_id = _scratch_owner(path, self.bucket.uri)
            if job_id and not self._is_live(job_id):
                files, size_bytes, newest_ns = measure_directory(path)
                yield Garbage(
                    kind="scratch",
                    where=str(path),
                    what=f"scratch of job {job_id}",
                    job_id=job_id,
                    objects=files,
                    size_bytes=size_bytes,
                    age_s=self._age_s(newest_ns, job_id),
                )

    def rays(self, base: Path) -> Iterator[Garbage]:
        for left in rays_left(base, machine=self.machine):
            files, size_bytes, newest_ns = measure_directory(left.path)
            running = f" and {left.processes} process{'es' if left.processes > 1 else ''}"
            yield Garbage(
                kind="ray",
                where=str(left.path),
                what=f"files{running if left.processes else ''} of a Ray whose job died",
                job_id="",
                objects=files,
                size_bytes=size_bytes,
                age_s=self._age_s(newest_ns),
            )

    def _is_live(self, job_id: str) -> bool:
        if job_id not in self.holds:
            self.holds[job_id] = read_hold(self.bucket, job_id, machine=self.machine)
        return self.holds[job_id].live

    def _age_s(self, then_ns: int, job_id: str = "") -> float:
        """Seconds since ``then_ns``. The files of a job are as young as the newest of them, because
        the job may be resumed."""
        own = [each.newest_ns for each in self.directories if each.job_id == job_id]
        return max(self.machine.now_s() - max(then_ns, *own, 0) / 1e9, 0.0)

    def _owners(self, directories: Iterable[JobDirectory]) -> dict[str, str]:
        """By the name of each object that a job may upload: the id of the job."""
        owners: dict[str, str] = {}
        for each in directories:
            owners[job_directory(each.job_id)] = each.job_id
            owners[index_name(each.job_id)] = each.job_id
            for name in _planned_names(self.bucket, each):
                owners[name] = each.job_id
        return owners


def _owner(name: str, owners: Mapping[str, str]) -> str:
    job_id = job_of(name)
    return owners.get(job_directory(job_id) if job_id else name, "")


def _planned_names(bucket: Bucket, directory: JobDirectory) -> list[str]:
    state = journal_left(bucket, directory)
    if not state.planned:
        return []
    names = [row.name for row in state.planned.shards]
    return [*names, *_beside(state.accepted, names)]


def _beside(accepted: JobAccepted, shards: Sequence[str]) -> list[str]:
    """The names that a job stages after its output ``shards``, in order."""
    if not accepted:
        return []
    spec = accepted.spec
    containers = [container_of(str(spec.get("output_extension")))] * len(shards)
    if spec.get("outputs"):  # names show the container of each output
        containers = [container_of(name) for name in shards]
    sidecars = sidecar_names(parse_kinds(spec.get("index")), shards)
    return [*directory_file_names(containers, shards), *(each.name for each in sidecars)]


def _what_is_left(directory: JobDirectory) -> str:
    if is_note_alone(directory):
        return "the note of a job in another bucket that was to write outputs here"
    if directory.has_manifest:
        return "working files of a finished job"
    if "replaced" in directory.parts:
        return "a job that ended while it replaced objects; the replaced objects are kept there"
    if directory.has_journal:
        return "a job that died"
    return "working files of an aborted job" if directory.has_report else "a job that died early"


def _scratch_owner(path: Path, output_uri: str) -> str:
    """The job that owns the scratch directory ``path`` and has its output in ``output_uri``; else
    ""."""
    if path.is_symlink():
        return ""
    try:
        # On a cluster each node has a directory of its own in ``path``, with the same content.
        files = (path / OWNER_FILE, *path.glob(f"*/{OWNER_FILE}"))
        owner = json.loads(_own_bytes(next(file for file in files if file.exists())))
        return str(owner["job_id"]) if owner["output_uri"] == output_uri else ""
    except (OSError, RecursionError, ValueError, LookupError, TypeError, StopIteration):
        return ""  # no directory that dsort made


def _own_bytes(path: Path) -> bytes:
    """The content of a small file of this user. ``ValueError`` for any other file, because every
    user may make directories, with pipes in them, in the temporary directory."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError(f"{path} is no regular file of this user")
        return file.read(OWNER_BYTES_MAX)


def measure_directory(directory: Path) -> tuple[int, int, int]:
    """(number of files, their bytes, time of the last write in ns since 1970) of a directory."""
    files, size_bytes, newest_ns = 0, 0, 0
    for path in (directory, *directory.rglob("*")):
        try:
            status = path.lstat()
        except OSError:
            continue  # it was removed in the meantime
        newest_ns = max(newest_ns, status.st_mtime_ns)
        if not path.is_dir():
            files, size_bytes = files + 1, size_bytes + status.st_size
    return files, size_bytes, newest_ns
