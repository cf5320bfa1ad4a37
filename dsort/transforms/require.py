"""The step ``require``: which members a record must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired

from typing_extensions import TypedDict

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.order.base import OptionError
from dsort.transforms.base import Step
from dsort.transforms.fields import check_extension

if TYPE_CHECKING:
    from dsort.order.table import RecordTable

__all__ = ["Require"]


class RequireOptions(TypedDict):
    """What a spec gives for ``require``."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # type: ignore[misc]

    members: list[str]
    """Extensions that a record must have: `[jpg, cls]`. `jpg;png`: one of them at least."""
    lacking: NotRequired[Literal["drop", "abort"]]
    """What becomes of a record without one. drop (default): it is left out, and counted. abort: it
    ends the job."""


@dataclass(frozen=True, slots=True)
class Require(Step):
    """``members``: extensions, or several of which one will do."""

    members: tuple[tuple[str, ...], ...]
    lacking: Literal["drop", "abort"] = "drop"

    kind: ClassVar[str] = "require"
    summary: ClassVar[str] = "Keep the records that have certain members, by extension."
    options_type: ClassVar[Any] = RequireOptions

    @classmethod
    def of(cls, options: RequireOptions) -> Require:
        """The step with these options."""
        if not options["members"]:
            raise OptionError("names no member", "e.g. members: [jpg, cls]")
        members = tuple(tuple(each.split(";")) for each in options["members"])
        for extension in (name for each in members for name in each):
            check_extension(extension)
        return cls(members, options.get("lacking", "drop"))

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {"members": [";".join(each) for each in self.members], "lacking": self.lacking}

    def apply(self, records: RecordTable) -> RecordTable:
        """What is left of ``records``. ``TransformError`` names the first that lacks a member."""
        import numpy as np

        whole = np.ones(len(records), np.bool_)
        for alternatives in self.members:
            has = np.zeros(len(records), np.bool_)
            for extension in alternatives:
                has[records.record_of[records.members_with(f".{extension}")]] = True
            if self.lacking == "abort" and not has.all():
                key = readable(records.keys[int(np.argmin(has))])
                raise TransformError(
                    f"require: record {key} of shard {records.shard} has no member "
                    f"{' or '.join(f'.{each}' for each in alternatives)}",
                    hint="lacking: drop leaves such records out",
                )
            whole &= has
        return records.keeping(whole)
