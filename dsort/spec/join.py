"""The part of a spec about a join: records of several inputs that become one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsort.spec.algorithms import Part

__all__ = ["InputJoin", "Join", "Nonmatch"]

Nonmatch = Literal["error", "skip", "none"]

_BY = (
    "key (the record key), stem (what is behind its last slash), json.image_id (a field of the "
    ".json member), or an expression as of the step filter. But for key, the record gets what it "
    "is as its new key."
)


class InputJoin(Part):
    """How one of several inputs is joined with the others, where that is not as for all."""

    by: str | None = Field(
        default=None,
        min_length=1,
        description=f"What its records are joined by: {_BY} Default: join.by.",
        examples=["stem", "json.image_id"],
    )
    nonmatch: Nonmatch | None = Field(
        default=None,
        description="What becomes of a record of other inputs that has none in this one. Default: "
        "join.nonmatch.",
    )


class Join(Part):
    """Records of several inputs with one key become one record, with the members of all of them."""

    by: str = Field(
        default="key",
        min_length=1,
        description=f"What records are joined by: {_BY}",
        examples=["key", "stem"],
    )
    nonmatch: Nonmatch = Field(
        default="error",
        description="What becomes of a record that some input does not have. error: the job ends. "
        "skip: it is left out, and counted. none: it is joined without.",
    )
    conflict: Literal["error", "first", "last"] = Field(
        default="error",
        description="Members of one record with one extension, in several inputs. error: the job "
        "ends. first, last: that of the first or the last input stays; the others are left out, "
        "and counted.",
    )
