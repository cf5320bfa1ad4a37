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
    "key (the record key), stem (the part of the key behind its last slash), json.image_id (a "
    "field of the .json member), or an expression as in the step filter. Except for key, the "
    "value becomes the record's new key."
)


class InputJoin(Part):
    """How a single input is joined, if not in the same way as the others."""

    by: JoinedBy | None = Field(
        default=None,
        description=f"The value by which its records are joined: {_BY} Default: join.by.",
        examples=["stem", "json.image_id"],
    )
    nonmatch: Nonmatch | None = Field(
        default=None,
        description="What happens to a record of the other inputs that has no match in this "
        "input. Default: join.nonmatch.",
    )


class Join(Part):
    """Records of several inputs with one key become one record, with the members of all of them."""

    by: JoinedBy = Field(
        default="key",
        description=f"The value by which records are joined: {_BY}",
        examples=["key", "stem"],
    )
    nonmatch: Nonmatch = Field(
        default="error",
        description="What happens to a record that has no match in some input. error: the job "
        "fails. skip: the record is left out, and counted. none: it is joined without that input.",
    )
    conflict: Literal["error", "first", "last"] = Field(
        default="error",
        description="Several inputs have a member with the same extension for one record. error: "
        "the job fails. first, last: the member of the first or the last input stays; the others "
        "are left out, and counted.",
    )


class Input(Part):
    """One of several inputs."""

    name: InputName = Field(
        description="The name of the input in the names of its shards, in keys that are made of "
        "positions, and in reports. Letters, digits, - and _.",
        examples=["web"],
    )
    input_bck: Bucket = Field(description="Its bucket, as input_bck at the top level.")
    input_format: InputFormat = Field(
        default_factory=InputFormat, description="Which shards of the bucket go in."
    )
    input_extension: ArchiveExtension | None = Field(
        default=None,
        description="The container of this input, if it differs from that of the job. Default: "
        "that of the names in its input_format, else input_extension at the top level.",
        examples=[".jsonl"],
    )
    weight: Weight | None = Field(
        default=None,
        description="How often each record of this input comes out. 2.5: each record twice, and "
        "half of the records once more. 0.1: a tenth of the records. A hash of input and key "
        "chooses them. With mix: the share of this input, in proportion to the other weights. "
        "Default: 1.",
        examples=[0.5],
    )
    repeat: Times | None = Field(
        default=None,
        description="The number of times that each record of this input comes out.",
        examples=[3],
    )
    records: Count | None = Field(
        default=None,
        description="The exact number of records that come out of this input: those with the "
        "smallest hashes, or, if it has fewer, all of its records several times. The job reads "
        "the inputs once more.",
        examples=[100000],
    )
    join: InputJoin | None = Field(
        default=None,
        description="With join at the top level: how the join differs for this input.",
        examples=[{"nonmatch": "none"}],
    )


class Mix(Part):
    """How many records each of several inputs contributes, in proportion to weights."""

    records: Count | None = Field(
        default=None,
        description="The exact number of records of all inputs together. An input that has fewer "
        "records than its share is an error, unless replacement is set.",
        examples=[1000000],
    )
    stop: Literal["first_exhausted", "all_exhausted"] | None = Field(
        default=None,
        description="first_exhausted: the largest number of records in which no record occurs "
        "twice. all_exhausted: the smallest number in which every record occurs. Both numbers are "
        "exact.",
    )
    replacement: bool = Field(
        default=False,
        description="An input that has fewer records than its share contributes its records "
        "several times.",
    )
    seed: str = Field(
        default="0",
        strict=False,
        coerce_numbers_to_str=True,
        description="The seed of the choice of records. It is not the seed of a shuffle.",
    )


Location = Annotated[LocalFile, Field(min_length=1, max_length=4096)]


class Table(Part):
    """A table with a column of keys."""

    file: Location = Field(
        description="A .csv, .jsonl or .parquet: a path (relative to the spec file, if the spec is "
        "one), an http(s) URL, or, in specs of your own machine, an object such as "
        "s3://bucket/captions.parquet."
    )
    key: str = Field(
        default="key", min_length=1, description="The column that relates each row to a record."
    )
    match: Literal["key", "name"] = Field(
        default="key",
        description="The text that the column is compared with. key: the record's key. name: the "
        "part of that key behind its last slash.",
    )


