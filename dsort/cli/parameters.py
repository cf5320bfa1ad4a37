"""Commands of click from plain functions. The annotation of a parameter says how it is written on
the command line, as in ``Annotated[int, Option("--workers", min=1)]``. A parameter whose type is a
struct is a group: each field is an option, and the function gets the whole struct."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
from dsort.errors import DsortError, SpecError, SpecProblem

_Command = TypeVar("_Command", bound=click.Command)

CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 80,
}


class Argument(Struct, frozen=True, kw_only=True):
    """A word of the command line that stands alone. Several, if the type is a list."""

    metavar: str
    help: str


class Option(Struct, frozen=True):
    """``name``: "" for the name of the parameter (``--shard-size`` for ``shard_size``). ``min`` and
    ``max``: the limits of a number. ``exists`` and ``dir_okay``: the checks of a path."""

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
        """Nothing, because ``format_options`` lists the arguments itself. Some versions of click
        call this method."""

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
    """The argument or option that ``hint`` describes. ``default``: ``Parameter.empty`` if a value
    is required."""
    described, marker = get_args(hint)
    typed, repeated = _typed(described)
    settings: dict[str, Any] = {"type": _type(typed, marker), "metavar": marker.metavar}
    settings["required"] = default is Parameter.empty
    if not settings["required"]:
        settings["default"] = default
    if repeated:  # click gives tuples
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
    """The type with which click checks a value."""
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
    """For the annotation ``hint``, which may allow None: (the type of a value, whether there may be
    several)."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


def _group(hint: Any) -> tuple[Any, tuple[str, ...]] | None:
    """For a parameter that is a group: (its struct, the fields that are left out)."""
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


# -- fields of a spec -----------------------------------------------------------------------------

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "src": ("input_bck",),
    "dst": ("output_bck",),
    "overwrite": ("overwrite",),
    "remove_stale": ("remove_stale",),
    "memory_max": ("max_mem_usage",),
    "names": ("output_format",),
    "shard_size": ("output_shard_size",),
    "shard_records": ("output_shard_records",),
    "shards": ("output_shard_count",),
    "split": ("outputs",),
    "view": ("output",),
    "filter": ("transform.steps[0].filter",),
    "dedup": ("deduplicate",),
    "by": ("algorithm",),
    "reverse": ("algorithm.decreasing",),
    "to": ("output_extension",),
    "source": ("input_extension",),
    "template": ("input_format.template",),
    "key_field": ("key_field",),
    "seed": ("algorithm.seed",),
    "sort": ("algorithm.kind",),
    "duplicate_keys": ("duplicate_keys", "Config.duplicate_keys"),
    "use": ("transform.use",),
    "python": ("transform.steps[0].map.python", "transform.steps[0].map"),
    "ext": ("transform.steps[1].fields.rename", "transform.steps[1].fields"),
    "layout": ("ingest.layout",),
    "key": ("ingest.key",),
    "key_pattern": ("ingest.key_pattern",),
    "dots": ("ingest.dots",),
    "archives": ("ingest.archives",),
    "extensions": ("ingest.extensions",),
    "recipe": ("ingest.recipe",),
    "pipes": ("ingest.pipes",),
    "class_map": ("ingest.class_map",),
    "unusable": ("ingest.unusable",),
}
"""The fields that a parameter of a command sets, by the parameter's name: errors and warnings name
the option that the user typed, and not the field."""


def flag_for(context: click.Context, path: str) -> str | None:
    """The option, as it was typed, that set the field ``path``; None if no option did."""
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        for field in FIELDS.get(name, ()):
            if path == field or path.startswith((f"{field}.", f"{field}[")):
                return _shown(param)
    return None


def with_flags(context: click.Context, text: str) -> str:
    """``text`` with options of the command in place of the fields that they set; unchanged for a
    command that reads a spec, because its user knows the fields."""
    params = context.command.params
    if any("-f" in param.opts for param in params):
        return text
    for param in params:
        for field in FIELDS.get(param.name or "", ()):
            if "_" in field:  # other fields are also ordinary words
                text = re.sub(rf"(?<![\w.\"]){re.escape(field)}(?![\w.:\"])", _shown(param), text)
    return text


def _shown(param: Any) -> str:
    is_option = param.opts[0].startswith("-")
    return param.opts[-1] if is_option else str(param.metavar or (param.name or "").upper())


_current: ContextVar[click.Context | None] = ContextVar("_current", default=None)


def with_flag(text: str) -> str:
    """A warning that begins with the path of a field. The path is replaced by the option of the
    running command that set the field, if there is one."""
    context = _current.get()
    path, colon, rest = text.partition(": ")
    flag = None if context is None else flag_for(context, path)
    return text if flag is None else f"{flag}{colon}{rest}"


@contextmanager
def naming_flags(context: click.Context) -> Iterator[None]:
    """A context in which a ``SpecError`` names the options of the command, in place of the fields
    that they set."""
    token = _current.set(context)
    try:
        yield
    except SpecError as error:
        problems = [
            SpecProblem(
                flag_for(context, each.path) or each.path,
                with_flags(context, each.message),
                with_flags(context, each.hint),
            )
            for each in error.problems
        ]
        named = SpecError(problems)
        named.hint = with_flags(context, error.hint)
        raise named from error
    except DsortError as error:
        error.hint = with_flags(context, error.hint)
        raise
    finally:
        _current.reset(token)
