"""Whether two jobs could write the same name.

Two templates are compared from the left: literal text with literal text, numbers with numbers. If
this comparison does not decide, the templates count as overlapping, even if they have no name in
common. A template with a directory or a prefix of its own never overlaps with others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product, zip_longest
from typing import Any, Final, Protocol
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from dsort.naming.inputs import Braces, InputTemplate, Part
from dsort.naming.names import archive_extension, shortened, with_extension
from dsort.naming.patterns import FileLocation
from dsort.naming.templates import NumberRange, ShardTemplate, parse_template

ANY_NAME: Final = "*"
"""In place of a template: any name in the bucket."""

COMPARED_MAX: Final = 100_000
"""The number of pairs of templates with a common prefix that are compared. All further pairs count
as overlapping: only two key maps, each with hundreds of templates of one prefix, have so many."""

_DIGITS: Final = frozenset("0123456789")
_DIGITS_MAX: Final = 255  # no template makes longer numbers
_MAYBE_ARCHIVE: Final = (".tar.lz", "4")
"""The one archive suffix that ends in a digit, so that a number may complete it."""

Claim = Sequence[str]
"""``(bucket URI, template)``: names that a job may write. The template is one of
``final_templates``."""


def templates_overlap(one: ShardTemplate, other: ShardTemplate) -> bool:
    """Whether two templates may make the same name, without appended extensions (see
    ``final_templates``). False is certain. A template without a range makes one name, its prefix;
    for such templates, the answer True is certain, too."""
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
    """Whether some template of the one side and some template of the other may make the same name;
    see ``templates_overlap``."""
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
    """Whether two ranges may have a number in common, by their ends and steps."""
    low, high = max(one.start, other.start), min(_last(one), _last(other))
    return low <= high and (one.start - other.start) % math.gcd(one.step, other.step) == 0


def _last(numbers: NumberRange) -> float:
    return numbers.start + (numbers.limit - 1) * numbers.step


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
    """The places in ``name`` where a number of ``numbers`` that begins at ``begin`` may end."""
    for end in range(begin + 1, min(begin + _DIGITS_MAX, len(name)) + 1):
        if name[end - 1] not in _DIGITS:
            return
        if _counts(numbers, name[begin:end]):
            yield end


def _counts(numbers: NumberRange, digits: str) -> bool:
    """Whether one of ``numbers`` is written as ``digits``."""
    index, rest = divmod(int(digits) - numbers.start, numbers.step)
    is_there = not rest and 0 <= index < numbers.limit
    return is_there and numbers.number(index) == digits


def final_templates(text: str, extension: str) -> tuple[str, ...]:
    """The templates that make the names of ``text`` with ``extension`` appended to names without an
    archive suffix: nearly always one template.

    Of ``x.tar.lz%d`` there are two, because ``x.tar.lz4`` has a suffix, and ``x.tar.lz5`` becomes
    ``x.tar.lz5.tar``.
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
    # In each style, the text before the last range ends in the literal before this range.
    return (f"{text[: text.rindex(before) + len(before)]}{{{number}..{number}}}", appended)


class HasOutputs(Protocol):
    """The part of a spec that decides the names of outputs."""

    ekm: Mapping[str, Any] | None
    ekm_file: FileLocation | None
    ekm_default: str | None
    keep_shards: bool

    @property
    def names_extension(self) -> str: ...

    @property
    def names_suffix(self) -> str: ...

    @property
    def output_templates(self) -> Sequence[tuple[str, str, str]]: ...


def claims_of(spec: HasOutputs, output_uris: Mapping[str, str]) -> list[list[str]] | None:
    """The names that a job may write to its buckets, as JSON values: pairs of a URI and a final
    template. ``output_uris``: the URIs of output buckets by place, "" for the main bucket (see
    ``storage.routed``). A job that keeps the names of its inputs may write any name, because these
    names are unknown before it lists its inputs. None for an external key map in a file, which is
    not read yet.
    """
    if spec.keep_shards:
        return [[output_uris[""], ANY_NAME]]
    if spec.ekm_file is not None:
        return None
    if spec.ekm is not None:
        templates = [*spec.ekm, *filter(None, (spec.ekm_default,))]
        texts = [(text, spec.names_extension, "") for text in templates]
    else:
        texts = list(spec.output_templates)
    claims = (
        (output_uris[place], f"{each}{spec.names_suffix}")
        for text, extension, place in texts
        for each in final_templates(text, extension)
    )
    return [list(each) for each in dict.fromkeys(claims)]


def first_conflict(ours: Sequence[Claim], theirs: Sequence[Claim]) -> tuple[Claim, Claim] | None:
    """A pair of claims, one from each side, that may name the same object; None if no pair may.

    URIs have to be canonical (``BucketRef.uri`` with symbolic links resolved), so that a directory
    or a prefix inside another one is recognised by its name. ``ValueError`` for a broken template.
    """
    return next(((one, other) for (_, one), (_, other) in _conflicts([ours, theirs])), None)


