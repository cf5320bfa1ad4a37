"""What went wrong, as RFC 9457 has it."""

from __future__ import annotations

from pydantic import Field

from dsort.model.base import Model, example_of

_MESSAGE = "must be one of none, alphanumeric, shuffle, md5, content"


class ProblemItem(Model):
    """One thing wrong with a spec."""

    path: str = Field(description="The field, dotted.", examples=["algorithm.kind"])
    message: str = Field(examples=[_MESSAGE])
    hint: str = Field(examples=['did you mean "shuffle"?'])


class Problem(Model):
    """What went wrong, as RFC 9457 has it; the same words as the command line's."""

    sent_sometimes = frozenset(("hint", "exit_code", "problems"))

    type: str = Field(examples=["urn:dsort:problem:spec"])
    title: str = Field(examples=["Spec"])
    status: int = Field(examples=[400])
    detail: str = Field(examples=[f"algorithm.kind: {_MESSAGE}"])
    hint: str = Field(default="", examples=[""])
    exit_code: int | None = Field(
        default=None, description="Of the command line, for this.", examples=[2]
    )
    problems: list[ProblemItem] = Field(default_factory=list, examples=[[example_of(ProblemItem)]])
