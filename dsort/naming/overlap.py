"""Whether two jobs could write one and the same name.

A template is read as the machine that accepts its names, a character at a time; two templates
overlap if both machines can get to their ends together. A range of numbers is never written out:
of a number that is read in part, the machine knows the first and the last way to end it, so that
ten million names, or names without end, cost as much as ten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final, Protocol

from dsort.naming.locations import FileLocation
from dsort.naming.names import archive_extension
from dsort.naming.templates import NumberRange, ShardTemplate, parse_template

__all__ = [
    "ANY_NAME",
    "CONFLICT_STEPS_MAX",
    "SEARCH_STEPS_MAX",
    "HasOutputs",
    "any_overlap",
    "claim_on",
    "claims_of",
    "conflicts_among",
    "final_templates",
    "first_conflict",
    "is_within",
    "names_made",
    "templates_overlap",
]

SEARCH_STEPS_MAX: Final = 20_000
"""A comparison that takes more steps than this (half a second) is given up, and its templates count
as overlapping. It takes several counters with large odd steps to come near it."""

CONFLICT_STEPS_MAX: Final = 100_000
"""The same for all comparisons of :func:`first_conflict` together."""

ANY_NAME: Final = "*"
"""In place of a template: any name in the bucket."""

_DIGITS: Final = "0123456789"
_MAYBE_ARCHIVE: Final = (".tar.lz", "4")
"""The one archive suffix that ends in a digit, so that a number may complete it."""

Claim = Sequence[str]
"""``(bucket URI, template)``: names that a job may write; the template is a final one."""


def templates_overlap(one: str, other: str) -> bool:
    """Whether two output templates can make the same name, each as it is: see ``final_templates``.

    A text without a range is the one name that it says. Exact, but for
    :data:`SEARCH_STEPS_MAX`. ``ValueError`` for a broken template.
    """
    return _Search(SEARCH_STEPS_MAX).overlap(_parsed(one), _parsed(other))


def any_overlap(ours: Iterable[ShardTemplate], theirs: Iterable[ShardTemplate]) -> bool:
    """Whether a template of each side make the same name, as they are. True as well if that takes
    more than :data:`CONFLICT_STEPS_MAX` steps to find out."""
    search = _Search(CONFLICT_STEPS_MAX)
    there = [*theirs]
    return any(
        search.overlap(one, other)
        for one in ours
        for other in there
        if one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)
    )


def final_templates(text: str, extension: str) -> tuple[str, ...]:
    """The templates that make the names of ``text`` once ``extension`` is appended to those that
    have no archive suffix: nearly always one.

    ``x.tar.lz%d`` makes ``x.tar.lz4`` beside ``x.tar.lz5.tar``.
    """
    template = parse_template(text)
    last = template.ranges[-1]
    if archive_extension(last.gap) or archive_extension(text):
        return (text,)
    appended = text + extension
    before, number = _MAYBE_ARCHIVE
    literal = template.ranges[-2].gap if len(template.ranges) > 1 else template.prefix
    if last.gap or not literal.endswith(before) or not _makes(last, int(number)):
        return (appended,)
    # Whatever its style: the text up to its last range, which ends in the literal before it.
    return (f"{text[: text.rindex(before) + len(before)]}{{{number}..{number}}}", appended)


class HasOutputs(Protocol):
    """A spec, as far as it says what outputs are called."""

    ekm: Mapping[str, Any] | None
    ekm_file: FileLocation | None
    ekm_default: str | None
    keep_shards: bool

    @property
    def names_extension(self) -> str: ...

    @property
    def output_templates(self) -> Sequence[tuple[str, str, str]]: ...


def claims_of(
    spec: HasOutputs, output_uris: Mapping[str, str], keymap_templates: Sequence[str] | None = None
) -> list[list[str]] | None:
    """The names that a job may write to its buckets, as JSON values: a pair of the URI and a final
    template each. ``output_uris``: by place, "" the main one (see ``storage.output_buckets``). A
    job that keeps the names of its inputs, which nobody knows before it lists them, may write any
    name.

    ``keymap_templates``: those of an external key map in a file, the default one included, once it
    is read; None (it is not known yet what the job writes) without them.
    """
    if spec.keep_shards:
        return [[output_uris[""], ANY_NAME]]
    texts: list[tuple[str, str, str]]
    if spec.ekm_file is not None:
        if keymap_templates is None:
            return None
        texts = [(text, spec.names_extension, "") for text in keymap_templates]
    elif spec.ekm is not None:
        templates = [*spec.ekm, *filter(None, (spec.ekm_default,))]
        texts = [(text, spec.names_extension, "") for text in templates]
    else:
        texts = list(spec.output_templates)
    claims = (
        (output_uris[place], each)
        for text, extension, place in texts
        for each in final_templates(text, extension)
    )
    return [list(each) for each in dict.fromkeys(claims)]


def first_conflict(ours: Sequence[Claim], theirs: Sequence[Claim]) -> tuple[Claim, Claim] | None:
    """The first pair of claims, one of each side, that can mean the same object; None without.

    URIs are canonical (``BucketRef.uri`` with symbolic links resolved), so that a directory in
    another one, or a prefix in another one, is told by its name. ``ValueError`` for a broken
    template.
    """
    there = sorted(((_absolute(claim), claim) for claim in theirs), key=lambda each: each[0].prefix)
    prefixes = [template.prefix for template, _ in there]
    lengths = sorted({len(prefix) for prefix in prefixes})
    search = _Search(CONFLICT_STEPS_MAX)
    for claim in ours:
        template = _absolute(claim)
        for index in _candidates(template.prefix, prefixes, lengths):
            other, theirs_there = there[index]
            if ANY_NAME in (claim[1], theirs_there[1]) or search.overlap(template, other):
                return claim, theirs_there
    return None


def claim_on(claims: Sequence[Claim], uri: str, name: str) -> Claim | None:
    """The first of ``claims`` that may mean the object ``name`` of the bucket ``uri``; None
    without. ``name`` is no template, whatever signs it has. URIs and ``ValueError`` as for
    :func:`first_conflict`."""
    for claim in claims:
        inside = _name_within(uri, name, claim[0])
        if inside is not None and (claim[1] == ANY_NAME or names_made([claim[1]], [inside])):
            return claim
    return None


def is_within(uri: str, name: str, other: str) -> bool:
    """Whether the object ``name`` of the bucket ``uri`` is one of the bucket ``other``, too."""
    return _name_within(uri, name, other) is not None


def _name_within(uri: str, name: str, other: str) -> str | None:
    whole = f"{_decoded(uri).removesuffix('/')}/{name}"
    start = f"{_decoded(other).removesuffix('/')}/"
    return whole.removeprefix(start) if whole.startswith(start) else None


def conflicts_among(groups: Sequence[Sequence[Claim]]) -> Iterator[tuple[int, int]]:
    """Pairs of ``groups``, by number, of which a claim each can mean the same object: for each
    group the first one before it. Each claim is read once, and compared with those alone whose
    names can begin as its own do: a hundred groups are a hundred times one."""
    there = sorted(
        ((_absolute(claim), number) for number, group in enumerate(groups) for claim in group),
        key=lambda each: each[0].prefix,
    )
    prefixes = [template.prefix for template, _ in there]
    lengths = sorted({len(prefix) for prefix in prefixes})
    search = _Search(CONFLICT_STEPS_MAX)
    first: dict[int, int] = {}
    for template, number in there:
        for index in _candidates(template.prefix, prefixes, lengths):
            other, before = there[index]
            if before < first.get(number, number) and search.overlap(template, other):
                first[number] = before
    for number in sorted(first):
        yield first[number], number


def names_made(templates: Iterable[str], names: Iterable[str]) -> set[str]:
    """Those of ``names`` that one of ``templates`` makes; see ``final_templates``. ``ValueError``
    for a broken template. None are made by ``ANY_NAME``: whose they are, it does not say."""
    by_prefix: dict[str, list[ShardTemplate]] = defaultdict(list)
    for text in templates:
        if text == ANY_NAME:
            continue
        template = _parsed(text)
        by_prefix[template.prefix].append(template)
    lengths = sorted({len(prefix) for prefix in by_prefix})

    def is_made(name: str) -> bool:
        literal = ShardTemplate(name, "fmt", name, ())
        return any(
            _Search(SEARCH_STEPS_MAX).overlap(literal, template)
            for length in lengths
            for template in by_prefix.get(name[:length], ())
        )

    return {name for name in names if is_made(name)}


def _candidates(prefix: str, sorted_prefixes: list[str], lengths: list[int]) -> Iterator[int]:
    """Which of the others may have a name in common: one's prefix begins with that of the other."""
    for length in lengths:
        if length < len(prefix):
            shorter = prefix[:length]
            index = bisect_left(sorted_prefixes, shorter)
            while index < len(sorted_prefixes) and sorted_prefixes[index] == shorter:
                yield index
                index += 1
    index = bisect_left(sorted_prefixes, prefix)
    while index < len(sorted_prefixes) and sorted_prefixes[index].startswith(prefix):
        yield index
        index += 1


