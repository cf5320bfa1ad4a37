"""What a spec says of loose files: how they become records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dsort.naming.patterns import KeyPattern
from dsort.spec.algorithms import Part
from dsort.spec.fields import Extension, InputName

__all__ = ["Ingest"]


def _key_pattern(text: str) -> str:
    KeyPattern(text)
    return text


class Ingest(Part):
    """The inputs are loose files, not shards. Each becomes one member of one record."""

    layout: Literal["files", "folders"] = Field(
        default="files",
        description="What the files are. files: those of one key are a record. folders: as "
        "torchvision's ImageFolder: the first directory of a name is the record's class, whose "
        "number, by sorted names, is a member .cls.",
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
    hidden: Literal["drop", "abort"] = Field(
        default="drop",
        description="Files and directories whose names begin with a dot. drop: left out, counted "
        "and named.",
    )
    unusable: Literal["abort", "drop"] = Field(
        default="abort",
        description="What can be no member: files without an extension, links to nothing, pipes, "
        "sockets, devices, and with folders files in no class. drop: left out, counted and named.",
    )

    @property
    def parts_at_first_dot(self) -> bool:
        """Whether extensions begin at the first dot of a file's name."""
        return (self.dots or ("first" if self.layout == "files" else "last")) == "first"
