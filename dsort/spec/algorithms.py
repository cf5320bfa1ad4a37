"""The part of a spec that says how records are ordered: one model of the options of all algorithms.

It is made of what the algorithms say of themselves (``dsort.order.base``), and made again when one
has been added. Which options go with which algorithm: ``rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    create_model,
)

from dsort.order.algorithms import ALGORITHMS, BUILT_IN, DEFAULT_KIND
from dsort.order.base import Algorithm as OrderAlgorithm
from dsort.order.base import Option, OptionError
from dsort.spec.hints import FieldError, describe

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

__all__ = [
    "Algorithm",
    "AnyAlgorithm",
    "Part",
    "algorithm_model",
    "joined",
    "known_options",
    "owners_of",
]

_ORDER: Final = (
    "decreasing",
    "seed",
    "extension",
    "content_key_type",
    "content_key_missing",
    "json_field",
    "strip",
    "natural",
)
"""How a canonical spec lists the options, which digests of specs depend on; others follow."""


class Part(BaseModel):
    """A part of a spec: never changed, no unknown fields, no conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Algorithm(Part):
    """How records are ordered. Every algorithm is a sort; ties keep the order of the input."""

    kind: str

    if TYPE_CHECKING:  # these and all other options come from the algorithms
        decreasing: bool
        seed: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made anew in each process, so it is sent as values."""
        return _restored, (self.model_dump(), self.model_fields_set)

    @property
    def type(self) -> type[OrderAlgorithm]:
        """The class of the algorithm."""
        return ALGORITHMS[self.kind]

    def build(self) -> OrderAlgorithm:
        """The algorithm with these options, as workers are given it."""
        given = {name: getattr(self, name) for name in self.type.options()}
        return self.type(**{name: value for name, value in given.items() if value is not None})

    @property
    def in_words(self) -> str:
        """What a summary says of it: whoever forgot to name one should notice."""
        named = "kind" in self.model_fields_set
        return self.build().in_words + _NOT_NAMED * (not named)

    def canonical(self) -> list[str]:
        """The fields that a canonical spec has: the options of all algorithms of dsort's own, and
        those of this one. What somebody else has added changes no other spec."""
        own = {name for each in (*BUILT_IN, self.type) for name in each.options()}
        return ["kind", *(name for name in known_options() if name in own)]


def _restored(values: dict[str, Any], given: set[str]) -> Algorithm:
    return algorithm_model().model_construct(given, **values)


class _OfToday:
    """Makes a field take the model of the algorithms that there are when its owner is built."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler.generate_schema(algorithm_model())


AnyAlgorithm = Annotated[Algorithm, _OfToday()]

_NOT_NAMED: Final = " (the spec names none; to shuffle: algorithm: {kind: shuffle})"


def known_options() -> dict[str, Option]:
    """All options by name, in the order of the model. Algorithms that have an option of one name
    share it: it is the first one's."""
    found: dict[str, Option] = {}
    for algorithm in ALGORITHMS.values():
        for name, option in algorithm.options().items():
            found.setdefault(name, option)
    first = {name: found[name] for name in _ORDER if name in found}
    return first | found


def owners_of(name: str) -> list[str]:
    """The kinds of the algorithms that have the option."""
    return [kind for kind, each in ALGORITHMS.items() if name in each.options()]


def algorithm_model() -> type[Algorithm]:
    """The model of the options of all algorithms that there are now; all of them have defaults."""
    return _model_of(tuple(ALGORITHMS.values()))


@cache
def _model_of(algorithms: tuple[type[OrderAlgorithm], ...]) -> type[Algorithm]:
    summaries = " ".join(f"{each.kind}: {each.summary}." for each in algorithms)
    kinds = tuple(each.kind for each in algorithms)
    fields: dict[str, Any] = {
        "kind": (Literal[kinds], Field(default=DEFAULT_KIND, description=summaries)),
    }
    for name, option in known_options().items():
        fields[name] = _field(name, option)
    return create_model(
        "Algorithm", __base__=Algorithm, __module__=__name__, __doc__=Algorithm.__doc__, **fields
    )


def _field(name: str, option: Option) -> tuple[Any, Any]:
    owners = owners_of(name)
    scope = f" For {joined(owners)} only." if len(owners) > 1 else ""
    annotation: Any = option.type
    if option.check is not None:
        validator = BeforeValidator if option.before else AfterValidator
        annotation = Annotated[annotation, validator(_checked(option.check))]
    if option.json_schema is not None:
        annotation = Annotated[annotation, WithJsonSchema(dict(option.json_schema))]
    made = Field(
        default=option.default,
        description=option.description + scope,
        examples=[*option.examples] or None,
    )
    return annotation, made


def _checked(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``check`` with its errors as those of fields."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except OptionError as error:
            given = f", not {describe(value)}" if error.names_value else ""
            raise FieldError(f"{error}{given}", error.hint) from None

    return validate


def joined(names: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
