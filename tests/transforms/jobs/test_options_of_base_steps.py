"""Steps of packages whose options are those of a base class, or that have none."""

from __future__ import annotations

from typing import ClassVar

from dsort.option_fields import option
from dsort.spec.load import parse_spec
from dsort.spec.model import schema
from dsort.transforms.base import Step
from dsort.transforms.steps import STEPS, register
from tests.support.engine import spec_of


class _Numbered(Step, frozen=True):
    """A number."""

    n: int = option(int, "It.", default=1)


class First(_Numbered, frozen=True):
    """The first."""

    kind: ClassVar[str] = "first"
    summary: ClassVar[str] = "First."


class Plain(Step, frozen=True):
    """No options."""

    kind: ClassVar[str] = "plain"
    summary: ClassVar[str] = "Plain."


def test_steps_may_have_their_options_from_a_class_without_a_kind_or_none_at_all() -> None:
    for each in (First, Plain):
        register(each)
    try:
        steps = [{"first": {"n": 2}}, {"plain": {}}]
        transform = parse_spec(spec_of(transform={"steps": steps})).spec.transform
        assert transform is not None
        assert transform.canonical() == {"steps": steps}
        options = schema()["$defs"]
        assert options["NumberedOptions"]["description"] == "A number."
        assert options["PlainOptions"]["description"] == "The options of ``plain``."
    finally:
        del STEPS["first"], STEPS["plain"]
