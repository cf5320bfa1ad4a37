"""How a job reacts to faults of its inputs, and fields that AIStore has and dsort ignores."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsort.spec.fields import Limit, MemoryAmount, SizeBytes
from dsort.spec.part import Part

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
    """How the job reacts to what it meets, and limits. Their place is the top level of a spec;
    AIStore has them in an object of their own, ``Config``."""

    missing_shards: Reaction | None = Field(
        default=None,
        description="An input shard does not exist. Default: warn; but it is an error if no input "
        "is found at all, unless this is set to ignore or warn.",
    )
    duplicated_records: Reaction | None = Field(
        default=None,
        description="Two members of one shard have one key and one extension. Default: each "
        "belongs to a record of its own, which duplicate_keys is for. abort: wherever in the shard "
        "they are. warn, ignore: of such members side by side the last one is kept, the others "
        "are lost.",
    )
    ekm_malformed_line: Reaction = Field(
        default="abort", description="A line of the external key map is no key and template."
    )
    ekm_missing_key: Reaction = Field(
        default="abort",
        description="A record matches no template of the external key map, or several. ignore and "
        "warn: it goes to ekm_default if there is one, else it is dropped and counted.",
    )
    duplicate_keys: Literal["ignore", "warn", "abort", "drop", "rename"] = Field(
        default="warn",
        description="Two records of the job, or of one shard, have one key. drop keeps the first; "
        "rename makes the later ones key-1, key-2, ...",
    )
    corrupt_shards: Literal["abort", "skip"] = Field(
        default="abort",
        description="An input shard cannot be read whole. skip leaves it out and says so. A table "
        "that is encrypted, or has what dsort cannot read, ends the job all the same.",
    )
    incomplete_shards: Reaction = Field(
        default="abort",
        description="An input shard may not be whole: it has no end-of-archive marker, more zeros "
        "at its end than tar writers pad with, nothing but zeros or no bytes at all, or data "
        "behind its end marker that is no tar. warn, ignore: what can be read of it is taken.",
    )
    concatenated_shards: Literal["read", "abort"] = Field(
        default="read",
        description="An input shard is several tars one after the other, as cat and GNU tar -A "
        "make them. read: all of them are read, which many other readers do not do.",
    )
    stray_members: Literal["keep", "drop", "abort"] = Field(
        default="keep",
        description="Members that are no part of a record: no extension, hidden, links, devices, "
        "directories. keep: files and links stay as records of their own, directories and "
        "devices are dropped and counted.",
    )
    unsafe_names: Literal["warn", "rename", "abort"] = Field(
        default="warn",
        description="Members with an absolute name or a '..' in it, and symbolic links that lead "
        "out of the archive, also by way of other links of their shard. rename strips leading "
        "slashes and '..' and makes keys that then collide in their shard key-1, key-2, ...",
    )

    default_max_mem_usage: MemoryAmount = Field(
        default="80%", description="Used where max_mem_usage is not set."
    )
    dsorter_mem_threshold: SizeBytes = ignored("Memory from which AIStore sorts in memory.")
    call_timeout: str | None = ignored("How long AIStore's nodes wait for one another.")
    compression: str | None = ignored("Compression between AIStore's nodes.")
    bundle_multiplier: Limit | None = ignored("Streams between AIStore's nodes.")
    burst_buffer: Limit | None = ignored("Buffer of the streams between AIStore's nodes.")
