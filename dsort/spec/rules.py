"""Runs the rules between the fields of a spec, finds defaults that depend on other fields, and
resets fields that have no effect beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dsort.errors import SpecProblem
from dsort.naming.extensions import DEFAULT_EXTENSION
from dsort.naming.names import archive_extension
from dsort.naming.templates import SPLIT_FIELD
from dsort.option_fields import OptionError
from dsort.spec import excludes, input_rules, output_rules, record_rules
from dsort.spec.algorithms import algorithm_model, known_options, owners_of
from dsort.spec.input_rules import (
    named_extension,
    with_own_extensions,
)
from dsort.spec.output_rules import SIZES, STREAM_FORMAT, is_stdout
from dsort.spec.part import Part, UnusableError, usable
from dsort.spec.parts import SpecFields
from dsort.spec.record_rules import as_aistore_orders, required


def problems_of(spec: SpecFields) -> list[SpecProblem]:
    """The problems from every rule that ``spec`` breaks."""
    places = (excludes, input_rules, output_rules, record_rules)
    rules = [each for place in places for each in place.rule]
    return [problem for each in rules for problem in usable(each(spec))]


def take_out(spec: SpecFields, path: str) -> None:
    """Take the field at ``path``, which is wrong, out of ``spec``: to read it then raises
    ``UnusableError``."""
    owner, _, name = path.replace("Config", "config").rpartition(".")
    part = vars(spec).get(owner) if owner else spec
    if isinstance(part, Part) and name in type(part).model_fields:
        part.model_fields_set.add(name)
        if name != "input_bck":  # its default serves rules about other things than the bucket
            vars(part).pop(name, None)


def settle(spec: SpecFields) -> None:
    """Put the defaults that depend on other fields into ``spec``. Those that depend on a field that
    is wrong are wrong as well."""
    for name, default in _DEFAULTS.items():
        try:
            vars(spec)[name] = default(spec)
        except UnusableError:
            if not spec.gives(name):
                take_out(spec, name)


def _output_bck(spec: SpecFields) -> object:
    return spec.output_bck if spec.gives("output_bck") else spec.named_output_bck or spec.input_bck


def _output_format(spec: SpecFields) -> object:
    if not spec.gives("output_format") and is_stdout(spec.output_bck):
        return STREAM_FORMAT
    if spec.split and spec.output_format is not None:
        return spec.output_format.replace(SPLIT_FIELD, spec.split)
    return spec.output_format


def _input_extension(spec: SpecFields) -> object:
    if spec.gives("input_extension"):
        return spec.input_extension
    return named_extension(spec) or DEFAULT_EXTENSION


def _output_extension(spec: SpecFields) -> object:
    if spec.gives("output_extension"):
        return spec.output_extension
    templates = [*(spec.ekm or ())]
    if not spec.has_key_map:
        templates = [target.template or "" for target in spec.targets]
    suffixes = (archive_extension(template) for template in templates)
    return next(filter(None, suffixes), spec.input_extension)


def _require(spec: SpecFields) -> object:
    try:
        step = required(spec)
    except OptionError:
        return spec.require  # a rule reports it
    return step and step.options  # specs with the same meaning are equal


def _algorithm(spec: SpecFields) -> object:
    algorithm = spec.algorithm
    if (spec.keep_shards or spec.like) and "kind" not in algorithm.model_fields_set:
        algorithm = algorithm_model().model_validate({"kind": "none"})
    defaults = algorithm.type.own_defaults()
    own = {name: each for name, each in defaults.items() if getattr(algorithm, name) is None}
    if own:
        algorithm = algorithm.model_copy(update=own)
    return as_aistore_orders(spec, algorithm)


_DEFAULTS: Final[Mapping[str, Callable[[SpecFields], object]]] = {
    "output_bck": _output_bck,
    "input_extension": _input_extension,
    "inputs": with_own_extensions,
    "output_extension": _output_extension,
    "output_format": _output_format,
    "require": _require,
    "algorithm": _algorithm,
    "max_mem_usage": lambda spec: spec.max_mem_usage or spec.config.default_max_mem_usage,
}
"""The value of a field whose default depends on others, in the order in which they are found."""


def _ends_by_size(spec: SpecFields) -> bool:
    return not (spec.keep_shards or spec.like) and any(
        target.count is None and (target.size_bytes is not None or target.records is None)
        for target in spec.targets
    )


_IGNORED: Final = {
    "dsorter_type": "how records move is chosen from sizes and memory",
    "config.dsorter_mem_threshold": "how records move is chosen from sizes and memory",
    "config.call_timeout": "workers do not wait for one another's calls",
    "config.compression": "nothing is compressed on its way between workers",
    "config.bundle_multiplier": "there are no streams between nodes to multiply",
    "config.burst_buffer": "there are no streams between nodes to buffer",
}


def reset_unused(spec: SpecFields) -> list[str]:
    """Reset the fields that have no effect to their defaults. Returns a warning for each."""
    unused = [*_unused(spec)]
    for owner, name, default, _ in unused:
        vars(getattr(spec, owner) if owner else spec)[name] = default
    return [
        f'"{f"{owner}." * (owner == "algorithm")}{name}" has no effect: {reason}'
        for owner, name, _, reason in unused
    ]


def _unused(spec: SpecFields) -> Iterator[tuple[str, str, object, str]]:
    """(owner, name, default, reason) of each field that is set and has no effect."""
    for path, reason in _IGNORED.items():
        owner, _, name = path.rpartition(".")
        if getattr(spec.config if owner else spec, name) is not None:
            yield owner, name, None, reason
    if spec.output_format is not None and spec.has_key_map:
        yield "", "output_format", None, "the external key map names the outputs"
    if spec.ekm_file_sep != "\t" and spec.ekm_file is None:
        yield "", "ekm_file_sep", "\t", "there is no ekm_file"
    sizes = {"output_shard_size_counts": "payload", "output_shard_size_is": "at_least"}
    for name, default in sizes.items():
        if getattr(spec, name) != default and not _ends_by_size(spec):
            yield "", name, default, "shards do not end by their size"
    if is_stdout(spec.output_bck):
        for name, one in {"output_format": STREAM_FORMAT, **dict.fromkeys(SIZES)}.items():
            if getattr(spec, name) != one:
                yield "", name, one, "a stream is one shard, without a name"
    algorithm, kind = spec.algorithm, spec.algorithm.kind
    for name, option in known_options().items():
        is_given = getattr(algorithm, name) not in (None, option.default)
        if option.no_effect and is_given and kind not in owners_of(name):
            yield "algorithm", name, option.default, option.no_effect.format(kind=kind)
