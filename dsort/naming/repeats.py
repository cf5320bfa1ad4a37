"""Whether an input template names a shard twice: then its records would be in a job twice.

Up to 100,000 names are compared one by one. Of larger templates only the shape is checked: whether
the numbers in a name can be told apart, and whether the names of different parts differ. A template
is refused if that does not prove that each shard is named once; this takes ranges of different
widths that are next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from msgspec import Struct

from dsort.naming.inputs import Braces, InputTemplate, Part
from dsort.naming.names import archive_extension, shortened, with_extension
from dsort.naming.overlap import any_overlap
from dsort.naming.templates import NumberRange, ShardTemplate

NAMES_LOOKED_AT_MAX: Final = 100_000
BRANCHES_MAX: Final = 1000
REPEATS_SHOWN_MAX: Final = 10
_DIGITS: Final = frozenset("0123456789")


class Repeat(Struct, frozen=True):
    """The parts ``first`` and ``second`` (which may be the same part) both make ``name``. ``name``
    is "" if they possibly make a common name."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        one, other = shortened(self.first), shortened(self.second)
        where = f'"{one}" makes it' if one == other else f'in "{one}" and in "{other}"'
        if self.name:
            return f'names "{self.name}" twice: {where}{" twice" if one == other else ""}'
        if one == other:
            return f'may name a shard twice: "{one}" makes names of which it is not clear how'
        return f"may name a shard twice: {where}"


def find_repeats(template: InputTemplate, extension: str) -> list[Repeat]:
    """The names that appear twice: one for each pair of parts, and only the first few pairs.
    ``extension`` is appended to names without an archive suffix."""
    if all(map(_is_single, template.parts)) and len(template.parts) == 1:
        return []
    if template.count <= NAMES_LOOKED_AT_MAX:
        return _looked_at(template, extension)
    return [*_by_shape(template, extension)][:REPEATS_SHOWN_MAX]


def _looked_at(template: InputTemplate, extension: str) -> list[Repeat]:
    owners: dict[str, int] = {}
    found: dict[tuple[int, int], Repeat] = {}
    for at, part in enumerate(template.parts):
        for text in part:
            name = with_extension(text, extension)
            owner = owners.get(name)
            if owner is None:
                owners[name] = at
            elif (owner, at) not in found and len(found) < REPEATS_SHOWN_MAX:
                found[owner, at] = Repeat(name, template.parts[owner].text, part.text)
    return [*found.values()]


def _by_shape(template: InputTemplate, extension: str) -> Iterator[Repeat]:
    for part in template.parts:
        if not _tells_its_numbers(part):
            yield Repeat("", part.text, part.text)
    if len(template.parts) == 1:
        return
    branches = [_branches(part, extension) for part in template.parts]
    for (one, these), (other, those) in combinations(zip(template.parts, branches, strict=True), 2):
        if these is None or those is None or any_overlap(these, those):
            yield Repeat("", one.text, other.text)


def _branches(part: Part, extension: str) -> list[ShardTemplate] | None:
    """The templates that ``part`` stands for, whose only variable parts are numbers, with their
    extension; None if there are more than ``BRANCHES_MAX``."""
    if isinstance(part, ShardTemplate):
        return [_extended(part, extension)]
    if isinstance(part, Braces) and part.branch_count > BRANCHES_MAX:
        return None
    return [_extended(branch, extension) for branch in part.branches()]


def _extended(template: ShardTemplate, extension: str) -> ShardTemplate:
    *before, last = template.ranges or (None,)
    if last is None:
        text = with_extension(template.prefix, extension)
        return ShardTemplate(template.text, template.style, text, ())
    if archive_extension(last.gap) or archive_extension(template.text):
        return template
    longer = NumberRange(last.start, last.step, last.count, last.width, last.gap + extension)
    ranges = (*(each for each in before if each is not None), longer)
    return ShardTemplate(template.text, template.style, template.prefix, ranges)


# --- one part by itself --------------------------------------------------------------------------


def _is_single(part: Part) -> bool:
    """Whether ``part`` has at most one counter, and so cannot name a shard twice;
    ``{0..11}{0..11}`` can (1, 11 and 11, 1)."""
    return not isinstance(part, Braces) and (
        not isinstance(part, ShardTemplate) or len(part.ranges) == 1
    )


def _tells_its_numbers(part: Part) -> bool:
    """Whether the numbers and alternatives that made a name of ``part`` can be read from it."""
    if _is_single(part):
        return True
    if isinstance(part, ShardTemplate):
        return _is_readable(part.ranges)
    if not isinstance(part, Braces):
        return True
    words = [pool for pool in part.pools if not isinstance(pool, NumberRange)]
    if any(len(set(pool)) < len(pool) for pool in words):
        return False
    numbers = [pool for pool in part.pools if isinstance(pool, NumberRange)]
    uneven = sum(len({*map(len, pool)}) > 1 for pool in words) + sum(map(_is_uneven, numbers))
    if uneven <= 1:  # the length of a name determines where everything is
        return True
    if part.branch_count > BRANCHES_MAX:
        return False
    branches = [*part.branches()]
    return all(_is_readable(branch.ranges) for branch in branches) and not any(
        any_overlap([one], [other]) for one, other in combinations(branches, 2)
    )


def _is_readable(ranges: tuple[NumberRange, ...]) -> bool:
    """Whether no two numbers of varying width are in one row of digits: then the length of the row
    determines where each number begins."""
    uneven = 0
    for each in ranges:
        uneven += _is_uneven(each)
        if uneven > 1:
            return False
        if not _DIGITS.issuperset(each.gap):
            uneven = 0
    return True


def _is_uneven(numbers: NumberRange) -> bool:
    return len(numbers.number(0)) != len(numbers.number((numbers.count or 1) - 1))
