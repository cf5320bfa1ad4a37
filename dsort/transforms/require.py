"""The step ``require``: which members a record must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.transforms.base import OPTIONS_CONFIG, Step
from dsort.transforms.fields import check_extension

if TYPE_CHECKING:
    from dsort.data.columns import Bools
    from dsort.data.record_table import RecordTable

__all__ = ["Require", "RequireOptions"]


class RequireOptions(TypedDict):
    """What a spec gives for ``require``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    extensions: Annotated[list[str], MinLen(1)]
    """Extensions of the members that a record must have: `[jpg, cls]`. `jpg;png;jpeg`: one of these
    at least."""
    on_missing: NotRequired[Literal["exclude", "abort", "warn", "ignore"]]
    """What becomes of a record without one. exclude (default): it is left out, counted and named.
    abort: it ends the job. warn: it stays, counted and named. ignore: it stays."""


@dataclass(frozen=True, slots=True)
class Require(Step):
    """``wanted``: all of these are required; each is a tuple of extensions, one of which is
    enough."""

    wanted: tuple[tuple[str, ...], ...]
    on_missing: Literal["exclude", "abort", "warn", "ignore"] = "exclude"

    kind: ClassVar[str] = "require"
    summary: ClassVar[str] = "Say which members records must have, by extension."
    options_type: ClassVar[Any] = RequireOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: RequireOptions) -> Require:
        """The step with these options."""
        extensions = tuple(tuple(each.split(";")) for each in options["extensions"])
        for extension in (name for each in extensions for name in each):
            check_extension(extension)
        return cls(extensions, options.get("on_missing", "exclude"))

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        extensions = [";".join(each) for each in self.wanted]
        return {"extensions": extensions, "on_missing": self.on_missing}

    @property
    def extensions(self) -> tuple[str, ...]:
        """All extensions in ``wanted``."""
        return tuple(dict.fromkeys(name for each in self.wanted for name in each))

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """None: it only checks whether members exist."""
        return ()

    def count_left(self, first: int, count: int) -> int | None:
        """All, if no record is left out."""
        return None if self.on_missing == "exclude" else count

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay. With ``abort``, ``TransformError`` names the first that lacks a
        member."""
        import numpy as np

        if self.on_missing == "ignore":
            return records
        has = np.zeros((len(self.wanted), len(records)), np.bool_)
        for row, alternatives in enumerate(self.wanted):
            for extension in alternatives:
                has[row, records.record_of[records.members_with(f".{extension}")]] = True
        whole: Bools = np.logical_and.reduce(has, axis=0)
        lacking = np.flatnonzero(~whole)

        def shown(record: int) -> str:
            missing = self.wanted[int(np.argmin(has[:, record]))]
            text = " or ".join(f".{each}" for each in missing)
            return f"{readable(records.keys[record])} of shard {records.shard} has no member {text}"

        if len(lacking) and self.on_missing == "abort":
            raise TransformError(
                f"require: record {shown(int(lacking[0]))}",
                hint="on_missing: exclude leaves such records out",
            )
        kind = "missing_members" if self.on_missing == "warn" else "missing_members_excluded"
        records.report(kind, len(lacking), map(shown, lacking.tolist()))
        return records if self.on_missing == "warn" else records.keeping(whole)
