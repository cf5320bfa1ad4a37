"""Objects of the output bucket that have names of a new result, or remain from an older one.

Names that are taken are refused as soon as they can be known. If a result replaces one with more
shards, the last old shards stay, and a reader of all objects that fit the template would read them,
too. So the job reports old shards, and removes them if the spec has ``remove_stale``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from dsort.errors import InputError, NamesTakenError, ObjectNotFoundError, StorageError
from dsort.job.amend import refuse_moved_sidecars, refuse_other_schema
from dsort.job.job import Job
from dsort.job.plan import Plan
from dsort.job.setup.collisions import refuse_collisions
from dsort.job.setup.new_job import output_names
from dsort.job.sidecars import (
    containers_named,
    directory_file_names,
    early_sidecar_names,
    refuse_alike,
    refuse_beside_inputs,
    replaceable_names,
    sidecars_written,
)
from dsort.naming.names import first_few
from dsort.options import open_with_settings
from dsort.results.earlier_results import listed_outputs, manifests_in, newest_first
from dsort.results.layout import manifest_name
from dsort.results.manifest import Manifest, parse_manifest
from dsort.results.transaction import each_at_once
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.ref import BucketRef
from dsort.storage.routed import place_of
from dsort.storage.small_objects import read_small

MANIFESTS_READ_MAX = 100
MANIFEST_BYTES_MAX = 256 << 20


class _Stale(Struct, frozen=True):
    """Objects that fit the output templates, and that the job does not write. ``ours``: the objects
    among them that belong to results that the job replaces."""

    names: list[str]
    ours: list[ObjectInfo]


class _Listed(Struct, frozen=True):
    """An object as listed by a manifest that was written at ``written_ns``, in ns since 1970."""

    file_bytes: int
    written_ns: int

    def speaks_of(self, info: ObjectInfo) -> bool:
        """Whether ``info`` is that object. Outputs are written before their manifest: a newer
        object is from another writer."""
        return info.size_bytes == self.file_bytes and info.mtime_ns <= self.written_ns


_NOT_REPLACED = _Listed(-1, 0)


def look_for_stale_early(job: Job) -> None:
    """``look_for_stale`` before there is a plan, if the number of shards is known already."""
    counts = [target.count or 0 for target in job.spec.targets]
    if job.overwrite and all(counts):
        some = job.outcome.names.some
        names = {name for group, count in enumerate(counts) for name in some(group, 0, count)}
        _note_stale(job, names, counts)


def look_for_stale(job: Job, plan: Plan) -> None:
    """Warn of the objects of older results that will remain beside this one, and note which of them
    will be removed. Do nothing if this was done early."""
    if job.overwrite and not all(target.count for target in job.spec.targets):
        _note_stale(job, set(plan.names), job.outcome.names.needed(plan.shards))


def _note_stale(job: Job, written: set[str], used: list[int]) -> None:
    stale = _find(job, written, used)
    job.outcome.stale = stale.ours if job.spec.remove_stale else []
    _warn(job, stale)


def left_of_replaced(bucket: Bucket, manifest: Manifest) -> list[str]:
    """The names of objects of replaced results that a finished job with ``remove_stale`` left,
    because it died before it removed them. For checks after the job. Sorted."""
    spec = manifest.spec
    if not spec.remove_stale:
        return []
    written = {shard.name for shard in manifest.outputs}
    written = {name for name in written if not place_of(name)[0]}  # not of other buckets
    listed = _of_replaced(bucket, written, {}, job_id=manifest.job_id)
    names: Collection[str] = listed
    if not spec.has_key_map:
        inputs = [shard.name for shard in manifest.inputs]
        names = output_names(spec, inputs=inputs).made(listed, [0] * len(spec.targets))
    read = {
        shard.name.removeprefix(source.shard_name(""))
        for source in spec.sources
        if source.bucket == spec.output_bck
        for shard in manifest.inputs
        if shard.name.startswith(source.shard_name(""))
    }
    there = bucket.stat_many([name for name in names if name not in read])
    return sorted(name for name, info in there.items() if listed[name].speaks_of(info))


def _find(job: Job, written: set[str], used: list[int]) -> _Stale:
    """Old objects that remain beside the names ``written``; ``used``: how many names of each
    template are taken. Inputs are never among them."""
    names = {name for name in existing_names(job, used) if name not in written}
    listed = _of_replaced(job.buckets.outputs, written, _buckets_of(job.spec))
    there = job.buckets.outputs.stat_many(job.outcome.names.made(listed, used))
    source, target = job.buckets.identities
    inputs = {source.identity(shard.name) for shard in job.inputs} if there else set()
    ours = {
        name: info
        for name, info in there.items()
        if listed[name].speaks_of(info) and target.identity(name) not in inputs
    }
    return _Stale(sorted(names.union(ours)), [ours[name] for name in sorted(ours)])


def _buckets_of(spec: JobSpec) -> dict[str, BucketRef]:
    """By place: the buckets of outputs that have a bucket of their own."""
    return {target.place: target.bucket for target in spec.targets if target.bucket}


def _of_replaced(
    bucket: Bucket, written: set[str], own: Mapping[str, BucketRef], *, job_id: str = ""
) -> dict[str, _Listed]:
    """By name: the objects that remain of results that a job replaces by writing ``written``.

    A name belongs to the newest manifest that lists it. The result of that manifest counts as
    replaced if the manifest also lists a name that is written. ``job_id``: the id of the job, if it
    has a manifest; results that are newer than the job were not replaced by it. ``own``: the
    buckets of outputs; objects that a manifest lists in other buckets do not matter to this job.
    """
    newest = dict.fromkeys(written, _NOT_REPLACED)
    is_older = not job_id
    for info in _manifests(bucket):
        if info.name == manifest_name(job_id):
            is_older = True
            continue
        sizes, is_known = _outputs(bucket, info, own)
        is_replaced = is_older and is_known and not written.isdisjoint(sizes)
        for name, size_bytes in sizes.items():
            listed = _Listed(size_bytes, info.mtime_ns) if is_replaced else _NOT_REPLACED
            newest.setdefault(name, listed)
    return {name: listed for name, listed in newest.items() if listed is not _NOT_REPLACED}


def _warn(job: Job, stale: _Stale) -> None:
    removed = {info.name for info in job.outcome.stale}
    left = [name for name in stale.names if name not in removed]
    if not left:
        return
    objects = "objects have names" if len(left) > 1 else "object has a name"
    text = (
        f"{len(left):,} {objects} that the output template makes, and will be left beside this "
        f"result in {job.buckets.outputs.uri}: {first_few(left)}"
    )
    if not job.spec.remove_stale and stale.ours:
        text += f" (--remove-stale removes {len(stale.ours):,} of them, of replaced results)"
    job.reporter.warn("stale_outputs", text)


def remove_stale(job: Job) -> None:
    """Remove the remains of replaced results, except objects that changed after they were found. To
    be called after the commit: if an object cannot be removed, the job reports the object, and does
    not fail."""
    bucket, done, changed = job.buckets.outputs, list[str](), list[str]()

    def remove(noted: ObjectInfo) -> None:
        try:
            now = bucket.stat(noted.name)
        except ObjectNotFoundError:
            return
        # The same bytes, written again, have the same etag in an object store.
        if now.mtime_ns != noted.mtime_ns or not now.is_still(noted.size_bytes, noted.etag):
            changed.append(noted.name)
            return
        bucket.delete(noted.name)
        done.append(noted.name)

    try:
        each_at_once(bucket, job.outcome.stale, remove)
    except StorageError as error:
        job.reporter.warn(
            "stale_outputs", f"not all objects of replaced results could be removed: {error}"
        )
    if changed:
        text = f"{_objects(changed)} of replaced results changed while the job ran, and "
        job.reporter.warn(
            "stale_outputs", f"{text}will be left in {bucket.uri}: {first_few(sorted(changed))}"
        )
    if done:
        text = f"removed {_objects(done)} of replaced results: {first_few(sorted(done))}"
        job.reporter.warn("stale_outputs_removed", text)


def _objects(names: list[str]) -> str:
    return f"{len(names):,} object{'s' * (len(names) > 1)}"


def _manifests(bucket: Bucket) -> Iterator[ObjectInfo]:
    """The newest manifests in the bucket, newest first. The iteration ends before a manifest that
    is too large to be read, because that manifest may also list names of older manifests."""
    newest = sorted(manifests_in(bucket), key=lambda info: (info.mtime_ns, info.name), reverse=True)
    for info in newest_first(bucket, newest[:MANIFESTS_READ_MAX]):
        if info.size_bytes > MANIFEST_BYTES_MAX:
            return
        yield info


def _outputs(
    bucket: Bucket, info: ObjectInfo, own: Mapping[str, BucketRef]
) -> tuple[dict[str, int], bool]:
    """(sizes by name of the outputs that a manifest lists, whether dsort can read the whole
    manifest). Only manifests that this version can read decide about objects; an object that
    another manifest lists stays."""
    try:
        data = read_small(bucket, info.name, bytes_max=MANIFEST_BYTES_MAX)
    except ObjectNotFoundError:
        return {}, False
    try:
        manifest = parse_manifest(data)
        theirs = _buckets_of(manifest.spec)
        sizes = {shard.name: shard.file_bytes for shard in manifest.outputs}
        same = {"", *(place for place, ref in theirs.items() if own.get(place) == ref)}
        return {name: size for name, size in sizes.items() if place_of(name)[0] in same}, True
    except InputError:
        found = {name: size_bytes for name, size_bytes, _ in listed_outputs(data)}
        return {name: size for name, size in found.items() if not place_of(name)[0]}, False


TEMPLATES_LISTED_MAX = 64
NAMES_ASKED_FOR_MAX = 1_000
"""How many names are looked up in an object store, in place of a listing, which may have no end.
This suffices because the numbers of an older result have no gaps."""


def _taken_hint(spec: JobSpec) -> str:
    given = " or output_format" if spec.output_format is not None else ""
    return f"remove them, use another output_bck{given}, or set overwrite: true (--overwrite)"


def refuse_taken_early(job: Job, *, dry: bool) -> None:
    """``NamesTakenError`` if objects have names that the outputs will get, or may get while the
    number of outputs is unknown. A job that may replace them gets no error, and a dry run only a
    warning."""
    sidecars = early_sidecar_names(job)
    if not dry and not job.options.force:
        _refuse_viewed(job)
    if job.overwrite:
        return
    if sidecars and job.buckets.outputs.exists():
        _refuse(job, "sidecars get", sorted(job.buckets.outputs.stat_many(sidecars)), dry=dry)
    existing = existing_names(job)
    counts = [target.count or 0 for target in job.pipeline.targets]
    if all(counts):
        existing = [name for name in existing if not _is_behind(job, name, counts)]
    _refuse(job, "the output template makes", existing, dry=dry)


def _refuse_viewed(job: Job) -> None:
    """``NamesTakenError`` if a view in the output bucket points to a shard that the job would
    replace or remove."""
    if not (job.overwrite or job.replaces_inputs):
        return
    from dsort.results.views import has_views, places_of, views_into  # few jobs replace shards

    bucket, options = job.buckets.outputs, job.options
    if not has_views(bucket, manifests_max=MANIFESTS_READ_MAX):
        return  # to list the bucket and to follow each name through links takes time
    names = existing_names(job) if job.overwrite else []
    if job.replaces_inputs:
        names += [shard.name for shard in job.inputs]
    found = views_into(
        {place: name for name in names for place in places_of(bucket, [name])},
        [bucket],
        lambda ref: open_with_settings(ref, root=options.root, settings=options.settings),
        manifests_max=MANIFESTS_READ_MAX,
    )
    for name, view in found.items():
        raise NamesTakenError(
            f"{name} in {bucket.uri} is not replaced: {view} points to it",
            hint="remove the view first, or use --force: then nothing can read the view any more",
        )


def _is_behind(job: Job, name: str, counts: Sequence[int]) -> bool:
    """Whether a template reaches ``name`` only with more shards than the result will have."""
    number_of = job.outcome.names.number_of
    numbers = [(number_of(group, name), count) for group, count in enumerate(counts)]
    made = [number >= count for number, count in numbers if number >= 0]
    return bool(made) and all(made)


def _refuse(job: Job, origin: str, existing: Sequence[str], *, dry: bool) -> None:
    if not existing:
        return
    many = f"{len(existing):,} objects have names" if len(existing) > 1 else "1 object has a name"
    text = (
        f"output names are taken in {job.buckets.outputs.uri}: {many} that {origin}: "
        f"{first_few(existing)}"
    )
    if dry:
        job.reporter.warn("names_taken", text)
        return
    raise NamesTakenError(text, hint=_taken_hint(job.spec))


def refuse_outputs(job: Job, plan: Plan, *, overwrite: bool) -> None:
    """Refuse the names of the planned outputs and of the files beside them if they are taken, or if
    files that list an amended result would move to another place. ``overwrite``: objects may be
    replaced."""
    source, target = job.buckets.identities
    replaces = overwrite or job.attempt.was_committing
    beside = directory_file_names(containers_named(job.spec, plan.names), plan.names)
    if not job.replaces_inputs:
        refuse_beside_inputs(job, beside)
    if job.amends:
        refuse_moved_sidecars(job, plan.names)
        refuse_other_schema(job, plan.schema)
    sidecars = sidecars_written(job, plan.names)
    refuse_alike(sidecars)
    beside += [each.name for each in sidecars]
    named = [*plan.names, *beside]
    if not job.replaces_inputs:
        job.stop.wait_for(lambda: refuse_collisions(job.inputs, source, named, target))
    named = sorted({*named} - replaceable_names(job))
    job.stop.wait_for(lambda: _refuse_taken(job, named, overwrite=replaces))


def _refuse_taken(job: Job, names: list[str], *, overwrite: bool) -> None:
    """``NamesTakenError`` if an output name is taken, unless the job may replace it."""
    for name in names:
        path = job.buckets.outputs.local_path(name)
        if path and path.is_dir():
            raise NamesTakenError(
                f"{name} in {job.buckets.outputs.uri} is a directory: no shard can have this name",
                hint="remove it, or use another output_bck or output_format",
            )
    if overwrite:
        return
    existing = sorted(job.buckets.outputs.stat_many(names))
    if existing:
        shown = first_few(existing)
        raise NamesTakenError(
            f"{len(existing)} output names are taken in {job.buckets.outputs.uri}: {shown}",
            hint=_taken_hint(job.spec),
        )


def existing_names(job: Job, first: Sequence[int] = ()) -> list[str]:
    """The objects with names that the output templates make, from the number in ``first`` on (by
    template; 0 if it has none), except for inputs. Sorted."""
    bucket, names = job.buckets.outputs, job.outcome.names
    if not bucket.exists():
        return []
    starts = [*first, *[0] * (len(names.templates) - len(first))]
    found: set[str] = set()
    if bucket.seals_on_finish or len(starts) > TEMPLATES_LISTED_MAX:
        share = max(NAMES_ASKED_FOR_MAX // len(starts), 1)
        asked = [
            name for group, start in enumerate(starts) for name in names.some(group, start, share)
        ]
        found.update(bucket.stat_many(asked))
    else:
        for prefix in {names.prefix(group) for group in range(len(names.templates))}:
            found.update(info.name for info in bucket.list(prefix))
        found = names.made(found, starts)
    source, target = job.buckets.identities
    inputs = {source.identity(shard.name) for shard in job.inputs} if found else set()
    return sorted(name for name in found if target.identity(name) not in inputs)
