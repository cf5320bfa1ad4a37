"""Turns the errors of pydantic's models into problems in plain words. A hint names the field that
an unknown field probably means. Also finds the violated rules between the valid fields."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

from msgspec.structs import replace
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import closest
from dsort.order.algorithms import ALGORITHMS
from dsort.spec.dialects import OLDER_NAMES, PARTS
from dsort.spec.inputs import JobConfig
from dsort.spec.model import Draft, JobSpec, current_job_spec
from dsort.spec.part import LATER, FieldError, Late, describe, path_of
from dsort.storage.registry import EXAMPLES
from dsort.transforms.steps import STEPS


def _not(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {what}, not {describe(error['input'])}"


def _limit(what: str, key: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be at {what} {_context(error)[key]}, not {error['input']}"


def _context(error: ErrorDetails) -> dict[str, Any]:
    return error.get("ctx", {})


def _choices(error: ErrorDetails) -> list[str]:
    # Pydantic lists the choices as one text: 'a', 'b' or 'c'.
    return [
        each.strip().strip("'")
        for each in _context(error)["expected"].replace(" or ", ", ").split(", ")
    ]


def _not_a_choice(error: ErrorDetails) -> str:
    *most, last = _choices(error)
    names = f"{', '.join(most)} or {last}" if most else last
    return f"must be {names}, not {describe(error['input'])}"


_PLAIN_WORDS: Mapping[str, Callable[[ErrorDetails], str]] = {
    "bool_type": _not("true or false"),
    "dict_type": _not("an object"),
    "extra_forbidden": lambda error: "unknown field",
    "float_parsing": _not("a number"),
    "float_type": _not("a number"),
    "greater_than": lambda error: (
        f"must be greater than {_context(error)['gt']:g}, not {error['input']}"
    ),
    "greater_than_equal": _limit("least", "ge"),
    "int_from_float": _not("a whole number"),
    "int_parsing": _not("a whole number"),
    "int_type": _not("a whole number"),
    "less_than_equal": _limit("most", "le"),
    "list_type": _not("a list"),
    "literal_error": _not_a_choice,
    "missing": lambda error: "is required",
    "model_type": _not("an object"),
    "string_too_long": lambda error: f"has more than {_context(error)['max_length']} characters",
    "string_too_short": lambda error: "must not be empty",
    "too_long": lambda error: f"has more than {_context(error)['max_length']} items",
    "too_short": lambda error: "must not be empty",
    "string_type": _not("text"),
    "tuple_type": _not("a list"),
    "value_error": lambda error: str(_context(error)["error"]),
}
"""The message for each kind of error that a spec can cause, by pydantic's name of the kind."""


def plain_problems(error: ErrorDetails) -> list[SpecProblem]:
    """One error of pydantic as problems of the spec. Unknown fields get their hint from the loader,
    which has all names."""
    cause = _context(error).get("error")
    if isinstance(cause, FieldError):
        owner = path_of(error["loc"])
        return [
            replace(each, path=f"{owner}.{each.path}".replace(".[", "[").rstrip("."))
            for each in cause.problems
        ]
    # Options of steps may have any type; pydantic's own messages are good enough for them.
    in_plain_words = _PLAIN_WORDS.get(error["type"])
    words = in_plain_words(error) if in_plain_words is not None else error["msg"]
    return [SpecProblem(path_of(error["loc"]), words, _hint(error))]


_SORT_HINT: Final = (
    "alphanumeric sorts by keys, content by a member, "
    'value by a field: {"kind": "value", "value": "json.score"}'
)
_HINTS: Final[Mapping[tuple[str, str], str]] = {
    ("algorithm.kind", "sort"): _SORT_HINT,
    ("equalize", "repeat"): (
        'Loader(..., remainder="pad") of dsort.loader repeats records, so that all ranks have '
        "equally many steps; equalize: drop leaves out fewer records than there are shards"
    ),
}
"""The hint for a choice that belongs to another field or tool."""


