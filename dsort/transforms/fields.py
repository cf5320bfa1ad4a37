"""The step ``fields``: which members of a record stay, and which names they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired

from typing_extensions import TypedDict

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG, Step

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.data.record_table import RecordTable

__all__ = ["Fields", "check_extension"]


class FieldsOptions(TypedDict):
    """What a spec gives for ``fields``: at least one of these."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    keep: NotRequired[list[str]]
    """Extensions of the members that stay; all others go. `info:info.json` keeps `info.json` and
    calls it `info`."""
    drop: NotRequired[list[str]]
    """Extensions of members that go."""
    rename: NotRequired[dict[str, str]]
    """New extensions by old ones: `{"seg.png": "mask.png"}`."""


@dataclass(frozen=True, slots=True)
class Fields(Step):
    """``keep``: None keeps all members. ``rename``: (old, new) pairs, those of ``keep``
    included."""

    keep: tuple[str, ...] | None
    drop: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]

    kind: ClassVar[str] = "fields"
    summary: ClassVar[str] = "Keep, drop and rename the members of records, by extension."
    options_type: ClassVar[Any] = FieldsOptions
    is_for_rows: ClassVar[bool] = True

    @classmethod
    def of(cls, options: FieldsOptions) -> Fields:
        """The step with these options."""
        if not options:
            raise OptionError("says nothing to do", "give it keep, drop or rename")
        kept, rename = [], dict(options.get("rename", {}))
        for text in options.get("keep", ()):
            new, colon, old = text.partition(":")
            kept.append(old if colon else new)
            if colon and rename.setdefault(old, new) != new:
                raise OptionError(f"gives {old} two names, {new} and {rename[old]}")
        for name in [*kept, *options.get("drop", ()), *rename, *rename.values()]:
            check_extension(name)
        keep = tuple(kept) if "keep" in options else None
        return cls(keep, tuple(options.get("drop", ())), tuple(sorted(rename.items())))

    def keeping(self, extension: str) -> Fields:
        """The same step, except that members with this extension stay."""
        if self.keep is None or extension in self.keep:
            return self
        return Fields((*self.keep, extension), self.drop, self.rename)

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        keep = {} if self.keep is None else {"keep": list(self.keep)}
        return {**keep, "drop": list(self.drop), "rename": dict(self.rename)}

    @property
    def listed(self) -> tuple[str, ...]:
        """The extensions that are kept, dropped or renamed."""
        old = [each for each, _ in self.rename if each not in (self.keep or ())]
        return tuple(
            f"fields: {each}" for each in dict.fromkeys([*(self.keep or ()), *self.drop, *old])
        )

    def extension_left(self, extension: str) -> str | None:
        """The new extension; None for a member that is dropped."""
        if extension in self.drop or (self.keep is not None and extension not in self.keep):
            return None
        return dict(self.rename).get(extension, extension)

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
        renamed = records.with_extensions(rows, which, [f".{new}" for _, new in self.rename])
        if len(rows):
            _refuse_equal_names(renamed)
        return renamed

    def _renamed_rows(self, records: RecordTable) -> tuple[Int64s, Int64s]:
        """(rows of the member table that get another name, number in ``rename`` of the pair for
        each)."""
        import numpy as np

        none = np.zeros(0, np.int64)
        found = [
            records.records.member_rows[records.members_with(f".{old}")] for old, _ in self.rename
        ]
        for (old, _), rows in zip(self.rename, found, strict=True):
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
