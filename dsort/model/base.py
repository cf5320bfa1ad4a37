"""The common base of all models: fields may be added, times are RFC 3339, and fields have
examples."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import to_builtins
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, to_jsonable_python

JobState = Literal["queued", "running", "finished", "failed", "stopped"]


def rfc3339_text(moment: datetime) -> str:
    """A time in UTC as ``2026-01-31T23:59:59.123Z``."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(value: object) -> object:
    if not isinstance(value, float):
        return value
    try:
        return datetime.fromtimestamp(value, UTC)
    except (OSError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


Time = Annotated[datetime, BeforeValidator(_moment), PlainSerializer(rfc3339_text, return_type=str)]
"""A time in UTC; in JSON as RFC 3339 with milliseconds, in rows as seconds since 1970."""


class Model(BaseModel):
    """One JSON object. Fields that only a newer version knows are kept.

    A field with a default may be absent when a client reads it (an older service does not send
    it), but this version always sends it, unless it is one of ``sent_sometimes``.
    """

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=True)

    sent_sometimes: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema; only fields that may be absent have defaults."""
        document = handler(core_schema)
        schema = handler.resolve_ref_schema(document)
        if handler.mode == "serialization":
            required = [name for name in schema["required"] if name not in cls.sent_sometimes]
            schema["required"] = required
            for name in required:
                schema["properties"][name].pop("default", None)
        return document


View = TypeVar("View", bound=Model)


def view_of(example: object, **words: str) -> Callable[[type[View]], type[View]]:
    """Gives a model the fields of a struct. ``example`` is an object of the struct; its values
    become examples. ``words``: descriptions of fields."""
    types, values = get_type_hints(type(example)), to_jsonable_python(to_builtins(example))
    described: Any = {
        name: (types[name], Field(description=words.get(name), examples=[value]))
        for name, value in values.items()
    }

    def with_fields(model: type[View]) -> type[View]:
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **described,
        )

    return with_fields


def example_of(model: type[BaseModel], **changed: Any) -> dict[str, Any]:
    """The example of ``model``, made from the examples of its fields; ``changed``: other values, or
    more fields. A field without an example is left out if it may be absent."""
    document = {}
    for name, field in model.model_fields.items():
        if field.examples:
            document[name] = field.examples[0]
        elif name not in getattr(model, "sent_sometimes", ()):
            document[name] = _example_of_type(field.annotation)
    return document | changed


def _example_of_type(annotation: Any) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return None if type(None) in parts else _example_of_type(parts[0])
    if origin in (list, tuple):
        return [_example_of_type(parts[0])]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return example_of(annotation)
    raise TypeError(f"a field of type {annotation} has no example")


_MESSAGE = "must be one of none, alphanumeric, shuffle, md5, content"


class ProblemItem(Model):
    """One thing wrong with a spec."""

    path: str = Field(description="The field, dotted.", examples=["algorithm.kind"])
    message: str = Field(examples=[_MESSAGE])
    hint: str = Field(examples=['did you mean "shuffle"?'])


class Problem(Model):
    """A problem in the form of RFC 9457, with the same words as on the command line."""

    sent_sometimes = frozenset(("hint", "exit_code", "problems"))

    type: str = Field(examples=["urn:dsort:problem:spec"])
    title: str = Field(examples=["Spec"])
    status: int = Field(examples=[400])
    detail: str = Field(examples=[f"algorithm.kind: {_MESSAGE}"])
    hint: str = Field(default="", examples=[""])
    exit_code: int | None = Field(
        default=None, description="Of the command line, for the same problem.", examples=[2]
    )
    problems: list[ProblemItem] = Field(default_factory=list, examples=[[example_of(ProblemItem)]])
