"""Loose files as the inputs of a job: listed once, and the same ones for every worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dsort.data.tally import Tally
from dsort.errors import ChangedInputError, InputError, SpecError, SpecProblem, StorageError
from dsort.job.inputs import refuse_absent, refuse_changed_files, resolve_inputs
from dsort.job.job import Job
from dsort.job.setup import named_text
from dsort.loose_files.bucket import LISTING_FILE, FilesBucket
from dsort.naming.locations import FileLocation
from dsort.options import RunOptions
from dsort.scratch.columns import ColumnFile
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.routed import bucket_named, placed_at

if TYPE_CHECKING:
    from dsort.loose_files.listing import Listing

_NAMES = ("utf-8", "surrogateescape")

WrittenBy = Callable[[Sequence[tuple[str, str]]], Sequence[bytes]]
"""As in ``loose_files.recipe``, which few jobs load."""


def files_of(
    spec: JobSpec,
    bucket: Bucket,
    options: RunOptions,
    tally: Tally,
    *,
    known_classes: Mapping[bytes, int] | None = None,
    check: Callable[[], None] = lambda: None,
    written_by: WrittenBy | None = None,
) -> FilesBucket:
    """The files that the ``ingest`` of a spec names, as a bucket of shards. ``bucket``: of the
    inputs. The files are listed once the bucket is used; ``known_classes``, ``written_by`` and
    errors: as for ``list_members``."""
    from dsort.keymap.fetch import TextKind
    from dsort.loose_files.gather import list_members  # jobs over shards load neither

    rules = spec.ingest
    assert rules is not None
    buckets = [bucket_named(bucket, source.name) for source in spec.sources]

    def read(location: FileLocation) -> bytes:
        text = named_text(location, TextKind("file", "the path", "copy it", InputError), options)
        return text.encode("utf-8", "surrogateescape")

    def listed() -> Listing:
        return list_members(
            rules,
            spec.sources,
            buckets,
            tally,
            read,
            known_classes=known_classes,
            check=check,
            written_by=written_by,
        )

    return FilesBucket(buckets, listed)


def list_files(job: Job, tally: Tally, written_by: WrittenBy | None = None) -> None:
    """List the files of the job and make them its shards. ``written_by``: as for
    ``list_members``."""
    for source in job.spec.sources:
        refuse_absent(source, bucket_named(job.buckets.inputs, source.name))
    _refuse_outputs_inside(job)
    check = job.stop.raise_if_requested
    known = _known_classes(job)
    files = files_of(
        job.spec,
        job.buckets.inputs,
        job.options,
        tally,
        known_classes=known,
        check=check,
        written_by=written_by,
    )
    job.buckets.inputs = files
    assert files.listing is not None


def list_files_again(job: Job) -> None:
    """List the files again, for a job that an earlier attempt began. ``ChangedInputError`` unless
    all files are as that attempt found them."""
    list_files(job, Tally())
    if resolve_inputs(job.spec, job.buckets.inputs, Tally()) == job.inputs:
        return
    assert isinstance(job.buckets.inputs, FilesBucket)
    kept = job.attempt.retained(LISTING_FILE)
    if kept is not None:
        from dsort.loose_files.listing import Listing

        try:
            before = Listing.read(ColumnFile(kept, LISTING_FILE))
        except StorageError:
            before = job.buckets.inputs.listing
        refuse_changed_files(FilesBucket(job.buckets.inputs.buckets, lambda: before))
    raise ChangedInputError(
        "files came to the inputs, or went, or what is said of them changed, since the job began",
        hint="put them back, or start the job again",
    )


def retain_files(job: Job) -> None:
    """Retain the listing, by which a later attempt finds out which files changed."""
    if isinstance(job.buckets.inputs, FilesBucket):
        job.attempt.retain(LISTING_FILE, job.buckets.inputs.listing.to_bytes())


def share_files(job: Job) -> None:
    """Give all nodes the listing."""
    if isinstance(job.buckets.inputs, FilesBucket):
        job.runtime.share(LISTING_FILE, job.buckets.inputs.listing.to_bytes())


def classes_of(job: Job) -> Mapping[str, int]:
    """The number of each class of the job's files, and of those of a result that it amends."""
    base = job.found.base
    if isinstance(job.buckets.inputs, FilesBucket):
        found = job.buckets.inputs.listing.classes
        if found:
            return {name.decode(*_NAMES): number for name, number in found.items()}
    return base.classes


def _known_classes(job: Job) -> Mapping[bytes, int] | None:
    """The number of each class of the result that the job adds files to; None if there is no such
    result, or its classes have no numbers."""
    base = job.found.base
    if not job.amends:
        return None
    if not base.classes:
        own = [base.spec, *(part.spec for part in base.history.earlier)]
        rules = [each.ingest for each in own if each.ingest is not None]
        if any(each.layout == "folders" and each.class_map is None for each in rules):
            raise InputError(
                f"the manifest of job {base.job_id} does not say which number each class has",
                hint="an earlier dsort made it: ingest all again",
            )
        return None
    return {name.encode(*_NAMES): number for name, number in base.classes.items()}


def _refuse_outputs_inside(job: Job) -> None:
    """``SpecError`` if outputs would lie among the input files: a later listing would contain
    them."""
    source, target = job.buckets.identities  # of the buckets: nothing is listed yet
    where = [target.identity(placed_at(place, "x")) for place in target.buckets]
    for each in job.spec.sources:
        bucket = source.buckets[each.name]
        inside = _directory_of(each.format.prefix or "")
        start = bucket.identity(f"{inside}x").removesuffix("x")
        if any(name.startswith(start) for name in where):
            text = f"is inside the input {each.bucket.uri}: outputs would be listed as files"
            hint = "use a bucket beside it, or an input_format.prefix that does not hold it"
            raise SpecError([SpecProblem("output_bck", text, hint)])


def _directory_of(prefix: str) -> str:
    return prefix[: prefix.rfind("/") + 1]
