"""Named transforms as a service shows them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dsort.model.base import Model, Time


class TransformView(Model):
    """One version of a transform."""

    name: str = Field(examples=["resize"])
    version: int = Field(description="Versions count from 1 and never change.", examples=[3])
    digest: str = Field(description="Of its steps (SHA-256).", examples=["5f" * 32])
    created_at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    created_by: str = Field(description="Whose token registered it.", examples=["ada"])
    kinds: list[str] = Field(description="Its steps, by kind.", examples=[["filter", "fields"]])
    runs_code: bool = Field(
        description="Whether steps run code, or open what they name. Who may submit jobs may use "
        "it all the same: an admin registered it.",
        examples=[False],
    )


class WholeTransformView(TransformView):
    """The same, with what it is."""

    transform: dict[str, Any] = Field(
        description="As `transform` of a spec has it, with every default.",
        examples=[
            {"steps": [{"filter": 'size("jpg") < 5_000_000'}, {"fields": {"drop": ["xmp"]}}]}
        ],
    )
    versions: list[int] = Field(
        description="All versions of this name that are not removed.", examples=[[1, 3]]
    )


class TransformList(Model):
    """Versions, the newest first."""

    transforms: list[TransformView]
    next_cursor: str | None = Field(default=None, examples=[None])