def _absolute(claim: Claim) -> ShardTemplate:
    """The template of whole addresses, so that buckets within buckets need no rules."""
    uri, text = claim
    template = _parsed(text) if text != ANY_NAME else ShardTemplate(text, "fmt", "", ())
    return replace(template, prefix=f"{_decoded(uri).removesuffix('/')}/{template.prefix}")


def _decoded(uri: str) -> str:
    first, *rest = uri.split("%")
    data = bytearray(first.encode("utf-8", "surrogateescape"))
    for part in rest:
        try:
            data += bytes.fromhex(part[:2])
        except ValueError:
            data += b"%" + part[:2].encode("utf-8", "surrogateescape")
        data += part[2:].encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "surrogateescape")


def _parsed(text: str) -> ShardTemplate:
    if text and not any(sign in text for sign in "{}@%"):
        return ShardTemplate(text, "fmt", text, ())
    return parse_template(text)


def _makes(numbers: NumberRange, number: int) -> bool:
    index, rest = divmod(number - numbers.start, numbers.step)
    is_there = not rest and index >= 0 and (numbers.count is None or index < numbers.count)
    return is_there and len(numbers.number(index)) == len(str(number))


# --- a template as a machine ---------------------------------------------------------------------

_State = tuple[int, int, int, int]
"""Where a machine is: ``(item, at, first, last)``.

In a literal text ``at`` characters are read. In a number ``at > 0`` digits are to come, which, read
as a number, are one of ``first``, ``first + step``, ..., ``last``. In a number without end ``at``
is negative: ``-at - 1`` digits have to come at least, the first of them not 0 if ``first``.
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The literal texts (even) and number ranges (odd) of a template, in order."""

    items: tuple[str | NumberRange, ...]

    @classmethod
    def of(cls, template: ShardTemplate) -> _Machine:
        items: list[str | NumberRange] = [template.prefix]
        for each in template.ranges:
            items += [each, each.gap]
        return cls(tuple(items))

    @property
    def end(self) -> _State:
        return (len(self.items), 0, 0, 0)

    def entries(self, item: int) -> Iterator[_State]:
        """Where the machine may be when it comes to ``item``."""
        if item == len(self.items):
            yield self.end
            return
        what = self.items[item]
        if isinstance(what, str):
            if what:
                yield (item, 0, 0, 0)
            else:
                yield from self.entries(item + 1)
            return
        width = max(what.width, 1)
        if what.count is None:
            yield (item, width, 0, 10**width - 1)
            yield (item, -width - 2, 1, 0)
            return
        largest = what.start + (what.count - 1) * what.step
        for digits in range(width, max(width, len(str(largest))) + 1):
            low = 0 if digits == width else 10 ** (digits - 1)
            part = _within(what.start, largest, what.step, low, 10**digits - 1)
            if part is not None:
                yield (item, digits, *part)

    def skipped(self, state: _State) -> Iterator[_State]:
        """Where the machine is once the rest of this number is read."""
        return self.entries(state[0] + 1)

    def after(self, state: _State, character: str) -> Iterator[_State]:
        """Where the machine may be after ``character``; nowhere if it does not take it."""
        item, at, first, last = state
        what = self.items[item]
        if isinstance(what, str):
            if what[at] == character:
                yield from ((item, at + 1, 0, 0),) if at + 1 < len(what) else self.skipped(state)
        elif character not in _DIGITS:
            return
        elif at > 0:
            power = 10 ** (at - 1)
            low = int(character) * power
            part = _within(first, last, what.step, low, low + power - 1)
            if part is None:
                return
            if at == 1:
                yield from self.skipped(state)
            else:
                yield (item, at - 1, part[0] - low, part[1] - low)
        elif not (first and character == "0"):
            at = min(at + 1, -1)
            yield (item, at, 0, 0)
            if at == -1:
                yield from self.skipped(state)


