"""The base class of all parts of a spec, marks of fields, the registration of rules between fields,
and errors in fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from dsort.errors import SpecProblem
from dsort.naming.names import shortened
from dsort.option_fields import OptionError

if TYPE_CHECKING:
    from dsort.spec.parts import SpecFields


class UnusableError(Exception):
    """Raised when a rule reads a field that is already known to be wrong."""


class Part(BaseModel):
    """A part of a spec: never changed, no unknown fields, no conversions."""

    # Validators are built for a whole spec (`JobSpec`), with all its parts inside, and for the
    # parts that every job also makes separately. Building them for every part would take 5 % of the
    # time of a small job. ``arbitrary_types_allowed``: values such as a ``BucketRef``, which a
    # validator has made.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        defer_build=True,
        arbitrary_types_allowed=True,
    )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """As pydantic's method. A field that is missing because its value was wrong raises an
            error of its own."""
            if name in type(self).model_fields:
                raise UnusableError(name)
            return super().__getattr__(name)

    def gives(self, name: str) -> bool:
        """Whether the field is in the spec as it is written."""
        return name in self.model_fields_set


class Late(Struct, frozen=True):
    """Marks a field whose model is made when it is first needed. ``place``: the module and the
    name of the model."""

    place: str = ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> BaseModel:
            return self.model(source).model_validate(value, context=info.context)

        return core_schema.with_info_plain_validator_function(validate, metadata={"of": source})

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        model = self.model(schema["metadata"]["of"])
        model.model_rebuild()
        built: Any = model.__pydantic_core_schema__
        body, others = built, []
        if built["type"] == "definitions":
            body, others = built["schema"], built["definitions"]
        ref = f"{model.__module__}.{model.__qualname__}:{id(model)}"
        return handler(core_schema.definitions_schema({**body, "ref": ref}, others))

    def model(self, source: Any) -> type[BaseModel]:
        """The model of the values. ``source``: the type that the field names."""
        module, _, name = self.place.partition(":")
        found: type[BaseModel] = getattr(import_module(module), name)
        return found


def late_part(place: str) -> Any:
    """The type of a field whose model is at ``place``: ``dsort.spec.transform:Transform``."""
    return Annotated[Any, Late(place)]


class _Later(Struct, frozen=True):
    """Marks a field that was added after the first specs. Canonical specs leave out its default, so
    specs that do not use it keep their digests."""


LATER = _Later()


Rule = Callable[["SpecFields"], Iterator[SpecProblem]]


def usable(problems: Iterable[SpecProblem]) -> Iterator[SpecProblem]:
    """``problems`` up to the first read of a field that is already wrong, so that each mistake is
    reported once."""
    try:
        yield from problems
    except UnusableError:
        return


def repeated(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(number, name) of each name that occurred before."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield number, name
        seen.add(name)


class Rules(list[Rule]):
    """The rules of a module, in order: ``rule = Rules()``, and then ``@rule`` at each function."""

    def __call__(self, problems: Rule) -> Rule:
        self.append(problems)
        return problems


class FieldError(ValueError):
    """The problem with the value of one field, with a ``hint`` (may be empty). If the value has
    parts, all ``problems`` of the parts, with paths relative to the field."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.problems: tuple[SpecProblem, ...] = (SpecProblem("", message, hint),)

    @classmethod
    def of(cls, problems: Sequence[SpecProblem]) -> FieldError:
        """An error that holds all ``problems``."""
        hints = dict.fromkeys(each.hint for each in problems if each.hint)
        error = cls("; ".join(map(str, problems)), "; ".join(hints))
        error.problems = tuple(problems)
        return error


def of_option(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``check``, which raises ``OptionError``, as a check of a field."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except OptionError as error:
            given = f", not {describe(value)}" if error.names_value else ""
            raise FieldError(f"{error}{given}", error.hint) from None

    return validate


def describe(value: object) -> str:
    """``value`` in the words of its writer: ``the text "x"``, ``the number 5``, ``a list``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {shortened(repr(value))}"
    if isinstance(value, str):
        return f"the text {shortened(json.dumps(value, ensure_ascii=False))}"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def path_of(location: Iterable[int | str]) -> str:
    """A pydantic location as a field path: ``algorithm.kind``, ``input_format.objnames[3]``."""
    path = ""
    for step in location:
        if step == "[key]":
            continue
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path
