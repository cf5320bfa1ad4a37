"""The parts of a spec that every job has for its inputs: which shards of a bucket are read, and the
reactions to faults."""

# No `from __future__ import annotations`: pydantic would compile each annotation of a model again.
from fractions import Fraction
from typing import Any, Final, Literal

from msgspec import Struct
from pydantic import Field

from dsort.spec.fields import (
    Glob,
    InputText,
    Limit,
    MemoryAmount,
    NamePrefix,
    ObjectNames,
    SizeBytes,
)
from dsort.spec.part import Part
from dsort.storage.ref import BucketRef

INPUTS_MAX: Final = 100
"""The maximum number of inputs. Each has a client of its store in every worker."""


class InputFormat(Part, defer_build=False):
    """Which shards the job reads; at most one of these fields is set. Without them, it reads every
    object of the bucket whose name ends in the input extension, in byte order of the names."""

    template: InputText | None = Field(
        default=None,
        description="A bounded range of names, e.g. 'samples-{000..099}', 'samples-@099', or "
        "several joined with '::'. '{train,val}' and '{a..c}' are read as bash reads them. A name "
        "without a range stands for one shard. Order of inputs = order of the template. The input "
        "extension is appended to names that have no archive extension.",
        examples=["samples-{000..099}", "train-{00..09}::extra-{00..04}"],
    )
    objnames: ObjectNames | None = Field(
        default=None,
        description="The names themselves, used as they are and in this order: nothing is "
        "appended. A shard whose name has no archive extension has the container of "
        "input_extension.",
    )
    prefix: NamePrefix | None = Field(
        default=None,
        description="Every object whose name begins with this prefix and ends in the input "
        "extension, in byte order of the names.",
        examples=["train/"],
    )
    glob: Glob | None = Field(
        default=None,
        description="Every object whose name matches this pattern and ends in the input "
        "extension, in byte order of the names. '*' and '?' match no '/', '**' does.",
        examples=["train/**/part-*.tar"],
    )

    @property
    def given(self) -> list[str]:
        """The names of the fields that are set."""
        return [name for name, value in self if value is not None]


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


Reaction = Literal["ignore", "warn", "abort"]

_NO_EFFECT = "Accepted for AIStore's sake; has no effect, draws a warning and is not kept."


def ignored(description: str) -> Any:
    """A field that is read, draws a warning and has no effect."""
    return Field(
        default=None,
        exclude=True,
        description=f"{description} {_NO_EFFECT}",
        json_schema_extra=_deprecate,
    )


def _deprecate(schema: dict[str, Any]) -> None:
    schema["deprecated"] = True


class JobConfig(Part):
    """The reactions of the job to faults, and limits. A spec has these fields at its top level;
    AIStore has them in an object of their own, ``Config``."""

    missing_shards: Reaction | None = Field(
        default=None,
        description="An input shard does not exist. Default: warn; but if no input is found at "
        "all, the job fails, unless this field is set to ignore or warn.",
    )
    duplicated_records: Reaction | None = Field(
        default=None,
        description="Two members of one shard have the same key and the same extension. Default: "
        "each becomes part of a record of its own, and duplicate_keys applies to these records. "
        "abort: the job fails, wherever in the shard the members are. warn, ignore: where such "
        "members follow each other, the last one is kept and the others are lost.",
    )
    ekm_malformed_line: Reaction = Field(
        default="abort", description="A line of the external key map is not a key and a template."
    )
    ekm_missing_key: Reaction = Field(
        default="abort",
        description="A record matches no template of the external key map, or several. ignore and "
        "warn: the record goes to ekm_default if that is set, else it is dropped and counted.",
    )
    duplicate_keys: Literal["ignore", "warn", "abort", "drop", "rename"] = Field(
        default="warn",
        description="Two records of the job, or of one shard, have the same key. drop keeps the "
        "first record; rename gives the later records the keys key-1, key-2, ...",
    )
    corrupt_shards: Literal["abort", "skip"] = Field(
        default="abort",
        description="An input shard cannot be read whole. skip leaves the shard out and reports "
        "it. A table that is encrypted, or that needs a feature that dsort lacks, fails the job "
        "in any case.",
    )
    incomplete_shards: Reaction = Field(
        default="abort",
        description="An input shard may not be whole: it has no end-of-archive marker, more zeros "
        "at its end than tar writers pad with, nothing but zeros or no bytes at all, or data "
        "behind its end marker that is no tar. warn, ignore: the members that can be read are "
        "used.",
    )
    concatenated_shards: Literal["read", "abort"] = Field(
        default="read",
        description="An input shard is several tars one after the other, as cat and GNU tar -A "
        "make them. read: all of the tars are read; many other readers read only the first.",
    )
    stray_members: Literal["keep", "drop", "abort"] = Field(
        default="keep",
        description="Members that are part of no record: members without an extension, hidden "
        "members, links, devices, directories. keep: files and links become records of their own, "
        "directories and devices are dropped and counted.",
    )
    unsafe_names: Literal["warn", "rename", "abort"] = Field(
        default="warn",
        description="Members with an absolute name or a '..' in the name, and symbolic links that "
        "lead out of the archive, also by way of other links of their shard. rename strips "
        "leading slashes and '..'; keys that are then equal in their shard become key-1, key-2, "
        "...",
    )

    default_max_mem_usage: MemoryAmount = Field(
        default="80%", description="Used where max_mem_usage is not set."
    )
    dsorter_mem_threshold: SizeBytes = ignored("Memory from which AIStore sorts in memory.")
    call_timeout: str | None = ignored("How long AIStore's nodes wait for one another.")
    compression: str | None = ignored("Compression between AIStore's nodes.")
    bundle_multiplier: Limit | None = ignored("Streams between AIStore's nodes.")
    burst_buffer: Limit | None = ignored("Buffer of the streams between AIStore's nodes.")
