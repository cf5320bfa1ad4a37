"""One output of a job: the names of its shards, and when shards end; and the carrier of the job's
records. Workers load this module, so it does without pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.codecs.base import Codec
from dsort.containers.registry import codec_of, container_of
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from dsort.spec.parts import SpecFields

REST: Final = "true"
"""The condition of an output that takes all remaining records."""


class MultipleOf(Struct, frozen=True):
    """A multiple of ``number`` shards: the smallest one that sizes allow."""

    number: int

    def least(self, wanted: int) -> int:
        """The smallest multiple that is not less than ``wanted``; at least the number itself."""
        return max(-(-wanted // self.number), 1) * self.number


_TAR_HEADER_BYTES: Final = 512


class Target(Struct, frozen=True):
    """One output of a job. ``name``: "" for a single output. ``path``: the path of its fields in
    the spec, with a dot at the end; "" at the top level. ``template``: None without a template, as
    when a key map has the names. ``bucket``: its own; None: that of the job. ``extension``: of its
    shards. ``level``: as in the spec, for its codec. ``size_is``, ``size_counts``: the meaning of
    its size. ``header_bytes``: how many bytes count for each member in addition to its payload."""

    name: str
    path: str
    template: str | None
    size_bytes: int | None
    records: int | None
    asked_count: int | MultipleOf | None
    bucket: BucketRef | None = None
    extension: str = ""
    level: int | None = None
    size_is: str = "at_least"
    size_counts: str = "payload"
    header_bytes: int = 0

    def as_aistore_ends(self, input_extension: str) -> Target:
        """The same output, but its shards end as shards of a key map end in AIStore: once they are
        larger than the size. The headers of members in tar inputs count; a zip has no such headers.
        Settings that AIStore does not have are not changed."""
        if not self.size_bytes or self.counts_file or self.is_at_most:
            return self
        header_bytes = 0 if input_extension == ".zip" else _TAR_HEADER_BYTES
        return replace(self, size_bytes=self.size_bytes + 1, header_bytes=header_bytes)

    @property
    def count(self) -> int | None:
        """The number of shards of the output, if it is known before the records are."""
        if isinstance(self.asked_count, MultipleOf):
            has_limit = self.size_bytes or self.records is not None
            return None if has_limit else self.asked_count.number
        return self.asked_count

    def count_for(self, records: int, size_bytes: int) -> int | None:
        """The number of shards of the output for ``records`` records of ``size_bytes``, in the
        bytes that its size counts; None: shards end only by their sizes."""
        if not isinstance(self.asked_count, MultipleOf):
            return self.asked_count
        wanted = 1 if self.records is None else -(-records // self.records)
        if self.size_bytes:
            wanted = max(wanted, -(-size_bytes // self.size_bytes))
        return self.asked_count.least(wanted)

    @property
    def place(self) -> str:
        """The bucket part in names of its shards; "" for the bucket of the job."""
        return "" if self.bucket is None else self.name

    @property
    def is_at_most(self) -> bool:
        """Whether no shard may be larger than its size."""
        return self.size_is == "at_most" and bool(self.size_bytes)

    @property
    def counts_file(self) -> bool:
        """Whether the sizes in the spec are those of files, instead of their payload."""
        return self.size_counts == "file"

    @property
    def is_measured(self) -> bool:
        """Whether shards of the output end by their compressed size."""
        return self.counts_file and self.codec is not None

    @property
    def codec(self) -> Codec | None:
        """The codec around its shards."""
        return codec_of(self.extension)

    @property
    def codec_level(self) -> int:
        """The compression level of the codec; 0 without a codec."""
        return 0 if self.codec is None else self.codec.level_or_default(self.level)

    @property
    def ends(self) -> bool:
        """Whether the spec defines when a shard ends; else shards are even shares of a bounded
        template."""
        return bool(self.size_bytes) or self.records is not None or self.asked_count is not None


CARRIER: Final = ".tar"
"""The carrier of records if their outputs differ, or if joined records cannot be assembled in the
container in which they are stored."""


def carrier_extension(spec: SpecFields) -> str:
    """The extension of the carrier of the records of ``spec``. It is the container of the outputs
    if they share one, the container of the first output if all are tables, or else tar."""
    targets = spec.targets
    if spec.join is None and len({each.extension for each in targets}) == 1:
        return targets[0].extension  # without loading its container: most specs are like this
    containers = [container_of(each.extension) for each in targets]
    if spec.join is not None and not all(each.is_of_members for each in containers):
        return CARRIER
    alike = all(each == containers[0] for each in containers)
    if alike or all(each.is_columnar for each in containers):
        return targets[0].extension
    return CARRIER


def is_late(spec: SpecFields, target: Target) -> bool:
    """Whether the records of an output are converted as they are written."""
    extension = carrier_extension(spec)
    if target.extension == extension:
        return False
    carrier = container_of(extension)
    return not carrier.is_columnar and container_of(target.extension) != carrier


def late_targets(spec: SpecFields) -> tuple[Target, ...]:
    """The outputs whose records are converted as they are written."""
    return tuple(each for each in spec.targets if is_late(spec, each))
