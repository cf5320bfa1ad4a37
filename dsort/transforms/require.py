"""The step ``require``: which members and fields a record must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG, Needs, Step
from dsort.transforms.fields import check_extension

if TYPE_CHECKING:
    from dsort.data.columns import Bools
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

__all__ = ["Require", "RequireOptions"]


class RequireOptions(TypedDict):
    """What a spec gives for ``require``: ``extensions``, ``fields`` or both."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    extensions: NotRequired[Annotated[list[str], MinLen(1)]]
    """Extensions of the members that a record must have: `[jpg, cls]`. `jpg;png;jpeg`: one of these
    at least."""
    fields: NotRequired[Annotated[list[str], MinLen(1)]]
    """Fields that a record must have, as the step filter names them: `[json.text]`, or `[text]` of
    lines. Null counts as none."""
    on_missing: NotRequired[Literal["exclude", "abort", "warn", "ignore"]]
    """What becomes of a record without one. exclude (default): it is left out, counted and named.
    abort: it ends the job. warn: it stays, counted and named. ignore: it stays."""


@dataclass(frozen=True, slots=True)
class Require(Step):
    """``wanted``: all of these are required; each is a tuple of extensions, one of which is
    enough. ``fields``: the names of the fields that are required; ``conditions``: whether a record
    has them."""

    wanted: tuple[tuple[str, ...], ...]
    on_missing: Literal["exclude", "abort", "warn", "ignore"] = "exclude"
    fields: tuple[str, ...] = ()
    conditions: tuple[Expression, ...] = ()

    kind: ClassVar[str] = "require"
    summary: ClassVar[str] = "Say which members records must have, by extension, and which fields."
    options_type: ClassVar[Any] = RequireOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: RequireOptions) -> Require:
        """The step with these options."""
        extensions = tuple(tuple(each.split(";")) for each in options.get("extensions", ()))
        for extension in (name for each in extensions for name in each):
            check_extension(extension)
        fields = tuple(options.get("fields", ()))
        if not extensions and not fields:
            raise OptionError("names nothing", "extensions: [jpg, cls], or fields: [json.text]")
        conditions = tuple(map(_has, fields))
        return cls(extensions, options.get("on_missing", "exclude"), fields, conditions)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Names tell which members there are; fields are in their content."""
        return "member" if self.fields else "index"

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        extensions = {"extensions": [";".join(each) for each in self.wanted]} if self.wanted else {}
        fields = {"fields": list(self.fields)} if self.fields else {}
        return {**extensions, **fields, "on_missing": self.on_missing}

    @property
    def extensions(self) -> tuple[str, ...]:
        """All extensions in ``wanted``, and of the members that have the fields."""
        named = [name for each in self.wanted for name in each]
        return tuple(dict.fromkeys([*named, *self.extensions_read]))

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """The extensions of the members that have the fields: of others, it only checks whether
        they exist."""
        return tuple(dict.fromkeys(name for each in self.conditions for name in each.extensions))

    def count_left(self, first: int, count: int) -> int | None:
        """All, if no record is left out."""
        return None if self.on_missing == "exclude" else count

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay. With ``abort``, ``TransformError`` names the first that lacks a
        member."""
        import numpy as np

        if self.on_missing == "ignore":
            return records
        has = np.zeros((len(self.wanted) + len(self.fields), len(records)), np.bool_)
        for row, alternatives in enumerate(self.wanted):
            for extension in alternatives:
                has[row, records.record_of[records.members_with(f".{extension}")]] = True
        for row, condition in enumerate(self.conditions, len(self.wanted)):
            has[row] = condition.true_of(records, "require")
        whole: Bools = np.logical_and.reduce(has, axis=0)
        lacking = np.flatnonzero(~whole)

        def shown(record: int) -> str:
            row = int(np.argmin(has[:, record]))
            if row < len(self.wanted):
                text = "member " + " or ".join(f".{each}" for each in self.wanted[row])
            else:
                text = f"field {self.fields[row - len(self.wanted)]}"
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
    from dsort.expressions.expression import Expression
    from dsort.expressions.nodes import ExpressionError

    try:
        Expression.of(field, wanted="")  # by itself: nothing may follow a bracket in it
        return Expression.of(f"has({field}) && {field} != null")
    except ExpressionError as error:
        raise OptionError(f"fields: {field}: {error}", error.hint or "json.text") from None
