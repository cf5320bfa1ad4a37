"""Members as they are found, before they are put in order: :class:`Members`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.errors import DuplicateError
from dsort.loose_files.listing import LITERAL, Listing
from dsort.loose_files.member_names import BETWEEN
from dsort.naming.names import readable

__all__ = ["Members"]


@dataclass(slots=True)
class Members:
    """Columns with a row a member, and the files that are left out, by why. Names have
    ``BETWEEN`` between key and extension. ``classes``: by key, where there are classes."""

    names: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    classes: dict[bytes, bytes] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self, name: bytes, size: int, number: int, path: bytes, stamp: int, start: int = 0
    ) -> None:
        """A file of the input with that ``number``: the object ``path``, or what is in it from byte
        ``start`` on."""
        self.names.append(name)
        self.sizes.append(size)
        self.inputs.append(number)
        self.paths.append(path)
        self.stamps.append(stamp)
        self.starts.append(start)

    def add_text(self, key: bytes, extension: bytes, text: bytes) -> None:
        """A member that is in no file."""
        self.add(key + BETWEEN + extension, len(text), LITERAL, text, 0)

    def note_class(self, key: bytes, own: bytes) -> None:
        """Note the class of a record; ``DuplicateError`` if it has another one."""
        other = self.classes.setdefault(key, own)
        if other != own:
            raise DuplicateError(
                f"files of the classes {readable(other)} and {readable(own)} have the key "
                f"{readable(key)}",
                hint="use ingest.key: path",
            )

    def leave_out(self, why: str, name: str) -> None:
        """Note a file that becomes no member."""
        self.left_out.setdefault(why, []).append(name)

    def record_keys(self) -> list[bytes]:
        """The keys of the records, in order."""
        return sorted({name.partition(BETWEEN)[0] for name in self.names})

    def listed(self) -> Listing:
        """The listing of the members, sorted by key and extension. ``DuplicateError`` for two that
        are one."""
        names = self.names
        order = sorted(range(len(names)), key=names.__getitem__)
        ordered = [names[row] for row in order]
        self._refuse_alike(ordered, order)
        keys = [name.partition(BETWEEN)[0] for name in ordered]
        records = [0, *(row for row, (a, b) in enumerate(pairwise(keys), 1) if a != b)]
        rows = np.array(order, np.int64)
        return Listing.of(
            names=BytesColumn.of([name.replace(BETWEEN, b".", 1) for name in ordered]),
            sizes=np.array(self.sizes, np.int64)[rows],
            inputs=np.array(self.inputs, np.int32)[rows],
            paths=BytesColumn.of([self.paths[row] for row in order]),
            stamps=np.array(self.stamps, np.uint64)[rows],
            starts=np.array(self.starts, np.int64)[rows],
            records=np.array(records, np.int64),
        )

    def _refuse_alike(self, ordered: Sequence[bytes], order: Sequence[int]) -> None:
        """``DuplicateError`` for two files that would be one member, also to readers that take
        extensions for the same that differ in case."""
        for at, (name, other) in enumerate(pairwise(ordered)):
            if name == other:
                self._refuse(order[at], order[at + 1], "would be the same member")
        extensions = {name[name.find(BETWEEN) + 1 :] for name in ordered}
        if len({each.lower() for each in extensions}) == len(extensions):
            return
        seen: dict[bytes, int] = {}
        for row, name in zip(order, ordered, strict=True):
            key, _, extension = name.partition(BETWEEN)
            other_row = seen.setdefault(key + BETWEEN + extension.lower(), row)
            if other_row != row:
                what = "would be the same member to readers that read extensions in lower case"
                self._refuse(other_row, row, what)

    def _refuse(self, one: int, other: int, what: str) -> None:
        first, second = (self._source_of(row) for row in (one, other))
        name = readable(self.names[other].replace(BETWEEN, b".", 1))
        raise DuplicateError(
            f"{first} and {second} {what}, {name}",
            hint="rename one of them, use ingest.key: path, or say with ingest.members what "
            "stands before the extensions of an input",
        )

    def _source_of(self, row: int) -> str:
        if self.inputs[row] == LITERAL:
            return f"the {readable(self.names[row].partition(BETWEEN)[2])} that is made"
        return readable(self.paths[row])
