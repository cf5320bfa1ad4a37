"""The part of a spec about the result that its job amends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsort.spec.algorithms import Part

__all__ = ["Amend"]


class Amend(Part):
    """A finished job of the output bucket whose result this one amends. The new manifest lists the
    whole result; readers that go by manifests see it as it was, or as it is."""

    job: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$",
        description="The id of the job, which nothing has amended yet.",
        examples=["20260131-235959-4f2a9c"],
    )
    by: Literal["append", "remove"] = Field(
        default="append",
        description="append: its shards stay, and those of this job come behind them. remove: "
        "what `dsort remove` makes; its shards are written again without some records.",
    )
