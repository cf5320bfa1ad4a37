"""What a spec says of its inputs: buckets, and which of their shards go in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import Field

from dsort.spec.algorithms import Part
from dsort.spec.fields import (
    Bucket,
    Glob,
    InputName,
    InputText,
    NamePrefix,
    ObjectNames,
)
from dsort.storage.ref import BucketRef

__all__ = ["INPUTS_MAX", "Input", "InputFormat", "Source"]

INPUTS_MAX: Final = 100
"""Each has a client of its store in every worker."""


class InputFormat(Part):
    """Which shards go in: at most one of these. None of them: every object of the bucket whose
    name ends in the input extension, in byte order of the names."""

    template: InputText | None = Field(
        default=None,
        description="A bounded range of names, e.g. 'samples-{000..099}', 'samples-@099', or "
        "several joined with '::'. '{train,val}' and '{a..c}' are read as bash reads them. A name "
        "without a range is that one shard. Order of inputs = order of the template. The input "
        "extension is appended to names that have no archive extension.",
        examples=["samples-{000..099}", "train-{00..09}::extra-{00..04}"],
    )
    objnames: ObjectNames | None = Field(
        default=None, description="The names themselves, used as they are and in this order."
    )
    prefix: NamePrefix | None = Field(
        default=None,
        description="Every object whose name begins so and ends in the input extension, in byte "
        "order of the names.",
        examples=["train/"],
    )
    glob: Glob | None = Field(
        default=None,
        description="Every object whose name matches this pattern and ends in the input extension, "
        "in byte order of the names. '*' and '?' stay within one part of a name, '**' does not.",
        examples=["train/**/part-*.tar"],
    )


class Input(Part):
    """One of several inputs."""

    name: InputName = Field(
        description="What it is called: in the names of its shards, in keys that are made of "
        "positions, in reports. Letters, digits, - and _.",
        examples=["web"],
    )
    input_bck: Bucket = Field(description="Its bucket, as input_bck at the top level.")
    input_format: InputFormat = Field(
        default_factory=InputFormat, description="Which shards of the bucket go in."
    )


@dataclass(frozen=True, slots=True)
class Source:
    """One input of a job. ``name``: "" of the only one that has none. ``path``: of what the spec
    says of it, with the dot behind it; "" at the top level."""

    name: str
    bucket: BucketRef
    format: InputFormat
    path: str = ""

    def shard_name(self, name: str) -> str:
        """What the job calls the object ``name`` of this input."""
        return f"{self.name}/{name}" if self.name else name
