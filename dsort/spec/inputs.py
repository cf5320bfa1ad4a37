"""The parts of a spec about its inputs: buckets, which of their shards are read, loose files that
become records, and reactions to faults."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import Field

from dsort.naming.patterns import KeyPattern
from dsort.spec.fields import (
    ArchiveExtension,
    Bucket,
    Count,
    Extension,
    Glob,
    InputName,
    InputText,
    JoinedBy,
    Limit,
    LocalFile,
    MemoryAmount,
    NamePrefix,
    ObjectNames,
    SizeBytes,
    Times,
    Weight,
    checked_by,
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
    """How a single input is joined, if not in the same way as the others."""

    by: JoinedBy | None = Field(
        default=None,
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

    by: JoinedBy = Field(
        default="key",
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
    """Which shards go in: at most one of these. Without any of them, every object of the bucket
    whose name ends in the input extension goes in, in byte order of the names."""

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

    @property
    def given(self) -> list[str]:
        """The names of the fields that are set."""
        return [name for name, value in self if value is not None]


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
    """How many records each of several inputs contributes, in proportion to weights."""

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


Location = Annotated[LocalFile, Field(min_length=1, max_length=4096)]


class Table(Part):
    """A table by key column."""

    file: Location = Field(
        description="A .csv, .jsonl or .parquet: a path (relative to the spec file, if the spec is "
        "one), an http(s) URL, or, in specs of your own machine, an object such as "
        "s3://bucket/captions.parquet."
    )
    key: str = Field(
        default="key", min_length=1, description="The column that says which record a row is of."
    )
    match: Literal["key", "name"] = Field(
        default="key",
        description="What it is compared with. key: the record's key. name: what is behind the "
        "key's last slash.",
    )


class Ingest(Part):
    """The inputs are loose files, not shards. Each becomes one member of one record."""

    layout: Literal["files", "folders", "metadata"] = Field(
        default="files",
        description="What the files are. files: those of one key are a record. folders: as "
        "torchvision's ImageFolder: the first directory of a name is the record's class, whose "
        "number, by sorted names, is a member .cls. metadata: as Hugging Face's imagefolder: "
        "metadata.csv, .jsonl or .parquet beside the files names one in each row, in file_name; "
        "its other columns are a member .json.",
    )
    archives: bool = Field(
        default=False,
        description="Files whose names end in .tar are looked into: what is in them are the files, "
        "under the name of the tar without its suffix. Of a tar of tars, as ImageNet's, the inner "
        "ones give the names.",
    )
    key: Literal["path", "name", "joined"] = Field(
        default="path",
        description="What of a file's name, without its extension, is the key. path: all of it. "
        "name: what is behind the last slash. joined: all of it without slashes.",
    )
    key_pattern: Annotated[str, checked_by(KeyPattern)] | None = Field(
        default=None,
        description="A regular expression (RE2) that matches the whole of a file's name without "
        "its extension; its first group is the key. In place of key.",
        examples=[".*/([^/]+)"],
    )
    dots: Literal["first", "last"] | None = Field(
        default=None,
        description="At which dot of the last part of a file's name its extension begins. last: "
        "dots before it become _ in the key, for readers of shards part names at the first. "
        "Default: first; last for folders.",
    )
    extensions: tuple[Extension, ...] = Field(
        default=(),
        strict=False,
        description="The files that go in, by extension, in any case. Others are left out and "
        "counted. Default: all.",
        examples=[["jpg", "png"]],
    )
    members: Mapping[InputName, Extension] = Field(
        default_factory=dict,
        description="By name of an input: what stands before the extensions of its files, so that "
        "trees that have a file of one name give members of different names. {masks: mask} makes "
        "a.mask.png of the file a.png of the input masks.",
        examples=[{"masks": "mask"}],
    )
    class_map: Location | None = Field(
        default=None,
        description="With folders: which number each class has. A JSON object of numbers or list "
        "of names, or lines of name,number or of names. A class that is not in it is an error.",
        examples=["classes.json"],
    )
    recipe: Location | None = Field(
        default=None,
        description="A file with a member's name and what is in it in each line, in place of what "
        "the inputs list: an object of the input (of several: name/object), its URL, text: and "
        "the content, or (with pipes) pipe: and a program.",
        examples=["recipe.txt"],
    )
    pipes: bool = Field(
        default=False,
        description="Lines of recipe may say pipe: and a program with its arguments, whose output "
        "is the content. It is run on this machine; no shell reads them. For specs of your own "
        "machine alone.",
    )
    labels: Location | None = Field(
        default=None,
        description="A list with a number a line, one for each record in the order of the keys, as "
        "ImageNet's ground truth: a member .cls.",
        examples=["ILSVRC2012_validation_ground_truth.txt"],
    )
    labels_from: Limit = Field(
        default=0, description="The number in labels that becomes 0; ImageNet's begin at 1."
    )
    table: Table | None = Field(
        default=None,
        description="A table with a row for each record, whose columns are a member .json.",
        examples=[{"file": "captions.csv", "key": "image_id", "match": "name"}],
    )
    hidden: Literal["drop", "abort"] = Field(
        default="drop",
        description="Files and directories whose names begin with a dot. drop: left out, counted "
        "and named.",
    )
    unusable: Literal["abort", "drop"] = Field(
        default="abort",
        description="What can be no member: without extensions above, files that have none; links "
        "to nothing, pipes, sockets, devices, with folders files in no class, with metadata files "
        "in no row. drop: left out, counted and named.",
    )

    @property
    def parts_at_first_dot(self) -> bool:
        """Whether extensions begin at the first dot of a file's name."""
        return (self.dots or ("first" if self.layout == "files" else "last")) == "first"


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
