"""Makes models from the options of algorithms and steps (``dsort.option_fields``): one model for
the options of all algorithms, and a type for each step.

The models are made again when an algorithm or a step has been added. ``record_rules`` checks which
options belong to which algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NotRequired, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from typing_extensions import TypedDict

from dsort.option_fields import Option, OptionGroup
from dsort.order.algorithms import ALGORITHMS, BUILT_IN, DEFAULT_KIND, Keys, is_random
from dsort.order.base import Algorithm as OrderAlgorithm
from dsort.spec.part import Late, Part, of_option
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

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
"""The order of options in a canonical spec, on which digests of specs depend; other options
follow."""


class Algorithm(Part):
    """How records are ordered. Every algorithm is a sort; ties keep the order of the input."""

    kind: str

    if TYPE_CHECKING:  # these and all other options are added by the algorithms
        decreasing: bool
        seed: str | None
        compare: str | None
        content_key_type: str | None
        keys: tuple[Algorithm, ...] | None

    @model_validator(mode="before")
    @classmethod
    def _with_kind(cls, given: Any) -> Any:
        """``keys`` without a kind imply the kind of several keys."""
        if isinstance(given, Mapping) and "keys" in given and "kind" not in given:
            return {"kind": Keys.kind, **given}
        return given

    @property
    def type(self) -> type[OrderAlgorithm]:
        """The class of the algorithm."""
        found = ALGORITHMS.find(self.kind)
        assert found is not None, "a spec is valid"
        return found

    def build(self) -> OrderAlgorithm:
        """The algorithm with these options, in the form that workers receive."""
        given = {name: getattr(self, name, None) for name in self.type.stated()}
        return self.type(
            **{name: _built(value) for name, value in given.items() if value is not None}
        )

    @property
    def takes_seed(self) -> bool:
        """Whether the order depends on a seed."""
        keys = getattr(self, "keys", None) or ()
        return self.type.is_random or any(is_random(each.kind) for each in keys)

    @property
    def in_words(self) -> str:
        """The algorithm in a summary. If the spec names no algorithm, the text mentions that, so
        that users notice."""
        named = "kind" in self.model_fields_set
        return self.build().in_words + _NOT_NAMED * (not named)

    def canonical(self) -> list[str]:
        """The fields of a canonical spec: the options of this algorithm and of all algorithms of
        dsort. So an algorithm of another package does not change the canonical form of specs that
        do not use it."""
        own = {name for each in (*BUILT_IN, self.type) for name in each.stated()}
        names = (name for name in known_options() if name in own)
        # Options that were added later are left out of specs that do not use them.
        used = (name for name in names if name in _ORDER or getattr(self, name) is not None)
        return ["kind", *used]

    def canonical_fields(self) -> dict[str, Any]:
        """The fields of :meth:`canonical` with their values, in JSON types."""
        fields = self.model_dump(mode="json")
        found = {name: fields[name] for name in self.canonical()}
        if found.get("keys") is not None:
            found["keys"] = [each.canonical_key() for each in self.keys or ()]
        return found

    def canonical_key(self) -> dict[str, Any]:
        """One of several sort keys, in JSON types: the options of its algorithm."""
        fields = self.model_dump(mode="json")
        own = self.type.stated()
        named = (name for name in fields if name in own)
        return {
            "kind": self.kind,
            **{name: fields[name] for name in named if fields[name] is not None},
        }


def _built(value: Any) -> Any:
    if isinstance(value, (Algorithm, Group)):
        return value.build()
    return tuple(map(_built, value)) if isinstance(value, tuple) else value


class _OfToday(Late, frozen=True):
    """Makes a field use the model of the algorithms that are registered when its owner is built."""

    def model(self, source: Any) -> type[Algorithm]:
        """The model of today."""
        return algorithm_model()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler.generate_schema(algorithm_model())

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """A bare kind is short for an algorithm without options (see ``dialects``)."""
        return {"anyOf": [handler(schema), {"type": "string", "enum": [*ALGORITHMS]}]}


class _Key(Late, frozen=True):
    """Makes a field use the model of sort keys."""

    def model(self, source: Any) -> type[Algorithm]:
        """The model of today."""
        return key_model()


class _Parts(Late, frozen=True):
    """Makes a field use the model of the ``OptionGroup`` that it names."""

    def model(self, source: Any) -> type[Group]:
        """The model of the group."""
        return group_model(source)


AnyAlgorithm = Annotated[Algorithm, _OfToday()]

_NOT_NAMED: Final = " (the spec names none; to shuffle: algorithm: {kind: shuffle})"


def known_options() -> dict[str, Option]:
    """All options by name, in the order of the model. Of several algorithms with an option of the
    same name, the option of the first one is used."""
    found: dict[str, Option] = {}
    for algorithm in ALGORITHMS.values():
        for name, option in algorithm.stated().items():
            found.setdefault(name, option)
    first = {name: found[name] for name in _ORDER if name in found}
    return first | found


def owners_of(name: str) -> list[str]:
    """The kinds of the algorithms that have the option."""
    return [kind for kind, each in ALGORITHMS.items() if name in each.stated()]


def algorithm_model() -> type[Algorithm]:
    """The model of the options of all registered algorithms; all of them have defaults."""
    return _model_of(tuple(ALGORITHMS.values()), is_key=False)


def key_model() -> type[Algorithm]:
    """The model of one of several sort keys."""
    return _model_of(tuple(ALGORITHMS.values()), is_key=True)


_OF_THE_JOB: Final = ("seed", "interleave", "batches")
"""Options of algorithms that sort keys do not have."""
_KEY_SUMMARY: Final = "One of several sort keys: an algorithm, with its options."


@cache
def _model_of(algorithms: tuple[type[OrderAlgorithm], ...], *, is_key: bool) -> type[Algorithm]:
    those = [each for each in algorithms if each.is_sort_key or not is_key]
    summaries = " ".join(f"{each.kind}: {each.summary}." for each in those)
    kinds = tuple(each.kind for each in those)
    kind = Field(default=... if is_key else DEFAULT_KIND, description=summaries)
    fields: dict[str, Any] = {"kind": (Literal[kinds], kind)}
    for name, option in known_options().items():
        owners = [each.kind for each in those if name in each.stated()]
        if owners and not (is_key and name in _OF_THE_JOB):
            fields[name] = _field(option, owners)
    return create_model(
        "SortKey" if is_key else "Algorithm",
        __base__=Algorithm,
        __module__=__name__,
        __doc__=_KEY_SUMMARY if is_key else Algorithm.__doc__,
        __cls_kwargs__={"defer_build": is_key},  # every job serializes an algorithm, few a sort key
        **fields,
    )


class Group(Part):
    """An option that has parts."""

    _of: ClassVar[type[OptionGroup]]

    def build(self) -> OptionGroup:
        """The group in the form that algorithms use."""
        return self._of(**self.model_dump())


@cache
def group_model(of: Any) -> type[Group]:
    """The model of an ``OptionGroup``; required parts have no defaults."""
    fields: dict[str, Any] = {name: _field(option) for name, option in of.stated().items()}
    made: type[Group] = create_model(
        of.__name__, __base__=Group, __module__=__name__, __doc__=of.__doc__, **fields
    )
    made._of = of
    return made


def _group_of(option: Option) -> type[OptionGroup] | None:
    """The class of an option's parts; None if it has none."""
    first: Any = next(iter(get_args(option.type)), None)
    is_group = isinstance(first, type) and issubclass(first, OptionGroup)
    return first if is_group and not issubclass(first, OrderAlgorithm) else None


