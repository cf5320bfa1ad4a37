"""The input shards: their names and sizes, and checks that they can be read and did not change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice

from msgspec import Struct, field

from dsort.containers.registry import container_of, is_called
from dsort.data.tally import Tally
from dsort.errors import (
    ChangedInputError,
    InputError,
    MissingShardError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.job.job import Job
from dsort.loose_files.bucket import FilesBucket
from dsort.moves.input_shard import InputShard
from dsort.naming.inputs import expand_inputs
from dsort.naming.names import (
    absent_hint,
    archive_extension,
    first_few,
    is_internal,
    position_key,
    suffixes_hint,
    with_extension,
)
from dsort.naming.patterns import glob_prefix, glob_regex
from dsort.sizes import agreed
from dsort.spec.inputs import Source
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.directory.files import list_broken_links
from dsort.storage.routed import Routed, bucket_named

NAMES_A_BATCH = 10_000
"""The number of names that are made of a template and looked up at once. A power of ten: the names
of a batch that ends at a round number begin alike, and a store can list them by that prefix."""

NAMES_KEPT_MAX = 100_000
"""The most names kept of shards that are missing or passed over; all are counted. A template may
have 10**7."""


FILES_NAMED_MAX = 3

_AGAIN_HINT = (
    "start the job again once nothing writes to its inputs (a new mode, owner or hard link of a "
    "file is a change, too)"
)
MISSING = ObjectInfo("", -1, 0, "")
_LOOK_HINT = "check input_format and input_extension; `dsort ls` shows what is there"


def resolve_inputs(
    spec: JobSpec, bucket: Bucket, tally: Tally, *, check: Callable[[], None] = lambda: None
) -> list[InputShard]:
    """The input shards in input order; missing ones are counted, or refused, as in the spec.

    Memory is bounded by the shards that exist, not by the names. ``check`` is called repeatedly
    meanwhile, and may raise."""
    if isinstance(bucket, FilesBucket):
        return [InputShard(i.name, i.size_bytes, i.mtime_ns, i.etag) for i in bucket.list()]
    for source in spec.sources:
        refuse_absent(source, bucket_named(bucket, source.name))
    found: list[InputShard] = []
    missing, passed_over = _SomeNames(), _SomeNames()
    reaction = spec.config.missing_shards
    for source in spec.sources:
        own, before, absent = bucket_named(bucket, source.name), len(found), _SomeNames()
        for name, info in _candidates(spec, source, own, passed_over, check):
            if info is MISSING:
                missing.add(source.shard_name(name))
                absent.add(name)
                continue
            if not info.size_bytes:
                _refuse_unsized(own, name)
            shard = source.shard_name(name)
            found.append(InputShard(shard, info.size_bytes, info.mtime_ns, info.etag))
        if len(found) == before and source.name and not reaction:
            raise MissingShardError(
                f"no shard of the input {source.name} was found in {own.uri}"
                f"{_tried(spec, source, absent)}",
                hint=_naming_hint(source, own, absent) or _LOOK_HINT,
            )
    if missing.count and reaction == "abort":
        raise MissingShardError(
            f"{missing.count:,} {agreed('input [shard is|shards are]', missing.count)} missing "
            f"from {bucket.uri}: {missing.some()}",
            hint="missing_shards: warn leaves them out",
        )
    if not found and not reaction:
        raise MissingShardError(
            f"no input shard was found in {bucket.uri}{_tried(spec, source, missing)}",
            hint=_naming_hint(source, own, absent)
            or suffixes_hint(passed_over.first)
            or _LOOK_HINT,
        )
    tally.add("missing_shards", missing.count, missing.first)
    tally.add("objects_passed_over", passed_over.count, passed_over.first)
    return found


def absent_inputs(
    spec: JobSpec, bucket: Bucket, *, check: Callable[[], None] = lambda: None
) -> str:
    """The inputs that a job of ``spec`` would not find. The search ends at the first input shard,
    and the result is then empty. ``check``: as for ``resolve_inputs``. ``ObjectNotFoundError`` if a
    bucket does not exist, ``StorageError`` for other failures of a store."""
    looked_for = []
    for source in spec.sources:
        own, absent = bucket_named(bucket, source.name), _SomeNames()
        refuse_absent(source, own)
        for name, info in _candidates(spec, source, own, _SomeNames(), check):
            if info is not MISSING:
                return ""
            absent.add(name)
        looked_for.append(f"no input shard is in {own.uri}{_tried(spec, source, absent)}")
    return "; ".join(looked_for)


def first_objects(job: Job) -> list[tuple[Bucket, str]]:
    """(bucket, name in it) of the first shard of each input."""
    source = job.buckets.identities[0]
    first: dict[int, tuple[Bucket, str]] = {}
    for shard in job.inputs:
        found, name = source.found(shard.name)
        first.setdefault(id(found), (found.bucket, name))
        if len(first) == len(source.buckets):
            break
    return list(first.values())


def refuse_unreadable(inputs: Sequence[InputShard], bucket: Bucket) -> None:
    """``StorageAccessError`` with the names of inputs that may not be read. Each file is checked.
    In an object store only the first object is checked, because a user who may list a bucket may or
    may not be allowed to read it."""
    by_input = groupby(inputs, lambda shard: shard.name.partition("/")[0])
    several = isinstance(bucket, Routed)
    for shards in [[*each] for _, each in by_input] if several else [inputs]:
        _refuse_unreadable(shards, bucket)


def _refuse_unreadable(inputs: Sequence[InputShard], bucket: Bucket) -> None:
    if not inputs:
        return
    if not bucket.local_path(inputs[0].name):
        try:
            bucket.stat(inputs[0].name)
        except ObjectNotFoundError:
            return  # the extractor reports the missing shard
        except StorageAccessError as error:
            raise StorageAccessError(
                f"input shard {inputs[0].name} can be listed but not read: {error.message}",
                hint=error.hint,
            ) from None
        return
    # For the effective user, who opens files. The real user, who began the process, may be another.
    may_read = partial(
        os.access, mode=os.R_OK, effective_ids=os.access in os.supports_effective_ids
    )
    names = [shard.name for shard in inputs]
    denied = [name for name in names if not may_read(bucket.local_path(name) or "")]
    if denied:
        raise StorageAccessError(
            f"{len(denied):,} of {len(inputs):,} input shards in {bucket.uri} may not be read: "
            f"{first_few(denied)}",
            hint="give this user the right to read them, or leave them out",
        )


def refuse_changed_inputs(job: Job) -> None:
    """``ChangedInputError`` if an input changed: the job may have read one half before the change
    and one half after it."""
    if job.replaces_inputs and (job.attempt.was_committing or job.outcome.naming):
        return  # inputs were checked before the first one was replaced
    if isinstance(job.buckets.inputs, FilesBucket):
        refuse_changed_files(job.buckets.inputs)
    known = job.buckets.inputs.stat_many([shard.name for shard in job.inputs])
    changed = []
    for shard in job.inputs:
        info = known.get(shard.name, MISSING)
        if not info.is_still(shard.size_bytes, shard.etag):
            changed.append(f"{shard.name} {'is gone' if info is MISSING else 'changed'}")
    if changed:
        more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ChangedInputError(
            f"input shard {', '.join(changed[:3])}{more} since the job began", hint=_AGAIN_HINT
        )


def refuse_changed_files(files: FilesBucket) -> None:
    """``ChangedInputError`` if a loose file changed."""
    if changed := files.changes(FILES_NAMED_MAX):
        more = ", …" if len(changed) == FILES_NAMED_MAX else ""
        raise ChangedInputError(
            f"file {', '.join(changed)}{more} since the job began", hint=_AGAIN_HINT
        )


def warn_of_equal_numbers(job: Job) -> None:
    """Warn if records of two shards get the same keys. The key of a record without a key of its own
    is the name of its shard, without the suffix, and its number. So two shards whose names differ
    only in the suffix have the same keys."""
    if not any(each.numbers_records for each in job.pipeline.reading.containers):
        return
    first: dict[bytes, str] = {}
    for shard in job.inputs:
        other = first.setdefault(position_key(shard.name, 0), shard.name)
        if other != shard.name:
            job.reporter.warn(
                "position_keys",
                f"records of {other} and {shard.name} get the same keys, because such a key is the "
                "shard's name without its suffix, and a number: duplicate_keys decides about "
                "them",
            )
            return


def refuse_absent(source: Source, bucket: Bucket) -> None:
    """``ObjectNotFoundError`` if the bucket of an input does not exist."""
    if not bucket.exists():
        raise ObjectNotFoundError(
            f"the input bucket {source.bucket.uri} does not exist ({bucket.uri})",
            hint=absent_hint(bucket.uri),
        )


def listed_names(source: Source, extension: str) -> Iterable[str] | None:
    """The names that an input lists; None if it takes all names with a prefix, or of a pattern."""
    wanted = source.format
    return expand_inputs(wanted.template, extension) if wanted.template else wanted.objnames


def _candidates(
    spec: JobSpec,
    source: Source,
    bucket: Bucket,
    passed_over: _SomeNames,
    check: Callable[[], None],
) -> Iterator[tuple[str, ObjectInfo]]:
    """(name, info) of everything that one input names; the info of a missing object is ``MISSING``.

    ``passed_over``: collects names that would fit, apart from their extension."""
    wanted, names = source.format, listed_names(source, source.extension)
    if names is not None:
        rest = iter(names)
        while batch := [*islice(rest, NAMES_A_BATCH)]:
            check()
            there = bucket.stat_many(batch)
            yield from ((name, there.get(name, MISSING)) for name in batch)
        return
    prefix, pattern = wanted.prefix or "", None
    if wanted.glob is not None:
        prefix, pattern = glob_prefix(wanted.glob), glob_regex(wanted.glob)
    # Files that list shards for readers, for instance index.json, are not counted as passed over.
    index = container_of(source.extension).index
    of_readers = index.name if index else None
    for at, info in enumerate(bucket.list(prefix)):
        if at % NAMES_A_BATCH == 0:
            check()
        if is_internal(info.name):
            continue
        if not pattern or pattern.fullmatch(info.name):
            if is_called(info.name, source.extension):
                yield info.name, info
            elif info.name.rpartition("/")[2] != of_readers:
                passed_over.add(source.shard_name(info.name))
    # Listings pass over broken links; a shard behind a broken link would be left out without a
    # message.
    place = bucket.local_path("x")
    for name in list_broken_links(place.parent, prefix) if place else ():
        is_wanted = is_called(name, source.extension) and not is_internal(name)
        if is_wanted and (not pattern or pattern.fullmatch(name)):
            yield name, MISSING


class _SomeNames(Struct):
    """The number of names, and the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.first) < NAMES_KEPT_MAX:
            self.first.append(name)

    def some(self) -> str:
        return ", ".join(self.first[:3]) + (", …" if self.count > 3 else "")