def _hint(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "value_error":
        return str(getattr(_context(error)["error"], "hint", ""))
    if error["type"] == "missing" and error["loc"][-1] == "input_bck":
        return EXAMPLES
    if error["type"] == "literal_error" and isinstance(value, str):
        if known := _HINTS.get((path_of(error["loc"]), value)):
            return known
        near = closest(value, _choices(error))
        return f'did you mean "{near}"?' if near else ""
    if error["type"] == "string_type" and isinstance(value, (bool, int, float)):
        return "put it in quotes"
    if error["type"] == "bool_type" and isinstance(value, str):
        return "write it without quotes"
    return ""


def load_installed() -> bool:
    """Load the algorithms and steps of installed packages, once in a process, because a refused
    spec may name them; return whether there are new ones."""
    return any([ALGORITHMS.load_installed(), STEPS.load_installed()])


def all_problems(
    fields: dict[str, Any], errors: Sequence[ErrorDetails], draft: Draft
) -> list[SpecProblem]:
    """The problems of a spec in which pydantic has found ``errors``: those of the fields, and those
    between fields that are valid by themselves."""
    errors = _without_alternatives(fields, errors)
    return _field_problems(errors) + _rule_problems(fields, errors, draft)


def _without_alternatives(
    fields: dict[str, Any], errors: Sequence[ErrorDetails]
) -> list[ErrorDetails]:
    """``errors`` with locations in the spec. Where a field may have several types, pydantic puts
    the type into the location, and has an error for each type; these become one error."""
    found: list[ErrorDetails] = []
    of_types: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for error in errors:
        at = _place_of_type(fields, error)
        owner, of_type, rest = error["loc"][:at], error["loc"][at:][:1], error["loc"][at + 1 :]
        error["loc"] = owner + rest
        if of_type and not rest and error["type"].endswith(_OF_OTHER_TYPES):
            of_types.setdefault(owner, []).append(error)
        else:
            found.append(error)
    for owner, alternatives in of_types.items():
        if not any(each["loc"][: len(owner)] == owner for each in found):
            found.append(_one_of(alternatives))
    return found


_OF_OTHER_TYPES = ("_type", "_parsing", "_from_float", "literal_error")


def _place_of_type(fields: object, error: ErrorDetails) -> int:
    """The index of the type in the location of an error; the length of the location if there is no
    type."""
    value: Any = fields
    for at, step in enumerate(error["loc"]):
        steps: Any = value if isinstance(value, Mapping) else ()
        if isinstance(value, (list, tuple)):
            steps = range(len(value))
        if step not in steps:
            is_last = at + 1 == len(error["loc"])
            return at + (is_last and error["type"] == "missing")
        value = value[step]
    return len(error["loc"])


def _one_of(alternatives: Sequence[ErrorDetails]) -> ErrorDetails:
    """An error that lists all types that the value may have."""
    problems = [problem for each in alternatives for problem in plain_problems(each)]
    end = f", not {describe(alternatives[0]['input'])}"
    types = [each.message.removeprefix("must be ").removesuffix(end) for each in problems]
    hints = [each.hint for each in problems if each.hint]
    wrong = FieldError(f"must be {' or '.join(types)}{end}", "".join(hints[:1]))
    return {**alternatives[0], "type": "value_error", "ctx": {"error": wrong}}


def _field_problems(errors: Sequence[ErrorDetails]) -> list[SpecProblem]:
    meant = _meant_by_unknown(errors)
    problems = []
    for error in errors:
        for problem in plain_problems(error):
            if error["type"] == "extra_forbidden":
                problem = replace(problem, hint=_hint_of_unknown(problem.path))
            # A required field with a misspelt name is one problem, not two.
            if error["type"] != "missing" or problem.path not in meant:
                problems.append(problem)
    return problems


def _rule_problems(
    fields: dict[str, Any], errors: Sequence[ErrorDetails], draft: Draft
) -> list[SpecProblem]:
    """Problems between fields that are valid by themselves. Invalid fields are left out, and so are
    the rules that use them."""
    fields = copy.deepcopy(fields)
    wrong = {
        f"Config.{name}" if name in JobConfig.model_fields else name
        for name in _meant_by_unknown(errors)
    }
    for error in errors:
        location = error["loc"]
        steps = location[: 2 if location[0] in PARTS else 1]
        owner: dict[Any, Any] = fields if len(steps) == 1 else fields[str(steps[0])]
        owner.pop(steps[-1], None)
        wrong.add(path_of(steps))
    try:
        context = replace(draft, wrong=frozenset(wrong))
        current_job_spec().model_validate(fields, context=context)
    except SpecError as error:
        known = [path.removeprefix("Config.") for path in wrong]
        return [each for each in error.problems if not any(_touch(each.path, it) for it in known)]
    return []


def _touch(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _fields() -> dict[str, list[str]]:
    """By path, the names of the fields of each part of a spec; items of a list have the path of the
    list."""
    found = _fields_of(JobSpec, "")
    found[""] += JobConfig.model_fields
    return found


def _fields_of(model: type[BaseModel], path: str) -> dict[str, list[str]]:
    names = {field.alias or name: field for name, field in model.model_fields.items()}
    found = {path: [*names]}
    # If several parts have a field of this name, a user most likely means a part that all specs
    # have.
    for name, field in sorted(names.items(), key=lambda it: LATER in it[1].metadata):
        for part in _models_in(Annotated[field.annotation, *field.metadata, None]):
            found |= _fields_of(part, f"{path}.{name}" if path else name)
    return found


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The models of the values of a field of this type."""
    source, *marks = get_args(kind) if get_origin(kind) is Annotated else [kind]
    late = [mark for mark in marks if isinstance(mark, Late)]
    if late:
        yield late[0].model(source)
    elif isinstance(source, type) and issubclass(source, BaseModel):
        yield source
    else:
        for each in get_args(source):
            yield from _models_in(each)


def _options_of_step(kind: str) -> list[str]:
    """The fields of one kind of step; none, if it has no fields."""
    step = STEPS.find(kind)
    return [] if step is None or step.bare else [*step.stated()]


def _meant(path: str) -> str | None:
    """The path of the field that was most likely meant by the unknown ``path``."""
    fields = _fields()
    owner, _, name = path.rpartition(".")
    place = re.sub(r"\[\d+\]", "", owner)  # the items of a list have the same fields
    steps, _, kind = place.rpartition(".")
    if steps == "transform.steps":
        near = closest(name, _options_of_step(kind))
        return f"{owner}.{near}" if near else None
    for other, names in fields.items():
        if other != place and name in names and name not in fields.get(place, ()):
            return f"{other}.{name}" if other else name
    siblings = fields.get(place, [])  # none, if the unknown name itself has a dot
    known = {each: f"{owner}.{each}" if owner else each for each in siblings}
    for older, today in OLDER_NAMES.items():
        older_owner, _, older_name = older.rpartition(".")
        if older_owner == owner:
            known.setdefault(older_name, today)
    near = closest(name, known)
    if near:
        return known[near]
    elsewhere = {
        each: f"{other}.{each}" if other else each
        for other, names in reversed(
            fields.items()
        )  # if several parts have the name, the first is used
        if other != place
        for each in names
    }
    near = closest(name, elsewhere)
    return elsewhere[near] if near else None


def _meant_by_unknown(errors: Sequence[ErrorDetails]) -> set[str]:
    unknown = [path_of(error["loc"]) for error in errors if error["type"] == "extra_forbidden"]
    return {meant for meant in map(_meant, unknown) if meant is not None}


def _hint_of_unknown(path: str) -> str:
    """A hint with the field that the unknown field at ``path`` probably means; "" if no name is
    similar."""
    if path == "algorithm.by":  # the word of the builder's ``sort``
        return _SORT_HINT
    meant = _meant(path)
    if meant is None:
        return ""
    owner, _, name = path.rpartition(".")
    meant_owner, _, meant_name = meant.rpartition(".")
    if meant_owner == owner:
        return f'did you mean "{meant_name}"?'
    if meant_name != name:
        place = f'in "{meant_owner}"' if meant_owner else "at the top level"
        return f'did you mean "{meant_name}", {place}?'
    return f'it belongs in "{meant_owner}"' if meant_owner else "it belongs at the top level"
