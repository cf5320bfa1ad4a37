"""The part of a spec about loose files: how they become records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dsort.naming.patterns import KeyPattern
from dsort.spec.fields import Extension, InputName, Limit, LocalFile
from dsort.spec.part import Part

Location = Annotated[LocalFile, Field(min_length=1, max_length=4096)]


def _key_pattern(text: str) -> str:
    KeyPattern(text)
    return text


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
    key_pattern: Annotated[str, AfterValidator(_key_pattern)] | None = Field(
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