def _refuse_unsized(bucket: Bucket, name: str) -> None:
    """``InputError`` for a file with content although its size is 0, because then nothing shows
    whether all of it was read."""
    if not bucket.local_path(name):
        return
    try:
        with bucket.open(name) as opened:
            opened.read_into(memoryview(bytearray(1)), 0)
    except StorageError:
        return  # nothing to be read
    raise InputError(
        f"input shard {name} has a size of 0, but content: it is no ordinary file",
        hint="copy its content to an ordinary file (files of /proc have a size of 0)",
    )


def _naming_hint(source: Source, bucket: Bucket, absent: _SomeNames) -> str:
    """A hint at what the user probably meant by these names; empty if there is none."""
    for name in absent.first if source.format.objnames is not None else ():
        longer = with_extension(name, source.extension)
        if longer != name and bucket.stat_many([longer]):
            return f'objnames are taken as they are: write "{longer}"'
    text = source.format.template
    if not text or any(sign in text for sign in "{}@") or archive_extension(text):
        return ""
    return f'a name without a range is one shard; {{"prefix": "{text}"}} takes all with this prefix'


def _tried(spec: JobSpec, source: Source, missing: _SomeNames) -> str:
    wanted = source.format
    if missing.count:
        if missing.count == 1:
            return f": the name {missing.some()} does not exist"
        return f": none of {missing.count:,} names exists ({missing.some()})"
    if wanted.prefix is not None:
        return f" under the prefix {wanted.prefix}"
    if wanted.glob is not None:
        return f" that matches {wanted.glob}"
    return f" that ends in {source.extension}"
