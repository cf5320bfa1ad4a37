"""Placeholders: from the spec of a schedule to the spec of one of its runs.

The module also finds the part of the buckets and names that all runs of a schedule share, and the
name of the ``latest`` pointer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import closest
from dsort.order.algorithms import takes_seed
from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.due import date_of, run_id_of
from dsort.spec.dialects import translate
from dsort.spec.part import path_of

PLACEHOLDERS: Final = ("date", "run_id", "epoch")

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_KNOWN_HINT = "known are {{date}}, {{run_id}} and {{epoch}}"
_WHOLE: Final = frozenset(
    {"output_format", "ekm_default", "description", "ekm_file", "order_file", "input_format"}
)
_BUCKETS: Final = frozenset({"input_bck", "output_bck", "bck"})
_INPUTS: Final = frozenset({"template", "objnames", "prefix", "glob"})
_BRACES_MAY_STAY: Final = frozenset({"input_format", "description"})
"""The keys of a spec in which two braces in a row may mean something other than a placeholder."""

Steps = tuple[int | str, ...]


class RunValues(Struct, frozen=True):
    """The values of the placeholders in one run. ``date``: the date of the due time in the
    schedule's time zone, ``2026-11-20``. ``run_id``: the due time in UTC, ``20261120T020000Z``,
    which is unique and sorts by time. ``epoch``: the number of jobs that the schedule has made
    before."""

    date: str
    run_id: str
    epoch: int


def render(spec: Mapping[str, Any], values: RunValues) -> dict[str, Any]:
    """``spec`` for the run of ``values``. ``SpecError`` lists every placeholder that is unknown, or
    in the wrong place. Placeholders may stand in buckets, names of inputs and outputs, the seed,
    the description and the place of a key map.

    A shuffle without a seed gets the run's id as its seed. So the order differs from run to run,
    and a run that is repeated has the same order.
    """
    problems: list[SpecProblem] = []
    texts = {name: str(value) for name, value in asdict(values).items()}
    rendered: dict[str, Any] = _rendered(spec, (), texts, problems)
    if problems:
        raise SpecError(problems)
    algorithm = rendered.get("algorithm")
    if isinstance(algorithm, str):
        algorithm = rendered["algorithm"] = {"kind": algorithm}
    if isinstance(algorithm, dict) and takes_seed(algorithm):
        seed = algorithm.get("seed")
        if seed is None or seed == "":
            algorithm["seed"] = values.run_id
    return rendered


def seed_of(definition: ScheduleDefinition, due_s: float, epoch: int) -> str | int | None:
    """The seed of the job that is due at ``due_s``; None if the job's order needs no seed."""
    algorithm = render(definition.spec, values_of(definition, due_s, epoch)).get("algorithm")
    if not isinstance(algorithm, Mapping) or not takes_seed(algorithm):
        return None
    seed: str | int = algorithm["seed"]
    return seed


def values_of(definition: ScheduleDefinition, due_s: float, epoch: int) -> RunValues:
    """The values of the placeholders in the run that is due at ``due_s``."""
    return RunValues(date_of(definition, due_s), run_id_of(due_s), epoch)


def has_placeholder(value: object) -> bool:
    """Whether ``value`` is a text with a placeholder in it."""
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


def shared_part(text: str) -> str:
    """The part of a ``/``-separated text that all runs share: up to the first part with a
    placeholder in it."""
    match = _PLACEHOLDER.search(text)
    return text if match is None else text[: match.start()].rpartition("/")[0]


def _rendered(
    value: Any, steps: Steps, texts: Mapping[str, str], problems: list[SpecProblem]
) -> Any:
    if isinstance(value, Mapping) and steps == ("ekm",):
        return {
            _filled(key, (*steps, key), texts, problems) if isinstance(key, str) else key: each
            for key, each in value.items()
        }
    if isinstance(value, Mapping):
        return {key: _rendered(each, (*steps, key), texts, problems) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [
            _rendered(each, (*steps, index), texts, problems) for index, each in enumerate(value)
        ]
    if isinstance(value, str) and _allowed(steps):
        return _filled(value, steps, texts, problems)
    if has_placeholder(value):
        message = "may not have a placeholder"
        hint = "placeholders go into buckets, names of inputs and outputs, seed and description"
        problems.append(SpecProblem(path_of(steps), message, hint))
    return value


def _filled(text: str, steps: Steps, texts: Mapping[str, str], problems: list[SpecProblem]) -> str:
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        if name not in PLACEHOLDERS:
            near = closest(name, PLACEHOLDERS)
            hint = f"did you mean {{{{{near}}}}}?" if near else _KNOWN_HINT
            message = f"unknown placeholder {{{{{name}}}}}"
            problems.append(SpecProblem(path_of(steps), message, hint))
    rest = _PLACEHOLDER.sub("", text)
    if _own(steps)[0] not in _BRACES_MAY_STAY and ("{{" in rest or "}}" in rest):
        message = "has two braces in a row that are no placeholder"
        problems.append(SpecProblem(path_of(steps), message, _KNOWN_HINT))
    return _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), text)


