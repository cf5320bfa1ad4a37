"""The types of the options of steps in a spec, made of what the steps state."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from dsort.option_fields import OptionGroup
from dsort.transforms.base import Step

__all__ = ["options_model", "type_of_options"]


def type_of_options(step: type[Step]) -> Any:
    """The type of what a spec gives for a step: an object of options, or the value of one."""
    return step.stated()[step.bare].type if step.bare else options_model(step)


def options_model(of: type[OptionGroup]) -> Any:
    """The type of an object of options, of which those are kept that a spec gives. The steps that
    have their options from one class share it."""
    return _model_of([each for each in of.__mro__ if _states(each, of)][-1])


def _states(one: type, of: type[OptionGroup]) -> bool:
    return issubclass(one, OptionGroup) and one.stated() == of.stated()


@cache
def _model_of(owner: type[OptionGroup]) -> Any:
    name, summary = owner.__name__, owner.__doc__
    if issubclass(owner, Step):
        name = f"{name.lstrip('_')}Options"
        summary = owner.options_summary or f"What a spec gives for ``{owner.kind}``."
    fields: dict[str, Any] = {}
    for each, option in owner.stated().items():
        kind = option.type
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            kind = options_model(kind)
        kind = Annotated[kind, Field(description=option.description)]
        fields[each] = kind if option.required else NotRequired[kind]
    typed_dict: Any = TypedDict  # type checkers know those alone whose fields are written out
    made = typed_dict(name, fields)
    made.__doc__ = summary
    made.__module__ = __name__
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made
