"""Placeholders: from the spec of a schedule to the spec of one of its runs.

================  ==================================================================
``{{date}}``      the date of the due time in the schedule's time zone: 2026-11-20
``{{run_id}}``    the due time in UTC: 20261120T020000Z; unique, and sorts by time
``{{epoch}}``     how many jobs the schedule has made before: 0, 1, ...
================  ==================================================================

They stand in buckets, names of inputs and outputs, seed, description and the place of a key map,
and nowhere else. A shuffle without a seed gets the run's id for one: the order is another one each
time, and the same whenever that run is made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import closest
from dsort.spec.hints import path_of

__all__ = ["PLACEHOLDERS", "RunValues", "has_placeholder", "render", "shared_part"]

PLACEHOLDERS: Final = ("date", "run_id", "epoch")

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_KNOWN_HINT = "known are {{date}}, {{run_id}} and {{epoch}}"
_WHOLE: Final = frozenset(
    {"output_format", "ekm_default", "description", "ekm_file", "order_file", "input_format"}
)
_BUCKETS: Final = frozenset({"input_bck", "output_bck", "bck"})
_INPUTS: Final = frozenset({"template", "objnames", "prefix", "glob"})
_BRACES_MAY_STAY: Final = frozenset({"input_format", "description"})
"""Where two braces in a row may mean something else."""

Steps = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class RunValues:
    """What the placeholders stand for in one run."""

    date: str
    run_id: str
    epoch: int


def render(spec: Mapping[str, Any], values: RunValues) -> dict[str, Any]:
    """``spec`` as the run of ``values`` has it. ``SpecError`` with every placeholder that is not
    known, or stands where none may."""
    problems = list(_problems(spec, ()))
    if problems:
        raise SpecError(problems)
    texts = {name: str(value) for name, value in asdict(values).items()}
    rendered: dict[str, Any] = _rendered(spec, (), texts)
    algorithm = rendered.get("algorithm")
    if isinstance(algorithm, dict) and algorithm.get("kind") == "shuffle":
        seed = algorithm.get("seed")
        if seed is None or seed == "":
            algorithm["seed"] = values.run_id
    return rendered


def has_placeholder(value: object) -> bool:
    """Whether a text has one of the placeholders in it."""
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


def shared_part(text: str) -> str:
    """The part of a ``/``-separated text that all runs share: up to the first part with a
    placeholder in it."""
    match = _PLACEHOLDER.search(text)
    return text if match is None else text[: match.start()].rpartition("/")[0]


def _rendered(value: Any, steps: Steps, texts: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        named = {}
        for key, each in value.items():
            name = _filled(key, texts) if steps == ("ekm",) else key
            named[name] = _rendered(each, (*steps, key), texts)
        return named
    if isinstance(value, (list, tuple)):
        return [_rendered(each, (*steps, index), texts) for index, each in enumerate(value)]
    if isinstance(value, str) and _allowed(steps):
        return _filled(value, texts)
    return value


def _filled(text: str, texts: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: texts[match[1]], text)


def _allowed(steps: Steps) -> bool:
    if len(steps) == 1:
        return steps[0] in _WHOLE or steps[0] in _BUCKETS
    if steps[0] in _BUCKETS:
        return steps[1] in ("name", "prefix")
    if steps[0] == "input_format":
        return steps[1] in _INPUTS
    return steps == ("algorithm", "seed")


def _problems(value: Any, steps: Steps) -> Iterator[SpecProblem]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            if steps == ("ekm",) and isinstance(key, str):
                yield from _text_problems(key, (*steps, key))
            elif steps[:1] != ("ekm",):
                yield from _problems(each, (*steps, key))
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _problems(each, (*steps, index))
    elif isinstance(value, str) and _allowed(steps):
        yield from _text_problems(value, steps)
    elif has_placeholder(value):
        yield SpecProblem(
            path_of(steps),
            "may not have a placeholder",
            "they go into buckets, names of inputs and outputs, seed and description",
        )


def _text_problems(text: str, steps: Steps) -> Iterator[SpecProblem]:
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        if name not in PLACEHOLDERS:
            near = closest(name, PLACEHOLDERS)
            hint = f"did you mean {{{{{near}}}}}?" if near else _KNOWN_HINT
            yield SpecProblem(path_of(steps), f"unknown placeholder {{{{{name}}}}}", hint)
    rest = _PLACEHOLDER.sub("", text)
    if steps[0] not in _BRACES_MAY_STAY and ("{{" in rest or "}}" in rest):
        message = "has two braces in a row that are no placeholder"
        yield SpecProblem(path_of(steps), message, _KNOWN_HINT)
