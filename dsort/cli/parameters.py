"""Commands of click from plain functions. The annotation of a parameter says how it is written on
the command line, as in ``Annotated[int, Option("--workers", min=1)]``. A parameter whose type is a
struct is a group: each field is an option, and the function gets the whole struct."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, getdoc, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from msgspec import Struct

from dsort.cli.completion import files

_Command = TypeVar("_Command", bound=click.Command)

__all__ = ["CONTEXT_SETTINGS", "Argument", "Command", "Option", "Without", "command", "parameter"]

CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 80,
}


class Argument(Struct, frozen=True, kw_only=True):
    """A word of the command line that stands alone. Several, if the type is a list."""

    metavar: str
    help: str


class Option(Struct, frozen=True):
    """``name``: if empty, the name of the parameter: ``--shard-size`` for ``shard_size``. ``min``
    to ``max``: of a number. ``exists`` and ``dir_okay``: of a path."""

    name: str = ""
    short: str = ""
    metavar: str | None = None
    help: str = ""
    show_default: bool = True
    envvar: str | None = None
    show_envvar: bool = True
    min: int | None = None
    max: int | None = None
    exists: bool = False
    dir_okay: bool = True
    case_sensitive: bool = True


class Without(Struct, frozen=True):
    """The fields of a group that are no options of a command; they keep their defaults."""

    fields: tuple[str, ...]


class Command(click.Command):
    """Lists its arguments before its options."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: ``format_options`` lists them, also with versions of click that do not."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See ``click.Command``."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for each in self.get_params(ctx):
            if (row := each.get_help_record(ctx)) is not None:
                rows[each.param_type_name].append(row)
        for title, found in (("Arguments", rows["argument"]), ("Options", rows["option"])):
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


class _Word(click.Argument):
    """An argument with a help text."""

    def __init__(self, name: str, meaning: str, **settings: Any) -> None:
        super().__init__([name], **settings)
        self.meaning = f"{meaning}  [required]" if self.required else meaning

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """See ``click.Parameter``."""
        return self.human_readable_name, self.meaning

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """See ``click.Parameter``: brackets around an argument that may be left out."""
        name = self.human_readable_name
        more = "..." * (self.nargs != 1 and not name.endswith("..."))
        return [(name if self.required else f"[{name}]") + more]


class _WholeNumber(click.IntRange):
    name = "integer"  # in messages, where click has "integer range"


def command(
    name: str, verb: Callable[..., None], kind: type[_Command], **settings: Any
) -> _Command:
    """A command that calls ``verb``. ``settings``: of the class ``kind``."""
    hints = get_type_hints(verb, include_extras=True)
    params: list[click.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    contexts: list[str] = []
    for each in signature(verb).parameters.values():
        hint = hints[each.name]
        if hint is click.Context:
            contexts.append(each.name)
        elif (group := _group(hint)) is not None:
            found = list(_fields(*group))
            groups[each.name] = (group[0], [field for field, _, _ in found])
            params += [parameter(*field) for field in found]
        else:
            params.append(parameter(each.name, hint, each.default))

    def call(**given: Any) -> None:
        for group, (struct, names) in groups.items():
            given[group] = struct(**{each: given.pop(each) for each in names})
        verb(**given, **dict.fromkeys(contexts, click.get_current_context()))

    settings = {"context_settings": CONTEXT_SETTINGS, "help": getdoc(verb), **settings}
    return kind(name, callback=call, params=params, **settings)


def parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    """What ``hint`` describes. ``default``: ``Parameter.empty`` if a value is required."""
    described, marker = get_args(hint)
    typed, repeated = _typed(described)
    settings: dict[str, Any] = {"type": _type(typed, marker), "metavar": marker.metavar}
    settings["required"] = default is Parameter.empty
    if not settings["required"]:
        settings["default"] = default
    if repeated:  # click has tuples
        settings["callback"] = lambda context, param, value: list(value) or settings.get("default")
    if typed is str:
        settings["shell_complete"] = files
    if isinstance(marker, Argument):
        return _Word(name, marker.help, nargs=-1 if repeated else 1, **settings)
    if get_origin(typed) is Literal and marker.metavar is None:
        settings["metavar"] = f"<{'|'.join(get_args(typed))}>"
    written = marker.name or f"--{name.replace('_', '-')}"
    return click.Option(
        [name, *filter(None, [written, marker.short])],
        is_flag=True if typed is bool else None,
        multiple=repeated,
        help=marker.help,
        show_default=marker.show_default and default != "",
        envvar=marker.envvar,
        show_envvar=marker.show_envvar and marker.envvar is not None,
        **settings,
    )


def _type(typed: Any, marker: Option | Argument) -> Any:
    """What click checks a value with."""
    if isinstance(marker, Argument):
        return typed
    if get_origin(typed) is Literal:
        return click.Choice(get_args(typed), case_sensitive=marker.case_sensitive)
    if typed is Path:
        return click.Path(exists=marker.exists, dir_okay=marker.dir_okay, path_type=Path)
    if typed is int and (marker.min, marker.max) != (None, None):
        return _WholeNumber(marker.min, marker.max)
    return typed


def _typed(hint: Any) -> tuple[Any, bool]:
    """(the type of a value, whether there may be several) of ``hint``, which may allow None."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


def _group(hint: Any) -> tuple[Any, tuple[str, ...]] | None:
    """(the struct, the fields that are left out), if a parameter is a group."""
    struct, without = hint, Without(())
    if get_origin(hint) is Annotated:
        struct, without = get_args(hint)
    is_group = isinstance(struct, type) and issubclass(struct, Struct)
    return (struct, without.fields) if is_group else None


def _fields(struct: Any, without: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(struct, include_extras=True)
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    for name, default in zip(names, defaults, strict=True):  # each field has a default
        if name not in without:
            yield name, hints[name], default
