"""The part of a spec about several outputs: how records are divided among them, the names of their
shards, and when these end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dsort.containers.codecs.base import Codec
from dsort.containers.registry import codec_of
from dsort.spec.algorithms import Part
from dsort.spec.fields import ArchiveExtension, Bucket, Count, OutputFormat, SizeBytes, SplitName
from dsort.spec.hints import FieldError, describe
from dsort.spec.shard_count import MultipleOf, ShardCount
from dsort.storage.ref import BucketRef

__all__ = ["OUTPUTS_MAX", "REST", "Output", "Target"]

OUTPUTS_MAX: Final = 100
REST: Final = "true"
"""The condition of an output that takes all remaining records."""


def _condition(value: Any) -> Any:
    if value is True or value == "rest":
        return REST
    if value is not None and not isinstance(value, str):
        raise FieldError(f"must be an expression, or true, not {describe(value)}")
    return value


Condition = Annotated[
    str | None,
    BeforeValidator(_condition),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"const": True}, {"type": "null"}]}),
]


class Output(Part):
    """One of several outputs: a fraction of the records, or those that a condition is true of."""

    name: SplitName = Field(
        description="What it is called: {split} of output_format, and in reports.",
        examples=["train"],
    )
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        strict=False,
        description="Of the records, by a hash of what split_by says. All outputs have one, and "
        "they add up to 1; or all have a condition.",
        examples=[0.98],
    )
    when: Condition = Field(
        default=None,
        description="An expression as of the step filter: a record goes to the first output whose "
        "expression is true of it. true (or rest): all that is left. A record that goes nowhere "
        "fails the job.",
        examples=['ext("cls") < 500'],
    )
    output_bck: Bucket | None = Field(
        default=None,
        description="Its bucket, of any store. Manifest, journal and all else that is not of its "
        "shards stay in output_bck of the top level, which is the default.",
    )
    output_format: OutputFormat | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_extension: ArchiveExtension | None = Field(
        default=None,
        description="Its container and codec, as a suffix: others than those of the top level, "
        "which are the default. Where containers differ, records travel as .tar, and are converted "
        "as they are written.",
        examples=[".parquet", ".tar.zst"],
    )
    output_compression_level: int | None = Field(
        default=None, description="As at the top level, for an output_extension of its own."
    )
    output_shard_size: SizeBytes = Field(
        default=None,
        description="As at the top level. An output that says nothing of where its shards end has "
        "what is said there.",
    )
    output_shard_size_is: Literal["at_least", "at_most"] | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_shard_size_counts: Literal["payload", "file"] | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_shard_records: Count | None = Field(default=None, description="As at the top level.")
    output_shard_count: ShardCount = Field(default=None, description="As at the top level.")


_TAR_HEADER_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Target:
    """One output of a job. ``name``: "" for a single output. ``path``: the path of its fields in
    the spec, with a dot at the end; "" at the top level. ``template``: None if it has none, or if a
    key map has the names. ``bucket``: its own; None: that of the job. ``extension``: of its shards.
    ``level``: as in the spec, for its codec. ``size_is``, ``size_counts``: the meaning of its size.
    ``header_bytes``: how many bytes count for each member in addition to its payload."""

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
        """The same output, with shards that end like those of a key map in AIStore: once they are
        larger than the size. Headers of the inputs count, and zips have none. Settings that AIStore
        does not have are not changed."""
        if not self.size_bytes or self.counts_file or self.is_at_most:
            return self
        header_bytes = 0 if input_extension == ".zip" else _TAR_HEADER_BYTES
        return replace(self, size_bytes=self.size_bytes + 1, header_bytes=header_bytes)

    @property
    def count(self) -> int | None:
        """The number of its shards, if it is known before its records are."""
        if isinstance(self.asked_count, MultipleOf):
            has_limit = self.size_bytes or self.records is not None
            return None if has_limit else self.asked_count.number
        return self.asked_count

    def count_for(self, records: int, size_bytes: int) -> int | None:
        """The number of its shards for ``records`` records of ``size_bytes``, in the bytes that its
        size counts; None: shards end only by their sizes."""
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
        """Whether its size is that of files, instead of their payload."""
        return self.size_counts == "file"

    @property
    def is_measured(self) -> bool:
        """Whether its shards end by their size after their codec."""
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
