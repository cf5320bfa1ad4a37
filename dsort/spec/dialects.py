"""Translates older ways to write a spec to today's, each with one warning.

AIStore has renamed and moved fields over the years, its documentation shows all generations of
them, and its YAML decoder has names of its own. The meaning of an older field is clear, so it is
accepted; an older field that contradicts a field with today's name is a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from dsort.errors import SpecProblem
from dsort.spec.part import describe

PARTS: Final = ("input_format", "algorithm", "Config")
"""The fields of a spec that are objects with fields of their own."""

TINY_BYTES: Final = 1024
"""A bare number below this is too small to be an intended shard size."""

_SIZES: Final = ("output_shard_size", "row_group_bytes")

OLDER_NAMES: Final[Mapping[str, str]] = {
    "bck": "input_bck",
    "extension": "input_extension",
    "order_file": "ekm_file",
    "order_file_sep": "ekm_file_sep",
    "ekm_sep": "ekm_file_sep",
    "dryrun": "dry_run",
    "dsortertype": "dsorter_type",
    "config": "Config",
    "algorithm.format_type": "algorithm.content_key_type",
    "algorithm.contentkeytype": "algorithm.content_key_type",
    "algorithm.ext": "algorithm.extension",
    "Config.duplicatedrecords": "Config.duplicated_records",
    "Config.missingshards": "Config.missing_shards",
    "Config.ekmmalformedline": "Config.ekm_malformed_line",
    "Config.ekmmissingkey": "Config.ekm_missing_key",
    "Config.defaultmaxmemusage": "Config.default_max_mem_usage",
    "Config.dsortermemthreshold": "Config.dsorter_mem_threshold",
    "Config.calltimeout": "Config.call_timeout",
    "Config.sbundle_mult": "Config.bundle_multiplier",
    "Config.sbundlemult": "Config.bundle_multiplier",
}
"""Today's path for each older path. AIStore's YAML decoder reads the lower-case names without
``_``."""

_REMOVED: Final = ("stream_multiplier", "extended_metrics")


class Translation(Struct):
    """A spec with today's names, not yet checked.

    ``written`` maps today's paths to the paths that the user wrote, if they differ.
    """

    fields: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    problems: list[SpecProblem] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)

    def as_written(self, path: str) -> str:
        """``path`` as the user wrote it."""
        # The longest path first: a field within a part has its own older name.
        for today in sorted(self.written, key=len, reverse=True):
            if path == today or path.startswith((f"{today}.", f"{today}[")):
                return self.written[today] + path[len(today) :]
        return path


def translate(mapping: Mapping[str, Any], config_fields: Collection[str] = ()) -> Translation:
    """``mapping`` with today's names. Null and empty texts, which AIStore's clients send for fields
    that are not given, are removed. ``mapping`` itself is not changed.

    ``config_fields``: fields that may be at the top level or, as in AIStore, in ``Config``. The
    model has them in ``Config``.
    """
    result = Translation(_without_empty(mapping))
    if "config" in result.fields:
        _move(result, "config", "Config")
    if isinstance(algorithm := result.fields.get("algorithm"), str):
        result.fields["algorithm"] = {"kind": algorithm}
        result.written["algorithm.kind"] = "algorithm"
    for part in PARTS:
        if isinstance(result.fields.get(part), Mapping):
            result.fields[part] = _without_empty(result.fields[part])
    for older, today in OLDER_NAMES.items():
        _move(result, older, today)
    for short in ("input", "output"):
        if _is_stream(result.fields.get(short)):
            _move(result, short, f"{short}_bck", warns=False)
    for name in config_fields:
        _move_in(result, name)
    for name in _REMOVED:
        if result.fields.pop(name, None) is not None:
            result.warnings.append(f'"{name}" has no effect: AIStore has dropped it, too')
    _translate_input_format(result)
    result.warnings.extend(_tiny_sizes(result.fields))
    if _is_no_bucket(result.fields.get("output_bck")):
        del result.fields["output_bck"]
    return result


def _tiny_sizes(fields: Mapping[str, Any]) -> Iterator[str]:
    """Sizes that are bare numbers, and so small that their unit was most likely forgotten."""
    outputs = fields.get("outputs")
    several = enumerate(outputs) if isinstance(outputs, (list, tuple)) else ()
    places = [("", fields), *((f"outputs[{number}].", each) for number, each in several)]
    for path, part in places:
        for name in _SIZES if isinstance(part, Mapping) else ():
            text = str(part.get(name)).strip()
            if text.isascii() and text.isdecimal() and 0 < int(text[:9]) < TINY_BYTES:
                yield (
                    f"{path}{name}: {text} is {text} bytes; if that is not meant, write a unit: "
                    f"{text}MB"
                )


def _is_no_bucket(value: object) -> bool:
    """Whether ``value`` is a bucket without a name, by which AIStore's clients mean no bucket."""
    if not isinstance(value, Mapping):
        return False
    given = _without_empty(value)
    namespace = given.pop("namespace", None)
    if namespace and not (isinstance(namespace, Mapping) and not any(namespace.values())):
        return False
    return given in ({}, {"provider": "ais"})