def _own(steps: Steps) -> Steps:
    """The path ``steps``. If the first two steps lead to one of several inputs or outputs, they are
    left out, because the fields of an input or output have the same names as the fields of a
    spec."""
    return steps[2:] if steps[0] in ("inputs", "outputs") and len(steps) > 2 else steps


def _allowed(steps: Steps) -> bool:
    steps = _own(steps)
    if len(steps) == 1:
        return steps[0] in _WHOLE or steps[0] in _BUCKETS
    if steps[0] in _BUCKETS:
        return steps[1] in ("name", "prefix")
    if steps[0] == "input_format":
        return steps[1] in _INPUTS
    return steps == ("algorithm", "seed")


POINTER_NAME: Final = "latest.json"
_COUNTER = re.compile(r"[{@%]")  # the beginning of the counter in a template


def pointer_name(definition: ScheduleDefinition) -> str | None:
    """The name of the object that records the newest result of the schedule; None if there is no
    such object.

    The object is in the part of the output bucket that all runs share: below ``latest`` if this is
    a text, otherwise below the common beginning of all output names, in whole ``/``-separated
    parts.
    """
    if definition.latest is False:
        return None
    if isinstance(definition.latest, str):
        return f"{definition.latest}/{POINTER_NAME}"
    fields = translate(definition.spec).fields
    written = fields.get("output_bck") or fields.get("input_bck")
    prefix = ""
    # Otherwise the bucket has a placeholder, and names share no beginning across runs.
    if _shared_bucket(written, "output_bck") == written:
        prefix = names_prefix(shared_template(fields))
    return f"{prefix}/{POINTER_NAME}" if prefix else POINTER_NAME


def with_shared_buckets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """``spec``, not rendered, with its buckets shortened to the part that all runs share.
    ``SpecError`` for a placeholder in the name of a bucket itself."""
    shared: dict[str, Any] = dict(spec)
    problems: list[SpecProblem] = []
    for field in ("input_bck", "bck", "output_bck"):
        if field in spec:
            try:
                shared[field] = _shared_bucket(spec[field], field)
            except SpecError as error:
                problems.extend(error.problems)
    inputs = []
    for number, each in enumerate(spec.get("inputs") or ()):
        try:
            value = _shared_bucket(each["input_bck"], f"inputs[{number}].input_bck")
            inputs.append({**each, "input_bck": value})
        except SpecError as error:
            problems.extend(error.problems)
        except (LookupError, TypeError):
            inputs.append(each)  # parsing the spec reports the error
    if problems:
        raise SpecError(problems)
    if inputs:
        shared["inputs"] = inputs
    return shared


def _shared_bucket(value: Any, field: str) -> Any:
    if isinstance(value, str):
        return _shared_name(value, field)
    if not isinstance(value, Mapping):
        return value
    if has_placeholder(value.get("name")):
        rest = {key: each for key, each in value.items() if key != "prefix"}
        return {**rest, "name": _shared_name(value["name"], f"{field}.name")}
    if has_placeholder(value.get("prefix")):
        prefix = shared_part(value["prefix"])
        rest = {key: each for key, each in value.items() if key != "prefix"}
        return {**rest, "prefix": prefix} if prefix else rest
    return value


def _shared_name(text: str, field: str) -> str:
    scheme, separator, place = text.rpartition("://")
    shared = shared_part(place)
    if not shared.strip("/"):
        raise SpecError(
            [
                SpecProblem(
                    field,
                    "has a placeholder in the name of the bucket itself",
                    "only the part below a bucket can differ from run to run: "
                    '"s3://bucket/{{date}}", "shuffled/{{date}}"',
                )
            ]
        )
    return f"{scheme}{separator}{shared}"


def shared_template(fields: Mapping[str, Any]) -> Any:
    """The template that all output shards of a spec have; None if shards have several templates."""
    outputs = fields.get("outputs")
    each = outputs if isinstance(outputs, (list, tuple)) else ()
    own = any(isinstance(one, Mapping) and one.get("output_format") for one in each)
    return None if own else fields.get("output_format")


def names_prefix(template: Any) -> str:
    """The part that all names of a template share, in whole ``/``-separated parts."""
    if not isinstance(template, str):
        return ""  # an external key map, whose templates are read later
    match = _COUNTER.search(template)
    return template[: match.start()].rpartition("/")[0] if match else ""