def _within(first: int, last: int, step: int, low: int, high: int) -> tuple[int, int] | None:
    """The first and last of ``first``, ``first + step``, ... ``last`` from ``low`` to ``high``."""
    start = first if first >= low else first + -(-(low - first) // step) * step
    stop = min(last, high)
    if start > stop:
        return None
    return start, start + (stop - start) // step * step


class _Search:
    """Runs two machines side by side over everything that both could read."""

    def __init__(self, steps_max: int) -> None:
        self._steps_left = steps_max

    def overlap(self, one: ShardTemplate, other: ShardTemplate) -> bool:
        """Whether both make one name; True as well if that takes too long to find out."""
        a, b = _Machine.of(one), _Machine.of(other)
        ends = (a.end, b.end)
        todo = [(x, y) for x in a.entries(0) for y in b.entries(0)]
        seen = set(todo)
        steps_left = min(self._steps_left, SEARCH_STEPS_MAX)
        self._steps_left -= steps_left
        while todo:
            pair = todo.pop()
            if pair == ends:
                return True
            steps_left -= 1
            if steps_left < 0:
                return True
            for found in _next_pairs(a, b, *pair):
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        self._steps_left += steps_left
        return False


def _next_pairs(a: _Machine, b: _Machine, x: _State, y: _State) -> Iterator[tuple[_State, _State]]:
    if x == a.end or y == b.end:
        return
    here, there = a.items[x[0]], b.items[y[0]]
    if isinstance(here, str) and isinstance(there, str):
        length = min(len(here) - x[1], len(there) - y[1])
        if here[x[1] : x[1] + length] == there[y[1] : y[1] + length]:
            for after_x in _moved(a, x, here, length):
                for after_y in _moved(b, y, there, length):
                    yield after_x, after_y
        return
    if isinstance(here, NumberRange) and isinstance(there, NumberRange) and x[1] == y[1] > 0:
        # Both end together: whatever number it is, the machines go on in the same places.
        if _have_common(x, here.step, y, there.step):
            yield from ((p, q) for p in a.skipped(x) for q in b.skipped(y))
        return
    literal = here[x[1]] if isinstance(here, str) else there[y[1]] if isinstance(there, str) else ""
    for character in literal or _DIGITS:
        for after_x in a.after(x, character):
            for after_y in b.after(y, character):
                yield after_x, after_y


def _moved(machine: _Machine, state: _State, text: str, length: int) -> Iterator[_State]:
    item, at, _, _ = state
    if at + length < len(text):
        yield (item, at + length, 0, 0)
    else:
        yield from machine.skipped(state)


def _have_common(x: _State, x_step: int, y: _State, y_step: int) -> bool:
    """Whether two arithmetic progressions have a number in common (Chinese remainders)."""
    (_, _, x_first, x_last), (_, _, y_first, y_last) = x, y
    common = gcd(x_step, y_step)
    if (y_first - x_first) % common:
        return False
    modulus = y_step // common
    steps = (y_first - x_first) // common * pow(x_step // common, -1, modulus) % modulus
    meeting, period = x_first + steps * x_step, x_step * modulus
    low, high = max(x_first, y_first), min(x_last, y_last)
    return _within(meeting % period, high, period, low, high) is not None