def _is_stream(value: object) -> bool:
    """Whether ``value``, of the field ``input`` or ``output``, is the short form of a stream."""
    return value == "-" or (isinstance(value, Mapping) and "pipe" in value)


def _without_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if value is not None and value != ""}


def _move(result: Translation, older: str, today: str, *, warns: bool = True) -> None:
    """Move the value at the path ``older``, if any, to the path ``today``."""
    source, source_name = _place(result, older)
    if source is None or source_name not in source:
        return
    target, target_name = _place(result, today)
    value = source.pop(source_name)
    if target is None:
        return  # its parent is not an object, which is reported as a problem of the parent
    if warns:
        result.warnings.append(_warning(older, today))
    if target_name not in target:
        target[target_name] = value
        result.written[today] = result.written.pop(older, older)
    elif not _same(target[target_name], value):
        result.problems.append(_differ(older, value, today, target[target_name], keep=today))


def _move_in(result: Translation, name: str) -> None:
    """Move a field of the top level to ``Config``, where the model has it."""
    if name not in result.fields:
        return
    value = result.fields.pop(name)
    config = result.fields.setdefault("Config", {})
    if not isinstance(config, dict):
        return  # reported as a problem of Config
    path = f"Config.{name}"
    if name in config and not _same(config[name], value):
        result.problems.append(_differ(path, config[name], name, value, keep=name))
    config[name] = value
    result.written[path] = name


def _differ(one: str, says: object, other: str, other_says: object, *, keep: str) -> SpecProblem:
    message = f'is {describe(says)}, but "{other}" is {describe(other_says)}'
    return SpecProblem(one, message, f'keep "{keep}" only')


def _place(result: Translation, path: str) -> tuple[dict[str, Any] | None, str]:
    owner, _, name = path.rpartition(".")
    if not owner:
        return result.fields, name
    part = result.fields.setdefault(owner, {})
    return (part if isinstance(part, dict) else None), name


def _warning(older: str, today: str) -> str:
    more = ' (and "output_extension", where it differs)' if older == "extension" else ""
    return f'"{older}" is an older name: write "{today}"{more}'


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _translate_input_format(result: Translation) -> None:
    inputs = result.fields.get("input_format")
    for form, name in ((str, "template"), (list, "objnames")):
        if isinstance(inputs, form):
            kind = "a text" if form is str else "a list"
            result.fields["input_format"] = {name: inputs}
            result.written[f"input_format.{name}"] = "input_format"
            result.warnings.append(
                f'{kind} as "input_format" is an older form: write {{"{name}": ...}}'
            )
    inputs = result.fields.get("input_format")
    if isinstance(inputs, dict) and inputs.get("template") == "*":
        del inputs["template"]  # in AIStore it means every object
