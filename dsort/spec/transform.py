"""The part of a spec that says what happens to records before they are ordered.

Its model is made of what the steps say of themselves (``dsort.transforms.base``), and made again
when one has been added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, create_model, model_validator

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


def _part_of_records(value: int | str | None) -> int | str | None:
    if isinstance(value, str) and not re.fullmatch(r"\d{1,3}(\.\d{1,9})?%", value):
        raise FieldError("is neither a number nor a part", "write 100, or 0.1%")
    if isinstance(value, int) and value < 0:
        raise FieldError("is below 0")
    return value


OnError = Literal["fail", "skip", "keep", "skip_shard", "stop"]
MaxErrors = Annotated[int | str | None, AfterValidator(_part_of_records)]
Rejects = bool | Literal["payload"]


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
    on_error: OnError = Field(
        default="fail",
        description="What becomes of a record at which a step that runs code fails. fail: the job "
        "ends. skip: it is left out. keep: it stays as it was. skip_shard: all records of its "
        "shard are left out. stop: it and all behind it in its shard are. All are counted and "
        "named.",
    )
    max_errors: MaxErrors = Field(
        default=None,
        description="More failed records than this end the job: a number, or a part of all records "
        "that such steps were given, as `0.1%`. Looked at once all shards are read.",
    )
    rejects: Rejects = Field(
        default=False,
        description="true: each record that failed, or was left out with one, gets a line in "
        "`.dsort/<job>/rejects.jsonl`: key, shard, step, error. payload: with its members, in "
        "base64.",
    )

    def build(self) -> tuple[Step, ...]:
        """The steps with their options, as workers are given them."""
        return tuple(step.build() for step in self.steps)

    @property
    def makes_records(self) -> bool:
        """Whether some step makes new records of their payload."""
        return any(step.needs == "payload" for step in self.build())

    def canonical(self) -> dict[str, Any]:
        """The same as JSON-able values, defaults written out."""
        found: dict[str, Any] = {"steps": [{step.kind: step.options} for step in self.build()]}
        for name in ("on_error", "max_errors", "rejects"):
            if getattr(self, name) != type(self).model_fields[name].default:
                found[name] = getattr(self, name)
        return found

    def errors_max(self, records: int) -> int | None:
        """How many of ``records`` may fail; None: all."""
        if not isinstance(self.max_errors, str):
            return self.max_errors
        return int(Fraction(self.max_errors.removesuffix("%")) / 100 * records)
