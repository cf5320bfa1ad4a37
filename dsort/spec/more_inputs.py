"""The parts of a spec that few jobs have: several inputs, joined or mixed, and loose files that
become records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from dsort.naming.patterns import KeyPattern
from dsort.spec.fields import (
    ArchiveExtension,
    Bucket,
    Count,
    Extension,
    InputName,
    JoinedBy,
    Limit,
    LocalFile,
    Times,
    Weight,
    checked_by,
)
from dsort.spec.inputs import InputFormat
from dsort.spec.part import Part

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