def _field(option: Option, owners: Sequence[str] = ()) -> tuple[Any, Any]:
    scope = f" For {joined(owners)} only." if len(owners) > 1 else ""
    annotation: Any = option.type
    is_optional = type(None) in get_args(annotation)
    if annotation == tuple[OrderAlgorithm, ...] | None:
        annotation = tuple[Annotated[Any, _Key()], ...] | None
    if group := _group_of(option):
        annotation = Annotated[group, _Parts()] | None
    if option.check is not None:
        validator = BeforeValidator if option.before else AfterValidator
        annotation = Annotated[annotation, validator(of_option(option.checked))]
    if option.json_schema is not None:
        annotation = Annotated[annotation, WithJsonSchema(dict(option.json_schema))]
    made = Field(
        default=... if option.required and not is_optional else option.default,
        description=option.description + scope,
        examples=[*option.examples] or None,
        strict=False if option.is_sequence else None,
    )
    return annotation, made


def joined(names: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def type_of_options(step: type[Step]) -> Any:
    """The type of a step in a spec: an object of options, or the value of its only option."""
    return step.stated()[step.bare].type if step.bare else options_model(step)


def options_model(of: type[OptionGroup]) -> Any:
    """The type of an object of options; its values have only the options that the spec sets. Steps
    with options from one class share the type."""
    return _typed_dict_of([of, *(each for each in of.__mro__ if _states(each, of))][-1])


def _states(one: type, of: type[OptionGroup]) -> bool:
    return issubclass(one, OptionGroup) and one.stated() == of.stated() != {}


@cache
def _typed_dict_of(owner: type[OptionGroup]) -> Any:
    name, summary = owner.__name__, owner.__doc__
    if issubclass(owner, Step):
        name = f"{name.lstrip('_')}Options"
        kind = getattr(owner, "kind", "")  # "": it is the base of several steps
        given = f"The options of ``{kind}``." if kind else summary
        summary = owner.options_summary or given
    fields: dict[str, Any] = {}
    for each, option in owner.stated().items():
        kind = option.type
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            kind = options_model(kind)
        kind = Annotated[kind, Field(description=option.description)]
        fields[each] = kind if option.required else NotRequired[kind]
    typed_dict: Any = TypedDict  # type checkers refuse one whose fields are not written out
    made = typed_dict(name, fields)
    made.__doc__ = summary
    made.__module__ = __name__
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made
