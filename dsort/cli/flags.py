"""Which option of a command sets which field of a spec, so that errors and warnings name the option
that the user typed, and not the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import click

from dsort.errors import DsortError, SpecError, SpecProblem

__all__ = ["FIELDS", "flag_for", "naming_flags", "with_flag", "with_flags"]

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
"""The fields that a parameter of a command sets, by the parameter's name."""


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
    """``text`` with options of the command in place of the fields that they set. Unchanged for a
    command that reads a spec: its user wrote the fields."""
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
    """A warning that begins with the path of a field, with the option of the running command that
    set the field instead."""
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
