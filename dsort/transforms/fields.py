"""Steps about the members of a record: ``fields`` decides which members stay, and their names;
``require`` refuses records without some members or fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import MinLen
from msgspec.structs import replace

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.option_fields import Check, OptionError, option
from dsort.transforms.base import Needs, Step

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression


def _are_extensions(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    keep, drop, rename = options["keep"] or (), options["drop"], options["rename"]
    for name in (*keep, *drop, *rename, *rename.values()):
        check_extension(name)
    yield from ()


class Fields(Step, frozen=True):
    """``keep``: None keeps all members. ``rename``: new extensions by old extensions, including the
    new extensions in ``keep``."""

    kind: ClassVar[str] = "fields"
    summary: ClassVar[str] = "Keep, drop and rename the members of records, by extension."
    options_summary: ClassVar[str] = "The options of ``fields``: at least one of these."
    is_for_rows: ClassVar[bool] = True
    checks: ClassVar[tuple[Check, ...]] = (Check(("keep", "drop", "rename"), _are_extensions),)

    keep: tuple[str, ...] | None = option(
        list[str],
        "Extensions of the members that stay; all others are dropped. `info:info.json` keeps "
        "`info.json`, with the new extension `info`.",
    )
    drop: tuple[str, ...] = option(list[str], "Extensions of members that are dropped.", default=())
    rename: dict[str, str] = option(
        dict[str, str], 'New extensions by old ones: `{"seg.png": "mask.png"}`.', default={}
    )

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """``keep`` without new extensions, which go into ``rename``."""
        if not given:
            raise OptionError("has nothing to do", "give it keep, drop or rename")
        kept, rename = [], dict(given.get("rename", {}))
        for text in given.get("keep", ()):
            new, colon, old = text.partition(":")
            kept.append(old if colon else new)
            if colon and rename.setdefault(old, new) != new:
                raise OptionError(f"gives {old} two names, {new} and {rename[old]}")
        own = {"keep": kept} if "keep" in given else {}
        return super().checked({**given, **own, "rename": dict(sorted(rename.items()))})

    def keeping(self, extension: str) -> Self:
        """The same step, but members with this extension stay."""
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
        """(rows of the member table that get another name, for each of them the number of its pair
        in ``rename``)."""
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
        raise OptionError(
            f"{extension!r} begins with a dot", "write it without the dot: jpg, seg.png"
        )


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


def _extensions(texts: Sequence[str]) -> tuple[str, ...]:
    for extension in (name for each in texts for name in each.split(";")):
        check_extension(extension)
    return tuple(texts)


def _fields(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        _has(name)
    return tuple(names)


def _names_something(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if not any(options.values()):
        yield "", "names nothing", "extensions: [jpg, cls], or fields: [json.text]"


class Require(Step, frozen=True):
    """Records have members, fields, or both."""

    kind: ClassVar[str] = "require"
    summary: ClassVar[str] = (
        "List the members, by extension, and the fields that records must have."
    )
    options_summary: ClassVar[str] = (
        "The options of ``require``: ``extensions``, ``fields`` or both."
    )
    is_for_rows: ClassVar[bool] = True
    checks: ClassVar[tuple[Check, ...]] = (Check(("extensions", "fields"), _names_something),)

    extensions: tuple[str, ...] | None = option(
        Annotated[list[str], MinLen(1)],
        "Extensions of the members that a record must have: `[jpg, cls]`. `jpg;png;jpeg`: one of "
        "these at least.",
        check=_extensions,
    )
    fields: tuple[str, ...] | None = option(
        Annotated[list[str], MinLen(1)],
        "Fields that a record must have, with their names in the step `filter`: `[json.text]`; for "
        "lines, `[text]`. A field that is null counts as missing.",
        check=_fields,
    )
    on_missing: str = option(
        Literal["exclude", "abort", "warn", "ignore"],
        "The policy for a record that lacks one of these. exclude (default): it is left out, "
        "counted and named. abort: it ends the job. warn: it stays, counted and named. ignore: it "
        "stays.",
        default="exclude",
    )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Names show which members a record has; fields are in the content of members."""
        return "member" if self.fields else "index"

    @property
    def _wanted(self) -> list[list[str]]:
        """The required extensions, each as a list of alternatives, of which one is enough."""
        return [each.split(";") for each in self.extensions or ()]

    @property
    def _conditions(self) -> list[Expression]:
        """For each of the fields, whether a record has it."""
        return [_has(field) for field in self.fields or ()]

    @property
    def members_used(self) -> tuple[str, ...]:
        """The required extensions, and the extensions of the members with the required fields."""
        named = [name for each in self._wanted for name in each]
        return tuple(dict.fromkeys([*named, *self.members_read]))

    @property
    def members_read(self) -> tuple[str, ...]:
        """The extensions of the members with the fields; for other members, the step only checks
        whether they exist."""
        return tuple(dict.fromkeys(name for each in self._conditions for name in each.extensions))

    def count_left(self, first: int, count: int) -> int | None:
        """All, if no record is left out."""
        return None if self.on_missing == "exclude" else count

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay. With ``abort``, ``TransformError`` names the first record that
        lacks a member."""
        import numpy as np

        if self.on_missing == "ignore":
            return records
        wanted, fields = self._wanted, self.fields or ()
        has = np.zeros((len(wanted) + len(fields), len(records)), np.bool_)
        for row, alternatives in enumerate(wanted):
            for extension in alternatives:
                has[row, records.record_of[records.members_with(f".{extension}")]] = True
        for row, condition in enumerate(self._conditions, len(wanted)):
            has[row] = condition.true_of(records, "require")
        whole: Bools = np.logical_and.reduce(has, axis=0)
        lacking = np.flatnonzero(~whole)

        def shown(record: int) -> str:
            row = int(np.argmin(has[:, record]))
            if row < len(wanted):
                text = "member " + " or ".join(f".{each}" for each in wanted[row])
            else:
                text = f"field {fields[row - len(wanted)]}"
            return f"{readable(records.keys[record])} of shard {records.shard} has no {text}"

        if len(lacking) and self.on_missing == "abort":
            raise TransformError(
                f"require: record {shown(int(lacking[0]))}",
                hint="on_missing: exclude leaves such records out",
            )
        kind = "missing_members" if self.on_missing == "warn" else "missing_members_excluded"
        records.report(kind, len(lacking), map(shown, lacking.tolist()))
        return records if self.on_missing == "warn" else records.keeping(whole)


def _has(field: str) -> Expression:
    """Whether a record has ``field``. ``OptionError`` if ``field`` names no field."""
    from dsort.expressions.expression import compiled_expression

    try:
        compiled_expression(field, wanted="")  # by itself: nothing may follow a bracket in it
        return compiled_expression(f"has({field}) && {field} != null")
    except OptionError as error:
        raise OptionError(f"fields: {field}: {error}", error.hint or "json.text") from None
