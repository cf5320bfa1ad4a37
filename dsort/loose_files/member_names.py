"""Finds the record and the member that a file becomes, by its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, Literal

from msgspec import Struct

from dsort.naming.patterns import KeyPattern

__all__ = [
    "BETWEEN",
    "CLUTTER",
    "HIDDEN",
    "NO_CLASS",
    "NO_EXTENSION",
    "NO_ORDINARY_FILE",
    "ODD_NAME",
    "OTHER",
    "UNUSABLE",
    "NameRules",
]

BETWEEN = b"\0"
"""Stands between key and extension, instead of the dot in a name: then names sort by their keys."""

HIDDEN, OTHER, CLUTTER = "hidden", "other", "clutter"
"""The reasons why a file is left out: it is hidden, it has an extension that is not wanted, or it
is clutter. Clutter describes the files beside it for their readers, or was left by a file manager
or an archiver."""

_CLUTTER: Final = re.compile(
    rb"(?:.*/)?(?:(?:readme|licen[cs]e)\.(?:txt|md|rst|html?|pdf)|(?:eh)?thumbs\.db|desktop\.ini)"
    rb"|(?:.*/)?__macosx/.*",
    re.IGNORECASE | re.DOTALL,
)
NO_CLASS, NO_EXTENSION, NO_ORDINARY_FILE = "no_class", "no_extension", "no_ordinary_file"
ODD_NAME = "odd_name"
UNUSABLE: Final[Mapping[str, str]] = {
    NO_CLASS: "in no directory of a class",
    NO_EXTENSION: "no extension",
    NO_ORDINARY_FILE: "a link to nothing, a pipe, a socket or a device",
    ODD_NAME: "a name that no member can have",
}
"""The reasons why a file cannot be a member of a record, in words."""


class NameRules(Struct, frozen=True, dict=True):
    """How names of files become keys and extensions. ``at_first_dot``: whether the extension begins
    at the first dot. ``extensions``: the wanted ones, none for all. ``directory_from``: where in a
    path its class begins, a directory that it must have; None if there are no classes.
    ``keeps_clutter``: set if something else selects the files."""

    key: Literal["path", "name", "joined"] = "path"
    pattern: KeyPattern | None = None
    at_first_dot: bool = True
    extensions: Collection[bytes] = ()
    directory_from: int | None = None
    keeps_clutter: bool = False

    @cached_property
    def _lower(self) -> frozenset[bytes]:
        return frozenset(each.lower() for each in self.extensions)

    def member_of(self, path: bytes) -> tuple[bytes, bytes] | str:
        """(key, extension) of the file ``path``, or why it is left out."""
        base = path[path.rfind(b"/") + 1 :]
        if path[:1] == b"." or b"/." in path:
            return HIDDEN if _is_plain(path) else ODD_NAME
        dot = base.find(b".") if self.at_first_dot else base.rfind(b".")
        extension = base[dot + 1 :]
        if b"//" in path or path[0] == 47 or b"\0" in path:
            return ODD_NAME
        if dot < 1 or not extension:
            return OTHER if self._lower else NO_EXTENSION
        if not self.keeps_clutter and _CLUTTER.fullmatch(path):
            return CLUTTER
        if self._lower and extension.lower() not in self._lower:
            return OTHER
        key = path[: len(path) - len(extension) - 1]
        if self.directory_from is not None and path.find(b"/", self.directory_from) < 0:
            return NO_CLASS
        if self.pattern is not None:
            found = self.pattern.key_of(key)
            if found is None:
                return OTHER
            key = found
        elif self.key == "name":
            key = key[key.rfind(b"/") + 1 :]
        elif self.key == "joined":
            key = key.replace(b"/", b"")
        # Readers of shards split names at the first dot of the last part.
        cut = key.rfind(b"/") + 1
        if b"." in key[cut:]:
            key = key[:cut] + key[cut:].replace(b".", b"_")
        if not key[cut:] or not _is_plain(key):
            return ODD_NAME
        return key, extension


def _is_plain(path: bytes) -> bool:
    """Whether ``path`` has no parts that lead to other directories."""
    return not path.startswith(b"/") and not {b"", b".", b".."} & {*path.split(b"/")}
