"""Whether two jobs could write one and the same name.

Two templates are read side by side, from the left: a literal text against the literal text there, a
number against the number there. Where neither decides, they count as overlapping, though it may be
that no name is made by both. A directory or a prefix of its own always tells a template apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product, zip_longest
from typing import Any, Final, Protocol
from urllib.parse import unquote

from dsort.naming.locations import FileLocation
from dsort.naming.names import archive_extension
from dsort.naming.templates import NumberRange, ShardTemplate, parse_template

ANY_NAME: Final = "*"
"""In place of a template: any name in the bucket."""

COMPARED_MAX: Final = 100_000
"""Pairs of templates with one prefix. What is left of two lists of claims counts as overlapping: it
takes two key maps with hundreds of templates of one prefix each."""

_DIGITS: Final = frozenset("0123456789")
_DIGITS_MAX: Final = 255  # no template counts further
_MAYBE_ARCHIVE: Final = (".tar.lz", "4")
"""The one archive suffix that ends in a digit, so that a number may complete it."""

Claim = Sequence[str]
"""``(bucket URI, template)``: names that a job may write; the template is a final one."""


def templates_overlap(one: ShardTemplate, other: ShardTemplate) -> bool:
    """Whether two templates may make the same name, each as it is: see ``final_templates``. False
    is sure. A template without a range is the one name that its prefix says; then True is sure."""
    if not one.ranges or not other.ranges:
        return _makes(one, other.prefix) if one.ranges else _makes(other, one.prefix)
    end, other_end = one.ranges[-1].gap, other.ranges[-1].gap
    if not (end.endswith(other_end) or other_end.endswith(end)):
        return False
    ours, theirs = _items(one), _items(other)
    for at, (here, there) in enumerate(zip_longest(ours, theirs, fillvalue="")):
        if isinstance(here, NumberRange) and isinstance(there, NumberRange):
            if any(map(_begins_with_digit, (*ours[at + 1 : at + 2], *theirs[at + 1 : at + 2]))):
                return True  # the numbers may end at different places
            if not _have_common(here, there):
                return False
        elif here != there:
            is_number = isinstance(here, NumberRange) or isinstance(there, NumberRange)
            return is_number and _begins_with_digit(here) and _begins_with_digit(there)
    return True


def any_overlap(ours: Iterable[ShardTemplate], theirs: Iterable[ShardTemplate]) -> bool:
    """Whether a template of each side may make the same name, as they are."""
    return any(templates_overlap(one, other) for one, other in product(ours, theirs))


def _items(template: ShardTemplate) -> list[str | NumberRange]:
    """The characters and numbers of names, in order."""
    items: list[str | NumberRange] = [*template.prefix]
    for each in template.ranges:
        items += [each, *each.gap]
    return items


def _begins_with_digit(item: str | NumberRange) -> bool:
    return isinstance(item, NumberRange) or item in _DIGITS


def _have_common(one: NumberRange, other: NumberRange) -> bool:
    """Whether two ranges have a number in common, as far as their ends and steps say."""
    low, high = max(one.start, other.start), min(_last(one), _last(other))
    return low <= high and (one.start - other.start) % math.gcd(one.step, other.step) == 0


def _last(numbers: NumberRange) -> float:
    return math.inf if numbers.count is None else numbers.start + (numbers.count - 1) * numbers.step


def _makes(template: ShardTemplate, name: str) -> bool:
    """Whether ``name`` is one of the names of a template."""
    ends = {len(template.prefix)} if name.startswith(template.prefix) else set[int]()
    for each in template.ranges:
        ends = {
            end + len(each.gap)
            for begin in ends
            for end in _number_ends(each, name, begin)
            if name.startswith(each.gap, end)
        }
    return len(name) in ends


def _number_ends(numbers: NumberRange, name: str, begin: int) -> Iterator[int]:
    """Where in ``name`` a number may end that begins at ``begin``."""
    for end in range(begin + 1, min(begin + _DIGITS_MAX, len(name)) + 1):
        if name[end - 1] not in _DIGITS:
            return
        if _counts(numbers, name[begin:end]):
            yield end


def _counts(numbers: NumberRange, digits: str) -> bool:
    """Whether one of ``numbers`` is written so."""
    index, rest = divmod(int(digits) - numbers.start, numbers.step)
    is_there = not rest and 0 <= index < (math.inf if numbers.count is None else numbers.count)
    return is_there and numbers.number(index) == digits


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
    if last.gap or not literal.endswith(before) or not _counts(last, number):
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
    """A pair of claims, one of each side, that may mean the same object; None without.

    URIs are canonical (``BucketRef.uri`` with symbolic links resolved), so that a directory in
    another one, or a prefix in another one, is told by its name. ``ValueError`` for a broken
    template.
    """
    return next(((one, other) for (_, one), (_, other) in _conflicts([ours, theirs])), None)


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
    """Pairs of ``groups``, by number, of which a claim each may mean the same object: for each
    group the first one before it."""
    first: dict[int, int] = {}
    for (before, _), (number, _) in _conflicts(groups):
        first[number] = min(before, first.get(number, before))
    for number in sorted(first):
        yield first[number], number


def _conflicts(groups: Sequence[Sequence[Claim]]) -> Iterator[list[tuple[int, Claim]]]:
    """Pairs of claims of two groups, each after the number of its group, the lower one first. Each
    claim is read once, and compared with those whose prefix its own prefix begins with."""
    claims = [(_absolute(each), (n, each)) for n, group in enumerate(groups) for each in group]
    claims.sort(key=lambda each: each[0].prefix)
    # By group: a key map has thousands of templates, which are not compared with each other.
    begun: list[list[tuple[ShardTemplate, tuple[int, Claim]]]] = [[] for _ in groups]
    compared = 0
    for template, numbered in claims:
        for number, stack in enumerate(begun):
            while stack and not template.prefix.startswith(stack[-1][0].prefix):
                stack.pop()
            for other, earlier in stack if number != numbered[0] else ():
                compared += 1
                is_any = ANY_NAME in (numbered[1][1], earlier[1][1])
                if is_any or compared > COMPARED_MAX or templates_overlap(template, other):
                    yield sorted((earlier, numbered), key=lambda each: each[0])
        begun[numbered[0]].append((template, numbered))


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
        return any(
            _makes(template, name)
            for length in lengths
            for template in by_prefix.get(name[:length], ())
        )

    return {name for name in names if is_made(name)}


def _absolute(claim: Claim) -> ShardTemplate:
    """The template of whole addresses, so that buckets within buckets need no rules."""
    uri, text = claim
    template = _parsed(text) if text != ANY_NAME else ShardTemplate(text, "fmt", "", ())
    return replace(template, prefix=f"{_decoded(uri).removesuffix('/')}/{template.prefix}")


def _decoded(uri: str) -> str:
    return unquote(uri, errors="surrogateescape")


def _parsed(text: str) -> ShardTemplate:
    if text and not any(sign in text for sign in "{}@%"):
        return ShardTemplate(text, "fmt", text, ())
    return parse_template(text)
