"""Which option of a command sets which field of a spec: errors and warnings name what the user
typed, and not the field that it became."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

import typer

from dsort.errors import SpecError

__all__ = ["FIELDS", "flag_for", "naming_flags", "with_flag"]

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


def flag_for(context: typer.Context, path: str) -> str | None:
    """The option, as it was typed, that set the field ``path``; None if no option did."""
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        for field in FIELDS.get(name, ()):
            if path == field or path.startswith((f"{field}.", f"{field}[")):
                is_option = param.opts[0].startswith("-")
                return param.opts[-1] if is_option else str(param.metavar or name.upper())
    return None


_current: ContextVar[typer.Context | None] = ContextVar("_current", default=None)


def with_flag(text: str) -> str:
    """A warning of a spec that begins with a field's path: with the option of the running command
    that set the field."""
    context = _current.get()
    path, colon, rest = text.partition(": ")
    flag = None if context is None else flag_for(context, path)
    return text if flag is None else f"{flag}{colon}{rest}"


@contextmanager
def naming_flags(context: typer.Context) -> Iterator[None]:
    """Have a ``SpecError`` of the body name options of the command instead of the fields that they
    set."""
    token = _current.set(context)
    try:
        yield
    except SpecError as error:
        problems = [
            replace(each, path=flag_for(context, each.path) or each.path) for each in error.problems
        ]
        if problems == list(error.problems):
            raise
        named = SpecError(problems)
        named.hint = error.hint
        raise named from error
    finally:
        _current.reset(token)
