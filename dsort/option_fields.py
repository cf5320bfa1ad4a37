"""The options of a step or an algorithm: fields of its class, each made with :func:`option`.

The model of a spec, its JSON Schema, the reference, errors and the canonical form are made from
these fields. Workers receive the struct itself, so that they never load pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct, StructMeta

__all__ = ["Check", "Option", "OptionError", "OptionGroup", "option"]


class OptionError(ValueError):
    """The error in the value of one option, with a ``hint``. ``names_value``: the value is shown
    after the message ("must be text", "not the number 5"). ``option``: the name of the option; ""
    if the error is about several options."""

    def __init__(
        self, message: str, hint: str = "", *, names_value: bool = False, option: str = ""
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.names_value = names_value
        self.option = option


class Option(Struct, frozen=True):
    """One option as it is in a spec.

    ``type`` and ``default``: the type and the default of the field of the spec; the default None
    means that the field is not given. ``check``: returns the value to use in place of the given
    one, or raises ``OptionError``. ``before``: ``check`` gets the value as written, of any type.
    ``required``: the hint if a required option is missing; "": the option is not required.
    ``own_default``: the value that its owner uses if the spec has none, where ``default`` is
    something else. ``is_sequence``: the value in a spec is a list.

    The options of all algorithms share one object in a spec. ``misplaced``: message and hint if the
    option is set for an algorithm that lacks it; empty: a general message. ``no_effect``: if set,
    such an option is not refused but has no effect, and this is the reason ("{kind}" is the
    algorithm).
    """

    type: Any
    description: str
    default: Any = None
    examples: tuple[Any, ...] = ()
    check: Callable[[Any], Any] | None = None
    before: bool = False
    json_schema: Mapping[str, Any] | None = None
    required: str = ""
    misplaced: tuple[str, str] = ("", "")
    no_effect: str = ""
    is_sequence: bool = False
    own_default: Any = None

    @property
    def used_default(self) -> Any:
        """The value that its owner uses if the spec has none."""
        return self.default if self.own_default is None else self.own_default

    def checked(self, value: Any) -> Any:
        """The value to use for ``value``, which a spec has; None is not checked."""
        return value if value is None or self.check is None else self.check(value)


def option(type: Any, description: str, **more: Any) -> Any:
    """A field that is an :class:`Option`."""
    return Option(type, description, **more)


class Check(Struct, frozen=True):
    """A rule about several ``options`` (their names). ``problems`` gets their values in a spec, and
    yields (name, message, hint). The rule is skipped if one of the values is known to be wrong."""

    options: tuple[str, ...]
    problems: Callable[[Mapping[str, Any]], Iterator[tuple[str, str, str]]]


class _OptionFields(StructMeta):
    """Keeps the options that fields are made with, and gives the fields their defaults."""

    _stated: dict[str, Option]

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **settings: Any
    ) -> _OptionFields:
        own = {text: each for text, each in namespace.items() if isinstance(each, Option)}
        for text, each in own.items():
            if each.required:
                del namespace[text]
            else:
                namespace[text] = each.used_default
        made = super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **settings})
        made._stated = {**getattr(made, "_stated", {}), **own}
        return made


class OptionGroup(Struct, metaclass=_OptionFields, frozen=True):
    """A struct of options: a step, an algorithm, or an option with parts."""

    checks: ClassVar[tuple[Check, ...]] = ()
    """The rules between its options."""

    @classmethod
    def stated(cls) -> dict[str, Option]:
        """The options of the group by name."""
        return cls._stated

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values to use for ``given``, the options in a spec. ``OptionError`` from their
        checks."""
        stated = cls._stated
        return {name: _immutable(stated[name].checked(value)) for name, value in given.items()}

    def written(self) -> dict[str, Any]:
        """The options in JSON types, without those that are None."""
        values = {name: getattr(self, name) for name in type(self).stated()}
        return {name: _in_json(value) for name, value in values.items() if value is not None}


def _immutable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in_json(value: Any) -> Any:
    if isinstance(value, OptionGroup):
        return value.written()
    return list(value) if isinstance(value, tuple) else value
