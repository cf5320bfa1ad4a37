"""Templates that name inputs: the syntax of output templates, and further forms that users of
WebDataset know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from dsort.naming.names import shortened, with_extension
from dsort.naming.templates import NumberRange, ShardTemplate, parse_bash_range, parse_template

NAMES_MAX: Final = 10_000_000
"""An input template stands for at most this many names (AIStore's limit)."""

_TAILS_HELD_MAX = 1000
_GROUP = re.compile(r"\{([^{}]*)\}")
_LETTERS = re.compile(r"[A-Za-z]\.\.[A-Za-z](\.\.[0-9]+)?")
_GLOB_SIGNS = re.compile(r"[*?\[\]]")


class _Name(Struct, frozen=True):
    """One name without any range."""

    text: str

    @property
    def count(self) -> int:
        return 1

    def name(self, index: int) -> str:
        return (self.text,)[index]

    def __iter__(self) -> Iterator[str]:
        return iter((self.text,))

    def branches(self) -> Iterator[ShardTemplate]:
        """The name as a template without a range."""
        yield ShardTemplate(self.text, "bash", self.text, ())


class Braces(Struct, frozen=True):
    """Literal texts, alternatives and number ranges in a row, which stand for all of their
    combinations. Each pool at an even place is one literal text."""

    text: str
    pools: tuple[Sequence[str] | NumberRange, ...]

    @property
    def count(self) -> int:
        return prod(_size(pool) for pool in self.pools)

    def name(self, index: int) -> str:
        pieces = []
        for pool in reversed(self.pools):
            index, digit = divmod(index, _size(pool))
            pieces.append(pool.number(digit) if isinstance(pool, NumberRange) else pool[digit])
        return "".join(reversed(pieces))

    @property
    def branch_count(self) -> int:
        """The number of :meth:`branches`."""
        return prod(len(pool) for pool in self.pools if not isinstance(pool, NumberRange))

    def __iter__(self) -> Iterator[str]:
        # product() would hold all numbers of each range, up to ten million.
        ranged = [at for at, pool in enumerate(self.pools) if isinstance(pool, NumberRange)]
        if not ranged:
            return map("".join, product(*map(_texts, self.pools)))
        first = ranged[0]
        before, numbers, after = self.pools[:first], self.pools[first], self.pools[first + 1 :]
        assert isinstance(numbers, NumberRange)
        rest_of_name = Braces(self.text, after)
        tail = [*rest_of_name] if rest_of_name.count <= _TAILS_HELD_MAX else rest_of_name
        return (
            f"{head}{numbers.number(index)}{rest}"
            for head in map("".join, product(*map(_texts, before)))
            for index in range(numbers.count or 0)
            for rest in tail
        )

    def branches(self) -> Iterator[ShardTemplate]:
        """For each choice of alternatives one template whose only variable parts are numbers."""
        choices: list[Sequence[str | NumberRange]] = [
            (pool,) if isinstance(pool, NumberRange) else pool for pool in self.pools
        ]
        for items in product(*choices):
            prefix, ranges = "", list[NumberRange]()
            for item in items:
                if isinstance(item, NumberRange):
                    ranges.append(item)
                elif ranges:
                    ranges[-1] = replace(ranges[-1], gap=ranges[-1].gap + item)
                else:
                    prefix += item
            yield ShardTemplate(self.text, "bash", prefix, tuple(ranges))


Part = ShardTemplate | Braces | _Name


class InputTemplate(Struct, frozen=True):
    """A parsed input template. Iterating yields its names in order, as written (no extension)."""

    text: str
    parts: tuple[Part, ...]

    @property
    def count(self) -> int:
        """The number of names, at most ``NAMES_MAX``."""
        return sum(part.count or 0 for part in self.parts)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    @property
    def first_names(self) -> tuple[str, ...]:
        """The first name of each of the ``::``-joined parts, which is enough to check the form of
        all names."""
        return tuple(part.name(0) for part in self.parts)

    def shapes(self) -> Iterator[str]:
        """One name for each choice of alternatives. All other names differ from these only in
        digits, so that a check of these names covers all."""
        for part in self.parts:
            if isinstance(part, Braces):
                first = (
                    (pool.number(0),) if isinstance(pool, NumberRange) else pool
                    for pool in part.pools
                )
                yield from map("".join, product(*first))
            else:
                yield part.name(0)

    @property
    def shape_count(self) -> int:
        """The number of :meth:`shapes`."""
        return sum(part.branch_count if isinstance(part, Braces) else 1 for part in self.parts)


def parse_input_template(text: str) -> InputTemplate:
    """Parse the input template ``text``. A name without a range stands for that one shard.

    ``a-{00..09}::b-{00..19}`` joins templates with ``::``. A brace group that is no range of
    numbers is read as bash and WebDataset read it: alternatives ``{train,val}`` and letters
    ``{a..c}``. Number ranges follow AIStore's rules everywhere, also beside such a group. Braces
    cannot be nested.

    ``ValueError`` for a template that is broken, has no end (``%d``) or names more than
    ``NAMES_MAX`` shards, and for a text that is neither a template nor a name.
    """
    template = InputTemplate(text, tuple(_parse_part(part, text) for part in text.split("::")))
    if template.count > NAMES_MAX:
        raise ValueError(
            f"too many values in template {shortened(text)!r} (more than {NAMES_MAX} max)"
        )
    return template


def expand_inputs(text: str, extension: str) -> Iterator[str]:
    """All names of the input template ``text``, in order, one at a time, with ``extension``
    appended to names without an archive suffix. ``ValueError`` as in :func:`parse_input_template`;
    a name may appear twice (see :mod:`dsort.naming.overlap`)."""
    return (with_extension(name, extension) for name in parse_input_template(text))


def _parse_part(part: str, text: str) -> Part:
    if not part:
        raise ValueError(
            f"template {shortened(text)!r} has an empty part" if text else "empty range template"
        )
    groups = _GROUP.findall(part)
    if any(_is_word_group(inside) for inside in groups):
        return _parse_braces(part)
    if not any(sign in part for sign in "{}@%"):
        return _parse_name(part)
    template = parse_template(part)
    if template.count is None:
        raise ValueError(
            f"template {shortened(part)!r} has no end: an input template must be bounded "
            "(expecting e.g. 'prefix-{000000..000999}')"
        )
    return template


def _is_word_group(inside: str) -> bool:
    return "," in inside or _LETTERS.fullmatch(inside) is not None


def _parse_name(part: str) -> _Name:
    if _GLOB_SIGNS.search(part):
        raise ValueError(
            f'{shortened(part)!r} looks like a glob: write {{"glob": "{shortened(part)}"}}'
        )
    if part.endswith("/"):
        raise ValueError(
            f"{shortened(part)!r} names no shard: "
            f'write {{"prefix": "{shortened(part)}"}} for every shard whose name begins so'
        )
    return _Name(part)


def _parse_braces(part: str) -> Braces:
    pools: list[Sequence[str] | NumberRange] = []
    position = 0
    for match in _GROUP.finditer(part):
        pools.append((part[position : match.start()],))
        pools.append(_parse_group(match[1], part))
        position = match.end()
    pools.append((part[position:],))
    if any(sign in pool[0] for pool in pools[::2] if isinstance(pool, tuple) for sign in "{}"):
        _refuse(part, "braces are nested or without partner")
    return Braces(part, tuple(pools))


def _parse_group(inside: str, part: str) -> Sequence[str] | NumberRange:
    if not _is_word_group(inside):
        return parse_bash_range(inside, "", part)
    if "," in inside and ".." in inside:
        _refuse(part, f"{{{shortened(inside)}}} mixes alternatives with a range")
    from braceexpand import braceexpand  # few templates have words in braces

    return tuple(braceexpand(f"{{{inside}}}", escape=False))


def _size(pool: Sequence[str] | NumberRange) -> int:
    return (pool.count or 0) if isinstance(pool, NumberRange) else len(pool)


def _texts(pool: Sequence[str] | NumberRange) -> Sequence[str]:
    return pool if not isinstance(pool, NumberRange) else [*map(pool.number, range(_size(pool)))]


def _refuse(part: str, reason: str) -> NoReturn:
    raise ValueError(
        f"invalid 'bash' template {shortened(part)!r}: {reason} (join templates with '::' instead, "
        "expecting e.g. 'train-{000..099}::val-{00..09}')"
    )
