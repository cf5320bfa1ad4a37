"""The step ``fields``: which members of a record stay, and which names they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec.structs import replace

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.option_fields import Check, OptionError, option
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.data.record_table import RecordTable

__all__ = ["Fields", "check_extension"]


def _are_extensions(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    keep, drop, rename = options["keep"] or (), options["drop"], options["rename"]
    for name in (*keep, *drop, *rename, *rename.values()):
        check_extension(name)
    yield from ()


class Fields(Step, frozen=True):
    """``keep``: None keeps all members. ``rename``: new extensions by old ones, those of ``keep``
    included."""

    kind: ClassVar[str] = "fields"
    summary: ClassVar[str] = "Keep, drop and rename the members of records, by extension."
    options_summary: ClassVar[str] = "What a spec gives for ``fields``: at least one of these."
    is_for_rows: ClassVar[bool] = True
    checks: ClassVar[tuple[Check, ...]] = (Check(("keep", "drop", "rename"), _are_extensions),)

    keep: tuple[str, ...] | None = option(
        list[str],
        "Extensions of the members that stay; all others go. `info:info.json` keeps `info.json` "
        "and calls it `info`.",
    )
    drop: tuple[str, ...] = option(list[str], "Extensions of members that go.", default=())
    rename: dict[str, str] = option(
        dict[str, str], 'New extensions by old ones: `{"seg.png": "mask.png"}`.', default={}
    )

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """``keep`` without new extensions, which go into ``rename``."""
        if not given:
            raise OptionError("says nothing to do", "give it keep, drop or rename")
        kept, rename = [], dict(given.get("rename", {}))
        for text in given.get("keep", ()):
            new, colon, old = text.partition(":")
            kept.append(old if colon else new)
            if colon and rename.setdefault(old, new) != new:
                raise OptionError(f"gives {old} two names, {new} and {rename[old]}")
        own = {"keep": kept} if "keep" in given else {}
        return super().checked({**given, **own, "rename": dict(sorted(rename.items()))})

    def keeping(self, extension: str) -> Self:
        """The same step, except that members with this extension stay."""
        if self.keep is None or extension in self.keep:
            return self
        return replace(self, keep=(*self.keep, extension))

    @property
    def listed(self) -> tuple[str, ...]:
        """The extensions that are kept, dropped or renamed."""
        old = [each for each in self.rename if each not in (self.keep or ())]
        return tuple(
            f"fields: {each}" for each in dict.fromkeys([*(self.keep or ()), *self.drop, *old])
        )

    def extension_left(self, extension: str) -> str | None:
        """The new extension; None for a member that is dropped."""
        if extension in self.drop or (self.keep is not None and extension not in self.keep):
            return None
        return self.rename.get(extension, extension)

    def count_left(self, first: int, count: int) -> int | None:
        """All, if members are only renamed."""
        return count if self.keep is None and not self.drop else None

    def apply(self, records: RecordTable) -> RecordTable:
        """``records`` after the step. ``TransformError`` if two members of a record would have the
        same name."""
        if not len(records):
            return records
        if self.keep is not None:
            records = records.keeping_members(self._any_of(records, self.keep))
        if self.drop and len(records):
            records = records.keeping_members(~self._any_of(records, self.drop))
        rows, which = self._renamed_rows(records)
        renamed = records.with_extensions(rows, which, [f".{new}" for new in self.rename.values()])
        if len(rows):
            _refuse_equal_names(renamed)
        return renamed

    def _renamed_rows(self, records: RecordTable) -> tuple[Int64s, Int64s]:
        """(rows of the member table that get another name, number in ``rename`` of the pair for
        each)."""
        import numpy as np

        none = np.zeros(0, np.int64)
        found = [
            records.records.member_rows[records.members_with(f".{old}")] for old in self.rename
        ]
        for old, rows in zip(self.rename, found, strict=True):
            records.fits(f"fields: {old}", len(rows) > 0)
        which = [np.full(len(rows), place, np.int64) for place, rows in enumerate(found)]
        return np.concatenate([none, *found]), np.concatenate([none, *which])

    def _any_of(self, records: RecordTable, extensions: tuple[str, ...]) -> Bools:
        import numpy as np

        found = np.zeros(len(records.records.member_rows), np.bool_)
        for extension in extensions:
            own = records.members_with(f".{extension}")
            records.fits(f"fields: {extension}", bool(own.any()))
            found |= own
        return found


def check_extension(extension: str) -> None:
    """``OptionError`` unless a member with this extension still belongs to its record."""
    if not extension or extension != extension.strip() or set(extension) & set("/\0\n\r"):
        raise OptionError(
            f"{extension!r} is no extension", "write it without its dot: jpg, seg.png, info.json"
        )
    if extension.startswith("."):
        raise OptionError(f"{extension!r} begins with a dot", "write it without: jpg, seg.png")


def _refuse_equal_names(records: RecordTable) -> None:
    """``TransformError`` if two members of one record have the same name."""
    repeated = records.repeated_names()
    if len(repeated):
        place = int(repeated[0])
        name = records.members.names[int(records.records.member_rows[place])]
        record = int(records.record_of[place])
        raise TransformError(
            f"fields: record {readable(records.keys[record])} of shard {records.shard} would "
            f"have two members {readable(name)}",
            hint="drop one of them first",
        )
