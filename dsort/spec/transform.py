"""The part of a spec that says what happens to records before they are ordered.

Its model is made of what the steps say of themselves (``dsort.transforms.base``), and made again
when one has been added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, create_model, model_validator

from dsort.errors import SpecProblem
from dsort.order.base import OptionError
from dsort.spec.algorithms import Part, joined
from dsort.spec.hints import FieldError
from dsort.transforms.base import Step
from dsort.transforms.steps import STEPS

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

__all__ = ["AnyStep", "StepSpec", "Transform", "step_model"]


class StepSpec(Part):
    """One step: its kind, and its options."""

    @model_validator(mode="after")
    def _one_kind(self) -> StepSpec:
        given = sorted(self.model_fields_set)
        if len(given) != 1:
            found = f"has {len(given)} ({joined(given)})" if given else "has none"
            raise FieldError(f"needs one kind of step, but {found}", "write each on its own line")
        try:
            step = self.build()
        except OptionError as error:
            raise FieldError.of([SpecProblem(given[0], str(error), error.hint)]) from None
        # Specs that mean the same are equal, however much of it they say.
        self.__dict__[given[0]] = step.options
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made anew in each process, so it is sent as values."""
        return _restored, ({name: getattr(self, name) for name in self.model_fields_set},)

    def build(self) -> Step:
        """The step with its options, as workers are given it."""
        (kind,) = self.model_fields_set
        return STEPS[kind].of(getattr(self, kind))


def _restored(values: dict[str, Any]) -> StepSpec:
    return step_model().model_construct(set(values), **values)


class _OfToday:
    """Makes a field take the model of the steps that there are when its owner is built."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler.generate_schema(step_model())


AnyStep = Annotated[StepSpec, _OfToday()]


def step_model() -> type[StepSpec]:
    """The model of the steps that there are now."""
    return _model_of(tuple(STEPS.values()))


@cache
def _model_of(steps: tuple[type[Step], ...]) -> type[StepSpec]:
    fields: dict[str, Any] = {
        step.kind: (step.options_type | None, Field(default=None, description=step.summary))
        for step in steps
    }
    return create_model(
        "Step", __base__=StepSpec, __module__=__name__, __doc__=StepSpec.__doc__, **fields
    )


class Transform(Part):
    """What happens to the records of each input shard, one step after the other."""

    steps: Sequence[AnyStep] = Field(
        min_length=1, description="The steps, in the order in which they run."
    )

    def build(self) -> tuple[Step, ...]:
        """The steps with their options, as workers are given them."""
        return tuple(step.build() for step in self.steps)

    def canonical(self) -> dict[str, Any]:
        """The same as JSON-able values, defaults written out."""
        return {"steps": [{step.kind: step.options} for step in self.build()]}
