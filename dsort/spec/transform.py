"""The part of a spec about changes to records before they are ordered.

The model of the steps is made from their options, and made again when a step has been added. When a
spec is read, the name of a transform (``use: resize@3``) is replaced by the steps and the digest of
the transform, so that later readers of the spec need no store of transforms."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import BeforeValidator, Field, create_model, model_validator

from dsort.errors import NotFoundError, SpecError, SpecProblem
from dsort.option_fields import OptionError
from dsort.spec.algorithms import joined, type_of_options
from dsort.spec.fields import ExpressionText, Extension, checked_by
from dsort.spec.part import FieldError, Late, Part, describe
from dsort.transforms.base import Step
from dsort.transforms.steps import STEPS

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
VERSION_MAX: Final = 10**9 - 1
_USE: Final = rf"({NAME_PATTERN})(?:@([1-9][0-9]{{0,8}}))?"
_NO_NAMES_HINT: Final = "give the steps; a service has names with `dsort serve --aistore`"
_NAME_HINT: Final = "letters, digits and . _ -, at most 64, and a version: resize, resize@3"


class NamedTransform(Struct, frozen=True):
    """One version of a transform. ``fields``: the fields of ``transform`` in a spec, without
    ``use``. ``digest``: of its steps. ``created_at``: seconds since 1970. ``owner``: the name of
    the token that registered it at a service, "" for a transform of this machine."""

    name: str
    version: int
    digest: str
    fields: Mapping[str, Any]
    created_at: float
    owner: str = ""

    @property
    def use(self) -> str:
        """The name of the version in a spec: ``resize@3``."""
        return f"{self.name}@{self.version}"


Lookup = Callable[[str, int | None], NamedTransform]
"""Returns the version with the number, or the newest one for None. Raises ``NotFoundError``."""


def parse_use(text: str) -> tuple[str, int | None]:
    """(name, version) of ``resize`` or ``resize@3``. ``SpecError`` if it is neither."""
    match = re.fullmatch(_USE, text)
    if match is None:
        raise SpecError(f"{text[:80]!r} is no name of a transform", hint=_NAME_HINT)
    return match[1], None if match[2] is None else int(match[2])


def resolve_use(transform: object, lookup: Lookup | None) -> tuple[object, list[SpecProblem]]:
    """``transform`` of a spec as written, with the steps of the transform that it uses; and its
    problems. A transform that already has steps, written by a job, is not changed."""
    if not isinstance(transform, Mapping) or not isinstance(transform.get("use"), str):
        return transform, []
    if "steps" in transform or "digest" in transform:
        return transform, []
    try:
        name, version = parse_use(transform["use"])
        if lookup is None:
            raise NotFoundError("names of transforms mean nothing here", hint=_NO_NAMES_HINT)
        found = lookup(name, version)
    except (NotFoundError, SpecError) as error:
        return None, [SpecProblem("transform.use", error.message, error.hint)]
    named = {"use": found.use, "digest": found.digest}
    return {**found.fields, **transform, **named}, []


class StepSpec(Part):
    """One step: its kind, and its options."""

    @model_validator(mode="after")
    def _one_kind(self) -> StepSpec:
        given = sorted(self.model_fields_set)
        if len(given) != 1:
            found = f"has {len(given)} ({joined(given)})" if given else "has none"
            raise FieldError(f"needs one kind of step, but {found}", "write each on its own line")
        if getattr(self, given[0]) is None:
            raise FieldError.of([SpecProblem(given[0], "is empty: it needs its options")])
        try:
            step = self.build()
        except OptionError as error:
            path = f"{given[0]}.{error.option}" if error.option else given[0]
            raise FieldError.of([SpecProblem(path, str(error), error.hint)]) from None
        # Specs with the same meaning are equal, even if one writes out more defaults.
        self.__dict__[given[0]] = step.options
        return self

    def build(self) -> Step:
        """The step with its options, in the form that workers receive."""
        (kind,) = self.model_fields_set
        step = STEPS.find(kind)
        assert step is not None, "a spec is valid"
        return step.of(getattr(self, kind))


class _OfToday(Late, frozen=True):
    """Makes a field use the model of the steps that are registered when a value is checked."""

    def model(self, source: Any) -> type[StepSpec]:
        """The model of today."""
        return step_model()


AnyStep = Annotated[StepSpec, _OfToday()]


def _check_part_of_records(value: int | str | None) -> None:
    if isinstance(value, str) and not re.fullmatch(r"\d{1,3}(\.\d{1,9})?%", value):
        raise FieldError("is neither a number nor a part", "write 100, or 0.1%")
    if isinstance(value, int) and value < 0:
        raise FieldError("is below 0")


OnError = Literal["fail", "skip", "keep", "skip_shard", "stop"]
MaxErrors = Annotated[int | str | None, checked_by(_check_part_of_records)]
Rejects = bool | Literal["payload"]


def step_model() -> type[StepSpec]:
    """The model of the registered steps."""
    return _model_of(tuple(STEPS.values()))


@cache
def _model_of(steps: tuple[type[Step], ...]) -> type[StepSpec]:
    fields: dict[str, Any] = {
        step.kind: (type_of_options(step) | None, Field(default=None, description=step.summary))
        for step in steps
    }
    return create_model(
        "Step", __base__=StepSpec, __module__=__name__, __doc__=StepSpec.__doc__, **fields
    )


class Transform(Part):
    """What happens to the records of each input shard, one step after the other."""

    use: str | None = Field(
        default=None,
        max_length=80,
        description="A transform by its name, or by name and version, in place of steps. When the "
        "job begins, its steps are written into the spec, so that later versions do not change "
        "the job. Its on_error, max_errors and rejects apply where the spec does not set these "
        "fields. `dsort transforms` lists the names, /v1/transforms those of a service.",
        examples=["resize@3"],
    )
    steps: Sequence[AnyStep] = Field(
        default=(), min_length=1, description="The steps, in the order in which they run."
    )
    on_error: OnError = Field(
        default="fail",
        description="What happens to a record for which a step that runs code fails. fail: the "
        "job fails. skip: the record is left out. keep: the record stays as it was. skip_shard: "
        "all records of its shard are left out. stop: the record and all records behind it in its "
        "shard are left out. All of these records are counted and named.",
    )
    max_errors: MaxErrors = Field(
        default=None,
        description="The maximum number of failed records: a number, or a share of all records "
        "that steps with code received, e.g. `0.1%`. If more have failed once all shards are "
        "read, the job fails.",
    )
    rejects: Rejects = Field(
        default=False,
        description="true: each record that failed, or was left out because another one failed, "
        "gets a line in `.dsort/<job>/rejects.jsonl`: key, shard, step, error. payload: the line "
        "also has the members, in base64.",
    )

    digest: str = Field(
        default="",
        max_length=64,
        description="Written beside use: the SHA-256 of the steps that replaced the name.",
    )
    allowed_by: str = Field(
        default="",
        max_length=128,
        description="Written by a service where steps run code: the admin who submitted the job, "
        "or who registered the transform that it uses. A value in a request is ignored.",
    )

    @model_validator(mode="after")
    def _has_steps(self) -> Transform:
        if not self.steps and self.use is None:
            raise FieldError.of([SpecProblem("steps", "is required")])
        if not self.steps:
            text = "its steps are missing, and names of transforms mean nothing here"
            raise FieldError.of([SpecProblem("use", text)])
        if self.use is not None and not self.digest:
            raise FieldError.of([SpecProblem("steps", "cannot be combined with use")])
        if self.use is None and self.digest:
            raise FieldError.of([SpecProblem("digest", "needs use")])
        return self

    def steps_digest(self) -> str:
        """The SHA-256 (hexadecimal) of the steps with all of their current options. Different lists
        of steps have different digests."""
        listed = [[step.kind, step.options] for step in self.build()]
        text = json.dumps(listed, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self) -> tuple[Step, ...]:
        """The steps with their options, in the form that workers receive."""
        return tuple(step.build() for step in self.steps)

    @property
    def code_kinds(self) -> tuple[str, ...]:
        """The kinds of steps that not every spec may contain: those that run code, or open files by
        name."""
        return tuple(sorted({step.kind for step in self.build() if not step.is_safe_from_network}))

    def canonical(self) -> dict[str, Any]:
        """The transform in JSON types, with defaults."""
        found: dict[str, Any] = {"steps": [{step.kind: step.options} for step in self.build()]}
        for name in ("use", "on_error", "max_errors", "rejects", "digest", "allowed_by"):
            if getattr(self, name) != type(self).model_fields[name].default:
                found[name] = getattr(self, name)
        return found


class SameField(Part):
    """A field by whose value records are compared."""

    field: ExpressionText = Field(
        min_length=1,
        description="The field: json.text, the bare name of a member, of a column or of a field "
        "of lines (txt, cls, text), or another expression as in the step filter. A record that "
        "has no such field fails the job; with has(json.text) ? json.text : key, records without "
        "the field are compared by their keys.",
        examples=["json.text", "txt.lowerAscii()", 'text("url")'],
    )


def _same_by(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SameField.model_validate(value)
    if isinstance(value, SameField) or value in ("key", "content"):
        return value
    raise FieldError(
        f"must be key, content or a field, not {describe(value)}", "by: {field: json.text}"
    )


class Deduplicate(Part):
    """Keeps one of several equal records. The search is exact, and not limited by memory."""

    by: Annotated[Literal["key", "content"] | SameField, BeforeValidator(_same_by)] = Field(
        default="key",
        description="The values that are compared to find equal records. content: the bytes of "
        "the members in extensions, by XXH3 of 128 bits, whatever the keys are. A field: its "
        "value, by the same hash.",
        examples=["key", "content", {"field": "json.text"}],
    )
    extensions: tuple[Extension, ...] = Field(
        default=(),
        strict=False,
        description="With content: the members that are compared; a record that has none of them "
        "stays. Default: all members.",
        examples=[["jpg", "png"]],
    )
    keep: Literal["first", "last"] = Field(
        default="first",
        description="Which of several equal records stays, in the order of the inputs.",
    )