class Ingest(Part):
    """The inputs are loose files, not shards. Each becomes one member of one record."""

    layout: Literal["files", "folders", "metadata"] = Field(
        default="files",
        description="How files become records. files: files with the same key are a record. "
        "folders: as with torchvision's ImageFolder, the first directory of a name is the class "
        "of the record; the number of the class, by sorted names, becomes a member .cls. "
        "metadata: as with Hugging Face's imagefolder, each row of the metadata.csv, .jsonl or "
        ".parquet beside the files names a file, in the column file_name; the other columns "
        "become a member .json.",
    )
    archives: bool = Field(
        default=False,
        description="Files whose names end in .tar are read as archives. Their members are the "
        "files, in a directory with the name of the tar without its suffix. In a tar of tars, "
        "such as ImageNet's, the directories have the names of the inner tars.",
    )
    key: Literal["path", "name", "joined"] = Field(
        default="path",
        description="The part of a file's name, without its extension, that is the key. path: the "
        "whole name. name: the part behind the last slash. joined: the whole name without slashes.",
    )
    key_pattern: Annotated[str, checked_by(KeyPattern)] | None = Field(
        default=None,
        description="A regular expression (RE2) that matches the whole of a file's name without "
        "its extension; its first group is the key. It replaces the field key.",
        examples=[".*/([^/]+)"],
    )
    dots: Literal["first", "last"] | None = Field(
        default=None,
        description="The dot in the last part of a file's name at which the extension begins. "
        "last: earlier dots become _ in the key, because readers of shards divide names at the "
        "first dot. Default: first with layout files, else last.",
    )
    extensions: tuple[Extension, ...] = Field(
        default=(),
        strict=False,
        description="The extensions of the files that go in, in upper or lower case. Other files "
        "are left out and counted. Default: all files go in.",
        examples=[["jpg", "png"]],
    )
    members: Mapping[InputName, Extension] = Field(
        default_factory=dict,
        description="By name of an input, a text that is put before the extensions of its files, "
        "so that files of the same name in several inputs become members with different names. "
        "With {masks: mask}, the file a.png of the input masks becomes the member a.mask.png.",
        examples=[{"masks": "mask"}],
    )
    class_map: Location | None = Field(
        default=None,
        description="With folders: the number of each class. A JSON object of numbers or list of "
        "names, or lines of name,number or of names. A class that is not in the file is an error.",
        examples=["classes.json"],
    )
    recipe: Location | None = Field(
        default=None,
        description="A file that replaces the listing of the inputs. Each line has the name of a "
        "member and the source of its content: an object of the input (with several inputs: "
        "name/object), its URL, text: and the content, or (with pipes) pipe: and a program.",
        examples=["recipe.txt"],
    )
    pipes: bool = Field(
        default=False,
        description="Lines of recipe may have pipe: and a program with its arguments. The output "
        "of the program is the content. Programs run on this machine, without a shell. Only in "
        "specs of your own machine.",
    )
    labels: Location | None = Field(
        default=None,
        description="A file with one number a line, for each record in the order of the keys, "
        "such as ImageNet's ground truth. The number becomes a member .cls of the record.",
        examples=["ILSVRC2012_validation_ground_truth.txt"],
    )
    labels_from: Limit = Field(
        default=0, description="The number in labels that becomes 0; ImageNet's begin at 1."
    )
    table: Table | None = Field(
        default=None,
        description="A table with a row for each record. The columns of the row become a member "
        ".json.",
        examples=[{"file": "captions.csv", "key": "image_id", "match": "name"}],
    )
    hidden: Literal["drop", "abort"] = Field(
        default="drop",
        description="Files and directories whose names begin with a dot. drop: left out, counted "
        "and named.",
    )
    unusable: Literal["abort", "drop"] = Field(
        default="abort",
        description="Files that cannot become members: files without an extension (unless "
        "extensions is set), links to nothing, pipes, sockets, devices; with folders, files in no "
        "class; with metadata, files in no row. drop: left out, counted and named.",
    )

    @property
    def parts_at_first_dot(self) -> bool:
        """Whether extensions begin at the first dot of a file's name."""
        return (self.dots or ("first" if self.layout == "files" else "last")) == "first"
