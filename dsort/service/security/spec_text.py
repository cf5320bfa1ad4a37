"""Reads the text of a spec that came over the network, within limits.

Texts that could take much time or memory are refused by size, depth, numbers of fields and items,
and lengths, before their content is interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from dsort.data.json_values import encodable, is_encodable
from dsort.errors import SpecError, SpecProblem, TooLargeError
from dsort.naming.names import has_control_characters, shortened
from dsort.sizes import format_bytes
from dsort.spec.part import describe, path_of
from dsort.spec.syntax import looks_like_json, parse_json
from dsort.spec.yaml_text import parse_yaml

_KEY_MAP: Final = "ekm"
_MULTILINE: Final = "description"
_SEPARATORS: Final = ("ekm_file_sep", "ekm_sep", "order_file_sep")
_INT_MAX: Final = 2**64

_Place = tuple[int | str, ...]


class TextLimits(Struct, frozen=True):
    """The limits of a spec from the network. YAML has a limit of its own, because 100 KB of YAML
    take a second to read."""

    bytes_max: int = 1 << 20
    yaml_bytes_max: int = 64 << 10
    depth_max: int = 6
    fields_max: int = 64  # of one object
    templates_max: int = 10_000  # of an external key map in the spec
    items_max: int = 100_000  # of all lists together
    name_characters_max: int = 200  # of a field
    text_characters_max: int = 4096
    problems_max: int = 50  # the most problems that are reported


def parse_text(body: bytes, limits: TextLimits | None = None) -> Mapping[str, Any]:
    """The fields of the spec in a request's body: JSON if it begins with ``{``, else YAML.

    ``TooLargeError``, or ``SpecError`` with the mistakes in the text.
    """
    fields = parse_unchecked(body, limits)
    check_fields(fields, limits)
    return fields


def parse_unchecked(body: bytes, limits: TextLimits | None = None) -> Mapping[str, Any]:
    """Parse as ``parse_text`` does, but leave ``check_fields`` to the caller."""
    limits = limits or TextLimits()
    if len(body) > limits.bytes_max:
        raise TooLargeError(
            f"the spec is larger than {format_bytes(limits.bytes_max)}",
            hint="put a large key map into a file of its own: ekm_file",
        )
    try:
        text = body.decode("utf-8-sig")  # editors of Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise SpecError(f"the spec is not UTF-8 at byte {error.start}") from None
    if looks_like_json(text):
        value = parse_json(text, "spec")
    elif len(body) > limits.yaml_bytes_max:
        raise TooLargeError(
            f"the spec is YAML of more than {format_bytes(limits.yaml_bytes_max)}",
            hint=f"as JSON, a spec may have up to {format_bytes(limits.bytes_max)}",
        )
    else:
        value = parse_yaml(text, "spec")
    if not isinstance(value, Mapping):
        raise SpecError(f"a spec is an object of fields, not {describe(value)}")
    return value


def check_fields(fields: Mapping[str, Any], limits: TextLimits | None = None) -> None:
    """``SpecError`` if ``fields``, JSON values from any source, exceed the limits of a spec."""
    limits = limits or TextLimits()
    with bounded_problems(limits):
        problems = []
        for problem in _Reader(limits).problems(fields, ()):
            problems.append(problem)
            if len(problems) > limits.problems_max:
                break
        if problems:
            raise SpecError(problems)


def why_no_text(text: str) -> str:
    """Why ``text`` cannot be stored and shown; "" if it can."""
    if not is_encodable(text):
        return "is not valid Unicode: it has half of a surrogate pair, or bytes that are no UTF-8"
    return "has a NUL character" if "\0" in text else ""


def check_text(text: str) -> str:
    """``text``, if it can be stored and shown; else ``ValueError``. For fields of models."""
    why = why_no_text(text)
    if why:
        raise ValueError(why)
    return text


@contextmanager
def bounded_problems(limits: TextLimits | None = None) -> Iterator[None]:
    """Limit the number of problems in a ``SpecError`` raised inside, and the length of each."""
    limits = limits or TextLimits()
    try:
        yield
    except SpecError as error:
        raise SpecError(_shortened(error.problems, limits.problems_max), hint=error.hint) from None


def _shortened(problems: Sequence[SpecProblem], problems_max: int) -> list[SpecProblem]:
    listed = [
        SpecProblem(shortened(each.path), _cut(each.message), _cut(each.hint))
        for each in problems[:problems_max]
    ]
    more = len(problems) - len(listed)
    return [*listed, SpecProblem("", f"and {more:,} more")] if more else listed


def _cut(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}..."


class _Reader:
    """Walks through JSON values and reports where they exceed the limits."""

    def __init__(self, limits: TextLimits) -> None:
        self._limits = limits
        self._items_left = limits.items_max

    def problems(self, value: object, place: _Place) -> Iterator[SpecProblem]:
        """The problems of ``value``, which is at ``place``."""
        if len(place) > self._limits.depth_max:
            yield _problem(place, "is nested too deeply")
        elif isinstance(value, Mapping):
            yield from self._object_problems(value, place)
        elif isinstance(value, (list, tuple)):
            self._items_left -= len(value)
            if self._items_left < 0:
                yield _problem(place, f"has more than {self._limits.items_max:,} items")
                return
            for index, each in enumerate(value):
                yield from self.problems(each, (*place, index))
        elif isinstance(value, str):
            yield from self._text_problems(value, place)
        elif isinstance(value, int) and abs(value) >= _INT_MAX and place[-1:] != ("seed",):
            yield _problem(place, "is too large a number")

    def _object_problems(
        self, value: Mapping[object, object], place: _Place
    ) -> Iterator[SpecProblem]:
        is_key_map = place == (_KEY_MAP,)
        limit = self._limits.templates_max if is_key_map else self._limits.fields_max
        if len(value) > limit:
            yield _problem(place, f"has more than {limit:,} {'templates' * is_key_map or 'fields'}")
            return
        length_max = self._limits.text_characters_max if is_key_map else 0
        for name, each in value.items():
            if not isinstance(name, str):
                yield _problem(place, f"the field name {describe(name)} is no text")
            elif not is_encodable(name):
                yield _problem((*place, encodable(shortened(name))), why_no_text(name))
            elif len(name) > (length_max or self._limits.name_characters_max):
                yield _problem(place, f'the field name "{shortened(name)}" is too long')
            elif has_control_characters(name):
                yield _problem(place, f"the field name {shortened(name)!r} has control characters")
            else:
                yield from self.problems(each, (*place, name))

    def _text_problems(self, value: str, place: _Place) -> Iterator[SpecProblem]:
        if len(value) > self._limits.text_characters_max:
            yield _problem(place, f"is longer than {self._limits.text_characters_max:,} characters")
        if not is_encodable(value):
            yield _problem(place, why_no_text(value))
        elif place == (_MULTILINE,):
            value = value.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        elif len(place) == 1 and place[0] in _SEPARATORS:
            return
        if has_control_characters(value):
            yield _problem(place, "has control characters")


def _problem(place: _Place, message: str) -> SpecProblem:
    return SpecProblem(shortened(path_of(place)), message)
