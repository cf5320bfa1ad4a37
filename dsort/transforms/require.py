"""The step ``require``: which members and fields a record must have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.option_fields import Check, OptionError, option
from dsort.transforms.base import Needs, Step
from dsort.transforms.fields import check_extension

if TYPE_CHECKING:
    from dsort.data.columns import Bools
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

__all__ = ["Require"]


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
    summary: ClassVar[str] = "Say which members records must have, by extension, and which fields."
    options_summary: ClassVar[str] = (
        "What a spec gives for ``require``: ``extensions``, ``fields`` or both."
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
        "Fields that a record must have, as the step filter names them: `[json.text]`, or `[text]` "
        "of lines. Null counts as none.",
        check=_fields,
    )
    on_missing: str = option(
        Literal["exclude", "abort", "warn", "ignore"],
        "What becomes of a record without one. exclude (default): it is left out, counted and "
        "named. abort: it ends the job. warn: it stays, counted and named. ignore: it stays.",
        default="exclude",
    )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Names tell which members there are; fields are in their content."""
        return "member" if self.fields else "index"

    @property
    def _wanted(self) -> list[list[str]]:
        """All of these are required, and of each, one extension is enough."""
        return [each.split(";") for each in self.extensions or ()]

    @property
    def _conditions(self) -> list[Expression]:
        """For each of the fields, whether a record has it."""
        return [_has(field) for field in self.fields or ()]

    @property
    def members_used(self) -> tuple[str, ...]:
        """All extensions, also of the members that have the fields."""
        named = [name for each in self._wanted for name in each]
        return tuple(dict.fromkeys([*named, *self.members_read]))

    @property
    def members_read(self) -> tuple[str, ...]:
        """The extensions of the members that have the fields: of others, it only checks whether
        they exist."""
        return tuple(dict.fromkeys(name for each in self._conditions for name in each.extensions))

    def count_left(self, first: int, count: int) -> int | None:
        """All, if no record is left out."""
        return None if self.on_missing == "exclude" else count

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay. With ``abort``, ``TransformError`` names the first that lacks a
        member."""
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
    """Whether a record has ``field``. ``OptionError`` if that names no field."""
    from dsort.expressions.expression import compiled_expression
    from dsort.expressions.nodes import ExpressionError

    try:
        compiled_expression(field, wanted="")  # by itself: nothing may follow a bracket in it
        return compiled_expression(f"has({field}) && {field} != null")
    except ExpressionError as error:
        raise OptionError(f"fields: {field}: {error}", error.hint or "json.text") from None
