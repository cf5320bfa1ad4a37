"""Templates: one text that stands for a range of shard names. The syntax is that of AIStore
(cmn/cos/template.go), so that its users get the names that they expect."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import count, islice
from math import prod
from typing import Final, Literal, NoReturn

from msgspec import Struct

from dsort.naming.names import shortened

Style = Literal["bash", "at", "fmt", "field"]

COUNT_MAX: Final = 2**63 - 1
"""Numbers in a template, and the number of its names, fit in 64 bits with a sign."""

TEXT_CHARACTERS_MAX: Final = 8192
"""More than twice as long as any name in a file system or a store."""

SPLIT_FIELD: Final = "{split}"
"""The field in ``output_format`` that is replaced by the ``split`` of the spec: a text, not a
number."""

_WIDTH_MAX = 255  # digits; no file name is longer
_EXAMPLES: dict[Style, str] = {
    "bash": "prefix-{0001..0010..1}-suffix",
    "at": "prefix-@00100-gap-@100-suffix",
    "fmt": "prefix-%06d-suffix",
    "field": "prefix-{n:05d}-of-{total:05d}",
}
_INTEGER = re.compile(r"-?[0-9]+")
_AT = re.compile(r"@([0-9]*)")
_FMT = re.compile(r"%(?:0([0-9]+))?d")
_BASH_RANGE: Final = re.compile(r"\{[0-9]+\.\.[^{}]*\}")
_FIELD = re.compile(r"\{([A-Za-z_]\w*(?::[^{}]*)?)\}", re.ASCII)
_FIELD_WIDTH = re.compile(r"(?::(?:0([0-9]+))?d)?")


class NumberRange(Struct, frozen=True):
    """One counter of a template: ``count`` numbers ``start``, ``start + step``, ..., each padded
    with zeros to ``width`` digits, and the literal text ``gap`` up to the next counter.

    ``is_total``: the range is no counter, but stands for the number of all names."""

    start: int
    step: int
    count: int | None  # None: without end
    width: int
    gap: str
    is_total: bool = False

    @property
    def limit(self) -> float:
        """``count``, or infinity for a counter without end."""
        return math.inf if self.count is None else self.count

    def number(self, index: int) -> str:
        """The ``index``-th number, padded."""
        return f"{self.start + index * self.step:0{self.width}d}"


class ShardTemplate(Struct, frozen=True):
    """A parsed template: ``prefix``, then for each range its number and its gap. The last range
    varies fastest.

    Iterating yields all names in order (without end if ``count`` is None).
    """

    text: str
    style: Style
    prefix: str
    ranges: tuple[NumberRange, ...]

    @property
    def count(self) -> int | None:
        """The number of names; None for ``fmt`` and ``field`` templates, which have no end."""
        counts = [each.count for each in self.ranges]
        return prod(n for n in counts if n is not None) if None not in counts else None

    @property
    def limit(self) -> float:
        """``count``, or infinity for a template without end."""
        return prod(each.limit for each in self.ranges)

    @property
    def counter(self) -> NumberRange | None:
        """The only range that counts; None if there are several."""
        counters = [each for each in self.ranges if not each.is_total]
        return counters[0] if len(counters) == 1 else None

    @property
    def has_total(self) -> bool:
        """Whether names contain the number of all names."""
        return any(each.is_total for each in self.ranges)

    def name(self, index: int, total_names: int | None = None) -> str:
        """The ``index``-th name, from 0 on, without making the others. ``IndexError`` if there is
        none.

        ``total_names``: the number of all names, for templates that contain it; None: this name
        counts as the last one."""
        total = self.count
        if index < 0 or (total is not None and index >= total):
            raise IndexError(
                f"template {shortened(self.text)!r} has {total} names, none at index {index}"
            )
        pieces = []
        for each in reversed(self.ranges):
            digit = index
            if each.is_total:
                digit = max(index + 1, 1) if total_names is None else total_names
            elif each.count is not None:
                index, digit = divmod(index, each.count)
            pieces.append(each.number(digit) + each.gap)
        pieces.append(self.prefix)
        return "".join(reversed(pieces))

    def __iter__(self) -> Iterator[str]:
        total = self.count
        if self.has_total:
            raise ValueError(f"the number of names of {shortened(self.text)!r} is not known yet")
        if len(self.ranges) > 1 and total is not None:
            return map(self.name, range(total))
        # Nearly all templates have one counter; this is four times as fast for them.
        each = self.ranges[0]
        step, spec = each.step, f"0{each.width}d"
        numbers = islice(count(each.start, step), total)
        return (f"{self.prefix}{number:{spec}}{each.gap}" for number in numbers)


def parse_template(text: str) -> ShardTemplate:
    """Parse the template ``text``. ``ValueError`` for a text without a range, or with a broken one.

    ========  ============================  =================================================
    style     example                       names
    ========  ============================  =================================================
    ``bash``  ``s-{00..18}``                ``s-00`` to ``s-18``; step: ``{0010..0013..2}``
    ``at``    ``s-@099``                    ``s-000`` to ``s-099``: from 0 up to the number
    ``fmt``   ``s-%06d``                    ``s-000000`` and on, without end
    ========  ============================  =================================================

    The styles are tried in this order. A brace without its partner is an error, on purpose: AIStore
    would treat the text as a prefix."""
    if not text:
        raise ValueError("empty range template")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError(
            f"template {shortened(text)!r} is longer than {TEXT_CHARACTERS_MAX} characters"
        )
    if _FIELD.search(text):
        return _parse_fields(text)
    if "{" in text or "}" in text:
        return _parse_bash(text)
    if "@" in text:
        return _parse_at(text)
    if "%" in text:
        return _parse_fmt(text)
    raise ValueError(
        f"no range in template {shortened(text)!r} (expecting e.g. {_EXAMPLES['bash']!r})"
    )


def _parse_bash(text: str) -> ShardTemplate:
    prefix, brace, rest = text.partition("{")
    if not brace:
        _refuse("bash", text, "'}' without a '{' before it")
    if "}" in prefix:
        _refuse("bash", text, "'}' before the first '{'")
    ranges = []
    while brace:
        inside, closing, after = rest.partition("}")
        if not closing:
            _refuse("bash", text, "'{' without a '}' after it")
        if "{" in inside:
            _refuse("bash", text, "braces are nested, or a '}' is missing")
        gap, brace, rest = after.partition("{")
        if brace and "}" in gap:
            _refuse("bash", text, "'}' without a '{' before it")
        ranges.append(parse_bash_range(inside, gap, text))
    return _checked(ShardTemplate(text, "bash", prefix, tuple(ranges)))


def parse_bash_range(inside: str, gap: str, text: str) -> NumberRange:
    """The range ``{inside}`` of the template ``text``, with the ``gap`` after it."""
    parts = inside.split("..")
    if not 2 <= len(parts) <= 3 or not all(map(_INTEGER.fullmatch, parts)):
        _refuse("bash", text, f"{{{shortened(inside)}}} is not a range of numbers")
    start, end, *steps = (_integer("bash", part, text) for part in parts)
    step = steps[0] if steps else 1
    if start < 0:
        _refuse("bash", text, "'start' is negative")
    if start > end:
        _refuse("bash", text, "'start' cannot be greater than 'end'")
    if step <= 0:
        _refuse("bash", text, "'step' is non-positive")
    # As in AIStore: the shorter bound decides.
    width = _width("bash", min(len(parts[0]), len(parts[1])), text)
    return NumberRange(start, step, (end - start) // step + 1, width, gap)


def _parse_at(text: str) -> ShardTemplate:
    prefix = text.partition("@")[0]
    ranges = []
    for match in _AT.finditer(text):
        digits = match[1]
        if not digits:
            _refuse("at", text, "'@' without a number after it")
        gap = text[match.end() :].partition("@")[0]
        end = _integer("at", digits, text)
        ranges.append(NumberRange(0, 1, end + 1, _width("at", len(digits), text), gap))
    return _checked(ShardTemplate(text, "at", prefix, tuple(ranges)))


def _parse_fmt(text: str) -> ShardTemplate:
    if text.count("%") > 1:
        _refuse("fmt", text, "more than one '%'")
    match = _FMT.search(text)
    if match is None:
        _refuse("fmt", text, "only %d and %0Nd are numbers")
    width = _width("fmt", _integer("fmt", match[1] or "0", text), text)
    counter = NumberRange(0, 1, None, width, text[match.end() :])
    return ShardTemplate(text, "fmt", text[: match.start()], (counter,))


def _parse_fields(text: str) -> ShardTemplate:
    ranges: list[NumberRange] = []
    fields = [*_FIELD.finditer(text)]
    literals = [text[: fields[0].start()]]
    for match, after in zip(fields, [*fields[1:], None], strict=True):
        name, colon, spec = match[1].partition(":")
        literals.append(text[match.end() : after.start() if after else len(text)])
        if match[0] == SPLIT_FIELD:
            _refuse("field", text, f"{SPLIT_FIELD} is known only in output_format")
        if name not in ("n", "total"):
            known = f"{{n}}, {{n:05d}}, {{total:05d}} and {SPLIT_FIELD}"
            _refuse("field", text, f"unknown field {{{shortened(name)}}}, known are {known}")
        is_total = name == "total"
        if any(each.is_total == is_total for each in ranges):
            _refuse("field", text, f"{{{name}}} is there more than once")
        width = _FIELD_WIDTH.fullmatch(colon + spec)
        if width is None:
            _refuse("field", text, f"{{{shortened(match[1])}}} is no number: write {{{name}:05d}}")
        digits = _width("field", _integer("field", width[1] or "0", text), text)
        ranges.append(NumberRange(0, 1, None, digits, literals[-1], is_total))
    for other in (_FMT, _BASH_RANGE):
        found = next(filter(None, map(other.search, literals)), None)
        if found is not None:
            counter = shortened(found[0])
            _refuse("field", text, f"{counter} is another counter beside {{n}} and {{total}}")
    if any("{" in literal or "}" in literal for literal in literals):
        _refuse("field", text, "there is a brace that belongs to no field")
    if all(each.is_total for each in ranges):
        _refuse("field", text, "{n} is missing: all shards would have one name")
    if any(literal.endswith(".tar.lz") for literal in literals[:-1]):
        _refuse("field", text, "a number after .tar.lz may make the suffix .tar.lz4")
    return ShardTemplate(text, "field", literals[0], tuple(ranges))


def _integer(style: Style, digits: str, text: str) -> int:
    # int() refuses very long rows of digits with another message.
    value = int(digits) if len(digits) <= _WIDTH_MAX else COUNT_MAX + 1
    if abs(value) > COUNT_MAX:
        _refuse(style, text, f"{shortened(digits)} is too large a number")
    return value


def _width(style: Style, width: int, text: str) -> int:
    if width > _WIDTH_MAX:
        _refuse(style, text, f"numbers of {width} digits are too wide for a name")
    return width


def _checked(template: ShardTemplate) -> ShardTemplate:
    total = template.count
    if total is not None and total > COUNT_MAX:
        what = "combined ranges are" if len(template.ranges) > 1 else "the range is"
        raise ValueError(f"template {shortened(template.text)!r}: {what} too large to expand")
    return template


def _refuse(style: Style, text: str, reason: str) -> NoReturn:
    raise ValueError(
        f"invalid {style!r} template {shortened(text)!r}: {reason} (expecting e.g. "
        f"{_EXAMPLES[style]!r})"
    )