def claim_on(claims: Sequence[Claim], uri: str, name: str) -> Claim | None:
    """The first claim of ``claims`` that may name the object ``name`` of the bucket ``uri``; None
    if no claim may. ``name`` is never a template, whatever characters it has. URIs and
    ``ValueError`` as for :func:`first_conflict`."""
    for claim in claims:
        inside = _name_within(uri, name, claim[0])
        if inside is not None and (claim[1] == ANY_NAME or names_made([claim[1]], [inside])):
            return claim
    return None


def is_within(uri: str, name: str, other: str) -> bool:
    """Whether the object ``name`` of the bucket ``uri`` is also an object of the bucket
    ``other``."""
    return _name_within(uri, name, other) is not None


def _name_within(uri: str, name: str, other: str) -> str | None:
    whole = f"{_decoded(uri).removesuffix('/')}/{name}"
    start = f"{_decoded(other).removesuffix('/')}/"
    return whole.removeprefix(start) if whole.startswith(start) else None


def conflicts_among(groups: Sequence[Sequence[Claim]]) -> Iterator[tuple[int, int]]:
    """Pairs (earlier, later) of numbers of ``groups`` whose claims may name the same object. A
    group that conflicts with several earlier groups is in one pair, with the first of them."""
    first: dict[int, int] = {}
    for (before, _), (number, _) in _conflicts(groups):
        first[number] = min(before, first.get(number, before))
    for number in sorted(first):
        yield first[number], number


def _conflicts(groups: Sequence[Sequence[Claim]]) -> Iterator[list[tuple[int, Claim]]]:
    """Pairs of conflicting claims of two groups, each as (number of its group, claim), the lower
    number first. Claims are sorted by prefix. A claim is compared only with the claims whose prefix
    is a beginning of its own prefix."""
    claims = [(_absolute(each), (n, each)) for n, group in enumerate(groups) for each in group]
    claims.sort(key=lambda each: each[0].prefix)
    # One stack for each group: a key map has thousands of templates, which are not compared with
    # each other.
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
    """The ``names`` that some template makes; see ``final_templates``. ``ValueError`` for a broken
    template. ``ANY_NAME`` does not count, because it does not show to which output a name
    belongs."""
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
    """The template of a claim with the bucket's URI in front, so that buckets inside of buckets
    need no rules of their own."""
    uri, text = claim
    template = _parsed(text) if text != ANY_NAME else ShardTemplate(text, "fmt", "", ())
    return replace(template, prefix=f"{_decoded(uri).removesuffix('/')}/{template.prefix}")


def _decoded(uri: str) -> str:
    return unquote(uri, errors="surrogateescape")


def _parsed(text: str) -> ShardTemplate:
    if text and not any(sign in text for sign in "{}@%"):
        return ShardTemplate(text, "fmt", text, ())
    return parse_template(text)


NAMES_LOOKED_AT_MAX: Final = 100_000
BRANCHES_MAX: Final = 1000
REPEATS_SHOWN_MAX: Final = 10


class Repeat(Struct, frozen=True):
    """The parts ``first`` and ``second`` (which may be the same part) both make ``name``. ``name``
    is "" if it is only possible that they share a name."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        one, other = shortened(self.first), shortened(self.second)
        where = f'"{one}" makes it' if one == other else f'in "{one}" and in "{other}"'
        if self.name:
            return f'names "{self.name}" twice: {where}{" twice" if one == other else ""}'
        if one == other:
            return f'may name a shard twice: "{one}" may make one name in several ways'
        return f"may name a shard twice: {where}"


def find_repeats(template: InputTemplate, extension: str) -> list[Repeat]:
    """Names that appear twice: one name for each of the first few pairs of parts. ``extension`` is
    appended to names without an archive suffix."""
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
    """The templates for which ``part`` stands, with their extension. Only numbers vary in each.
    None if there are more than ``BRANCHES_MAX``."""
    if isinstance(part, ShardTemplate):
        return [_extended(part, extension)]
    if isinstance(part, Braces) and part.branch_count > BRANCHES_MAX:
        return None
    return [_extended(branch, extension) for branch in part.branches()]


def _extended(template: ShardTemplate, extension: str) -> ShardTemplate:
    if not template.ranges:
        text = with_extension(template.prefix, extension)
        return ShardTemplate(template.text, template.style, text, ())
    *before, last = template.ranges
    if archive_extension(last.gap) or archive_extension(template.text):
        return template
    longer = NumberRange(last.start, last.step, last.count, last.width, last.gap + extension)
    return ShardTemplate(template.text, template.style, template.prefix, (*before, longer))


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
    """Whether each row of digits has at most one number of varying width, so that the length of the
    row shows where each number begins."""
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
