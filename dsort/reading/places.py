"""Finds the shards that a user names: one or several shards, or all shards of a result or of a
bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.registry import check_supported, is_supported
from dsort.errors import (
    ChangedInputError,
    InputError,
    MissingShardError,
    ObjectNotFoundError,
    SpecError,
    StorageError,
)
from dsort.naming.extensions import DEFAULT_EXTENSION
from dsort.naming.inputs import expand_inputs
from dsort.naming.names import (
    VIEW_SUFFIX,
    absent_hint,
    archive_extension,
    first_few,
    is_internal,
)
from dsort.options import RunOptions, open_result, open_with_settings
from dsort.reading.results import OF_A_JOB, FoundJob, find_result
from dsort.results.job_ids import moment_of_id
from dsort.results.manifest import Manifest, parse_manifest
from dsort.results.report import JobReport
from dsort.storage.bucket import Bucket, MadeBucket, ObjectInfo
from dsort.storage.hub_address import revision_end
from dsort.storage.ref import BucketRef, object_uri
from dsort.storage.registry import parse_address

__all__ = ["ShardPlace", "Where", "find_shard", "find_shards", "shards_of_result"]

NAMES_A_BATCH: Final = 10_000
_TEMPLATE: Final = re.compile(r"[{@]|%[0-9]*d")

Where = str | Path | JobReport | Sequence[str | Path]


_AGAIN: Final = "fetch or make it again; `dsort verify` compares all of the result"
_FEWER: Final = (
    f"{_AGAIN}. If it finds no fault, some records are links alone, which have no content to read: "
    "stray_members: drop leaves links out of a result"
)


class ShardPlace(Struct, frozen=True):
    """A shard to be read. ``size_bytes``, ``records``, ``xxh3`` (of the file): from the manifest,
    None without one. ``info``: its entry in the listing of the bucket, if the bucket was listed.
    ``view_xxh3``: the checksum of the file that stands for it in a view."""

    bucket: Bucket
    name: str
    size_bytes: int | None = None
    records: int | None = None
    xxh3: str | None = None
    info: ObjectInfo | None = None
    view_xxh3: str = ""

    @property
    def uri(self) -> str:
        """The URI of the shard."""
        return object_uri(self.bucket.uri, self.name)

    @property
    def is_file(self) -> bool:
        """Whether the bytes of the shard are in local files."""
        if isinstance(self.bucket, MadeBucket):
            return self.bucket.are_files
        return self.bucket.local_path(self.name) is not None

    def check_size(self, size_bytes: int) -> None:
        """``ChangedInputError`` if the shard has another size in the manifest."""
        if self.size_bytes not in (None, size_bytes):
            raise ChangedInputError(
                f"shard {self.name} in {self.bucket.uri} has {size_bytes:,} bytes, its manifest "
                f"has {self.size_bytes:,}",
                hint=_AGAIN,
            )

    def check_count(self, records: int) -> None:
        """``ChangedInputError`` if the shard has another number of records in the manifest."""
        if self.records not in (None, records):
            self.wrong_count(records)

    def wrong_count(self, found: int) -> NoReturn:
        """Raise ``ChangedInputError``: the shard has ``found`` records, and the manifest or an
        earlier count has another number."""
        more = "an earlier count found more"
        wanted = more if self.records is None else f"its manifest has {self.records:,}"
        hint = _FEWER if self.records is not None and found < self.records else _AGAIN
        raise ChangedInputError(
            f"shard {self.name} in {self.bucket.uri} has {found:,} records, {wanted}", hint=hint
        )


def find_shards(where: Where, job_id: str | None, options: RunOptions) -> Iterator[ShardPlace]:
    """The shards of ``where``, as in :func:`dsort.read_shards`. Raises ``InputError`` and its
    subclasses, ``SpecError``, ``StorageError``."""
    if isinstance(where, JobReport) or (isinstance(where, (str, Path)) and job_id is not None):
        return shards_of_result(find_result(where, options, job_id=job_id), options)
    if isinstance(where, (str, Path)):
        return _one_place(str(where), options)
    return _listed(where, options)


def find_shard(where: str | Path, options: RunOptions) -> ShardPlace:
    """The one shard that ``where`` names. ``SpecError`` if it names none."""
    return next(_listed([where], options))


def _listed(where: Sequence[str | Path], options: RunOptions) -> Iterator[ShardPlace]:
    places = [_object(str(each), options) for each in where]
    buckets = {ref: _open(ref, options) for ref, _ in places}
    return (_in_view(buckets[ref], name, options) for ref, name in places)


def _in_view(bucket: Bucket, name: str, options: RunOptions) -> ShardPlace:
    """The shard ``name`` of a bucket. For a file of a view, this is the shard that the file
    describes."""
    if not name.endswith(VIEW_SUFFIX):
        return ShardPlace(bucket, name)
    from dsort.reading.view import view_of_file

    return ShardPlace(*view_of_file(bucket, name, options))


def _one_place(text: str, options: RunOptions) -> Iterator[ShardPlace]:
    if text.endswith(".json") or re.fullmatch(OF_A_JOB, text):
        return shards_of_result(find_result(text, options), options)
    if _is_bucket(text, options):
        return _of_bucket(text, options)
    if moment_of_id(text):
        return shards_of_result(find_result(text, options), options)
    head, slash, tail = text.rpartition("/")
    at = _template_in(text)
    if at is not None:
        head, slash, tail = text[: at.start()].rpartition("/")
        return _of_template(head if slash else ".", tail + text[at.start() :], options)
    if archive_extension(tail if slash else text) or text.endswith(VIEW_SUFFIX):
        if slash and "*" in tail and not _open(head, options).stat_many([tail]):
            raise MissingShardError(
                f"there is no shard {text}, and * stands for no other names here",
                hint=f'name the bucket, "{head}", or a template, as in "{head}/x-{{000..099}}.tar"',
            )
        return _listed([text], options)
    return _of_bucket(text, options)


def _template_in(text: str) -> re.Match[str] | None:
    """The beginning of the counter of a template. A counter may begin with @; the @ before a
    revision does not count."""
    return _TEMPLATE.search(text, revision_end(text))


def _is_bucket(text: str, options: RunOptions) -> bool:
    """Whether ``text`` is a bucket although it looks like the name of a shard or a template. It is
    a bucket if a directory has that name, or if no object has it and some objects are below it."""
    try:
        ref = _place(text, options)
    except SpecError:
        return False
    if ref.scheme == "file":
        return Path(ref.path).is_dir()
    if "/" not in ref.path or not archive_extension(text) or _template_in(text):
        return "/" not in ref.path
    holder, name = _object(text, options)
    try:
        if _open(holder, options).stat_many([name]):
            return False
        return next(iter(_open(ref, options).list("")), None) is not None
    except StorageError:  # not every store can list
        return False


def shards_of_result(found: FoundJob, options: RunOptions) -> Iterator[ShardPlace]:
    """The shards of a result."""
    return _of_manifest(found, parse_manifest(found.read()), options)


def _of_manifest(found: FoundJob, manifest: Manifest, options: RunOptions) -> Iterator[ShardPlace]:
    bucket = found.bucket if found.in_place else _open(manifest.spec.output_bck, options)
    opened, stored = open_result(manifest.spec, bucket, options), manifest.outputs
    if manifest.spec.output == "view":
        from dsort.reading.view import open_view  # few results are views

        manifest, made = open_view(manifest, opened, options)
        return (
            ShardPlace(made, shard.name, shard.file_bytes, shard.records, view_xxh3=each.xxh3)
            for shard, each in zip(manifest.outputs, stored, strict=True)
        )
    return (
        ShardPlace(opened, shard.name, shard.file_bytes, shard.records, shard.xxh3)
        for shard in stored
    )


def _of_bucket(text: str, options: RunOptions) -> Iterator[ShardPlace]:
    bucket = _open(text, options)
    if not bucket.exists():
        raise ObjectNotFoundError(f"there is no bucket {bucket.uri}", hint=absent_hint(bucket.uri))
    listed = list(bucket.list(""))
    found = [info for info in listed if _is_shard(info.name)]
    if any(info.name.endswith(VIEW_SUFFIX) for info in listed):
        places = _of_newest_view(text, options, has_shards=bool(found))
        if places is not None:
            return places
    if not found:
        raise MissingShardError(
            f"there is no shard in {bucket.uri}", hint="`dsort ls` shows what is there"
        )
    found.sort(key=lambda info: info.name)
    return (ShardPlace(bucket, info.name, info=info) for info in found)


def _of_newest_view(
    text: str, options: RunOptions, *, has_shards: bool
) -> Iterator[ShardPlace] | None:
    """The shards of the newest result of a bucket that has files of a view. None if the bucket also
    has shards, and its newest result, if any, is no view."""
    try:
        newest = find_result(text, options)
    except InputError:
        if has_shards:
            return None
        raise
    manifest = parse_manifest(newest.read())
    if has_shards and manifest.spec.output != "view":
        return None
    return _of_manifest(newest, manifest, options)


def _is_shard(name: str) -> bool:
    return is_supported(name) and not is_internal(name)


def _of_template(holder: str, template: str, options: RunOptions) -> Iterator[ShardPlace]:
    bucket = _open(holder, options)
    try:
        names = expand_inputs(template, DEFAULT_EXTENSION)
    except ValueError as error:
        raise SpecError(str(error)) from None
    wanted: list[str] = []
    missing: list[str] = []
    while batch := [*islice(names, NAMES_A_BATCH)]:
        there = bucket.stat_many(batch)
        wanted += [name for name in batch if name in there]
        missing += [name for name in batch if name not in there]
    if missing:
        shown = first_few(missing)
        raise MissingShardError(f"{len(missing):,} shards are missing from {bucket.uri}: {shown}")
    return (ShardPlace(bucket, name) for name in wanted)


def _object(text: str, options: RunOptions) -> tuple[BucketRef, str]:
    """(bucket, name) of the object that ``text`` names. ``SpecError`` if it names none."""
    extension = archive_extension(text)
    if extension is not None:
        try:
            check_supported(extension)
        except ValueError as error:
            raise SpecError(f"{text}: {error}") from None
    ref = _place(text, options)
    holder, slash, name = ref.path.rpartition("/")
    if not slash or not name:
        raise SpecError(f"{text} names no shard", hint="write BUCKET/NAME.tar")
    return replace(ref, path=holder or "/"), name


def _open(where: str | BucketRef, options: RunOptions) -> Bucket:
    ref = _place(where, options) if isinstance(where, str) else where
    return open_with_settings(ref, root=options.root, settings=options.settings)


def _place(text: str, options: RunOptions) -> BucketRef:
    """The place of a path or a URI. A path may lead out of the data root, unlike the name of a
    bucket in a spec."""
    if "://" in text:
        return parse_address(text)
    # Not resolved: a link to a shard keeps the name of the link.
    return BucketRef("file", os.path.abspath(options.root / text))  # noqa: PTH100
