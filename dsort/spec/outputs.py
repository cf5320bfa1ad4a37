"""The part of a spec about several outputs."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dsort.spec.algorithms import Part
from dsort.spec.fields import ArchiveExtension, Bucket, Count, OutputFormat, SizeBytes, SplitName
from dsort.spec.hints import FieldError, describe
from dsort.spec.shard_count import ShardCount

__all__ = ["OUTPUTS_MAX", "REST", "Output"]

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
