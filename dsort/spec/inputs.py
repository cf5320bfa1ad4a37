"""The part of a spec about its inputs: buckets, and which of their shards are read."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

from msgspec import Struct
from pydantic import Field

from dsort.spec.fields import (
    ArchiveExtension,
    Bucket,
    Count,
    Glob,
    InputName,
    InputText,
    NamePrefix,
    ObjectNames,
    Times,
    Weight,
)
from dsort.spec.part import Part
from dsort.storage.ref import BucketRef

Nonmatch = Literal["error", "skip", "none"]

_BY = (
    "key (the record key), stem (what is behind its last slash), json.image_id (a field of the "
    ".json member), or an expression as of the step filter. But for key, the record gets what it "
    "is as its new key."
)


class InputJoin(Part):
    """How one of several inputs is joined with the others, where that is not as for all."""

    by: str | None = Field(
        default=None,
        min_length=1,
        description=f"What its records are joined by: {_BY} Default: join.by.",
        examples=["stem", "json.image_id"],
    )
    nonmatch: Nonmatch | None = Field(
        default=None,
        description="What becomes of a record of other inputs that has none in this one. Default: "
        "join.nonmatch.",
    )


class Join(Part):
    """Records of several inputs with one key become one record, with the members of all of them."""

    by: str = Field(
        default="key",
        min_length=1,
        description=f"What records are joined by: {_BY}",
        examples=["key", "stem"],
    )
    nonmatch: Nonmatch = Field(
        default="error",
        description="What becomes of a record that some input does not have. error: the job ends. "
        "skip: it is left out, and counted. none: it is joined without.",
    )
    conflict: Literal["error", "first", "last"] = Field(
        default="error",
        description="Members of one record with one extension, in several inputs. error: the job "
        "ends. first, last: that of the first or the last input stays; the others are left out, "
        "and counted.",
    )


INPUTS_MAX: Final = 100
"""The maximum number of inputs. Each has a client of its store in every worker."""


class InputFormat(Part, defer_build=False):
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
        default=None,
        description="The names themselves, used as they are and in this order: nothing is "
        "appended. One without an archive extension has the container of input_extension.",
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
    input_extension: ArchiveExtension | None = Field(
        default=None,
        description="The container of this input, where it is another than that of the job. "
        "Default: that of its input_format's names, else input_extension at the top level.",
        examples=[".jsonl"],
    )
    weight: Weight | None = Field(
        default=None,
        description="How often each record of it comes out: 2.5 is twice, and half of them once "
        "more; 0.1 is a tenth of them. Which ones, a hash of input and key says. With mix: the "
        "share of this input, as a proportion. Default: 1.",
        examples=[0.5],
    )
    repeat: Times | None = Field(
        default=None, description="Each record of it comes out so many times.", examples=[3]
    )
    records: Count | None = Field(
        default=None,
        description="So many records come out of it, exactly: those with the smallest hashes, or "
        "where it has fewer, all of them as often as it takes. The inputs are looked through once "
        "more for it.",
        examples=[100000],
    )
    join: InputJoin | None = Field(
        default=None,
        description="With join at the top level: how it differs for this input.",
        examples=[{"nonmatch": "none"}],
    )


class Mix(Part):
    """How many records come out of each of several inputs, in proportion to their weights."""

    records: Count | None = Field(
        default=None,
        description="So many records in all, exactly. An input that has fewer than its share is an "
        "error, unless replacement is set.",
        examples=[1000000],
    )
    stop: Literal["first_exhausted", "all_exhausted"] | None = Field(
        default=None,
        description="first_exhausted: as many records as there can be without one that occurs "
        "twice. all_exhausted: as few as it takes for every record to occur. Either is exact.",
    )
    replacement: bool = Field(
        default=False,
        description="Inputs that have fewer records than their share of records give all of them "
        "several times.",
    )
    seed: str = Field(
        default="0",
        strict=False,
        coerce_numbers_to_str=True,
        description="Another seed chooses other records. It has nothing to do with a shuffle's.",
    )


class Source(Struct, frozen=True):
    """One input of a job. ``name``: "" for a single input without a name. ``path``: the path of its
    fields in the spec, with a dot at the end; "" at the top level. ``weight``: how many times a
    record is used, exactly as in the spec. ``records``: how many records it contributes, if the
    spec sets it. ``extension``: its container, as a suffix."""

    name: str
    bucket: BucketRef
    format: InputFormat
    path: str = ""
    weight: Fraction = Fraction(1)
    records: int | None = None
    extension: str = ""

    def shard_name(self, name: str) -> str:
        """The job's name for the object ``name`` of this input."""
        return f"{self.name}/{name}" if self.name else name
