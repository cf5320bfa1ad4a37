"""The names of output shards, made from a template or kept from the input shards; and the rule for
when a shard is full."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from dsort.containers.registry import codec_of, container_of
from dsort.naming.names import archive_extension, check_output_name, with_extension
from dsort.naming.templates import COUNT_MAX, NumberRange, ShardTemplate, parse_template
from dsort.order.cut import CutRule, OutputShard
from dsort.order.output_shards import OutputShards, rows_of
from dsort.storage.routed import place_of, placed_at

_DIGITS_MAX: Final = 255  # no file name is longer


class TemplateExhaustedError(ValueError):
    """A template has fewer names than there are output shards."""


@cache
def _numbers(template: ShardTemplate) -> re.Pattern[str]:
    """The names of a template with one counter, without the extension that is appended."""
    pattern = re.escape(template.prefix)
    for each in template.ranges:
        pattern += f"(?P<{'total' if each.is_total else 'n'}>[0-9]{{1,{_DIGITS_MAX}}})"
        pattern += re.escape(each.gap)
    return re.compile(pattern)


class OutputNames(Struct, frozen=True):
    """The templates of a job's outputs, one a group, each with its own counter.

    ``totals``: for ``{total}``, how many names each template makes. Without a number of shards in
    the spec, it is empty until the outputs are planned. ``places``: the part of names that stands
    for the bucket of a group (see ``storage.routed``), if any group is in another bucket.
    ``extensions``: the extension of each group, if they differ. ``suffix``: of all names, behind
    the extension."""

    templates: tuple[ShardTemplate, ...]
    extension: str
    totals: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    suffix: str = ""

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        extension: str,
        totals: Sequence[int] = (),
        places: Sequence[str] = (),
        extensions: Sequence[str] = (),
    ) -> OutputNames:
        """The names of the templates ``texts``; ``ValueError`` if one is no template, or its names
        cannot be names of outputs."""
        templates = tuple(parse_template(text) for text in texts)
        own = tuple(extensions) if {*extensions} - {extension} else ()
        names = cls(templates, extension, (*totals,), tuple(places) if any(places) else (), own)
        for group in range(len(names.templates)):
            check_output_name(names._inside(group, 0))
        return names

    def counted(self, shards: OutputShards) -> OutputNames:
        """These names, with the totals of ``shards``."""
        return replace(self, totals=tuple(self.needed(shards)))

    def needed(self, shards: OutputShards) -> list[int]:
        """How many names of each template the ``shards`` take."""
        groups, numbers = shards.column("group"), shards.column("number")
        return [int(numbers[groups == group].max(initial=-1)) + 1 for group in self._groups()]

    def counted_in(self, names: Collection[str]) -> OutputNames:
        """These names, with the totals of a result whose shards are called ``names``."""
        if not any(template.has_total for template in self.templates):
            return self
        numbers = [[self.number_of(group, each) for each in names] for group in self._groups()]
        return replace(self, totals=tuple(sum(at >= 0 for at in each) for each in numbers))

    def _groups(self) -> range:
        return range(len(self.templates))

    def name(self, group: int, number: int) -> str:
        """The name of shard ``number`` of ``group``. While the number of shards is unknown, this
        shard counts as the last one."""
        return placed_at(self.place(group), self._inside(group, number))

    def place(self, group: int) -> str:
        """The bucket of a group, as names contain it; "" for the main bucket."""
        return self.places[group] if self.places else ""

    def prefix(self, group: int) -> str:
        """The prefix that all names of a group have."""
        return placed_at(self.place(group), self.templates[group].prefix)

    def _inside(self, group: int, number: int) -> str:
        """The name inside its bucket."""
        total = self.totals[group] if self.totals else None
        name = with_extension(self.templates[group].name(number, total), self.extension_of(group))
        return name + self.suffix

    def extension_of(self, group: int) -> str:
        """The extension that is appended to names of a group without an archive extension."""
        return self.extensions[group] if self.extensions else self.extension

    def number_of(self, group: int, name: str) -> int:
        """The number in ``name``; -1 if ``name`` is not the name of a shard of ``group``. A total
        in ``name`` may be any number. Always -1 if the template does not have exactly one
        counter."""
        template, extension = self.templates[group], self.extension_of(group)
        counter, (place, inside) = template.counter, place_of(name)
        if not counter or place != self.place(group) or not inside.startswith(template.prefix):
            return -1
        if not inside.endswith(self.suffix):
            return -1
        inside = inside.removesuffix(self.suffix)
        numbers = _numbers(template)
        match = numbers.fullmatch(inside) or numbers.fullmatch(inside.removesuffix(extension))
        if not match:
            return -1
        number, rest = divmod(int(match["n"]) - counter.start, counter.step)
        if rest or not 0 <= number < (counter.count or COUNT_MAX):
            return -1
        total = int(match["total"]) if template.has_total else None
        made = with_extension(template.name(number, total), extension)
        return number if made == inside else -1

    def made(self, names: Collection[str], first: Sequence[int]) -> set[str]:
        """The names among ``names`` that a template makes. ``first``: the first number, by group;
        numbers of templates with several counters, and of names with another total, begin at 0."""
        from dsort.naming.overlap import final_templates, names_made  # few jobs need it

        found = set()
        several: dict[str, list[str]] = {}
        for group, template in enumerate(self.templates):
            if not template.counter:
                finals = final_templates(template.text, self.extension_of(group))
                texts = [f"{each}{self.suffix}" for each in finals]
                several.setdefault(self.place(group), []).extend(texts)
                continue
            for name in names:
                number = self.number_of(group, name)
                if number >= first[group] or (number >= 0 and self.name(group, number) != name):
                    found.add(name)
        for place, texts in several.items():
            inside = [each for at, each in map(place_of, names) if at == place]
            found |= {placed_at(place, each) for each in names_made(texts, inside)}
        return found

    def some(self, group: int, first: int, count_max: int) -> list[str]:
        """The names of the shards of ``group`` from number ``first`` on, at most ``count_max``.
        Empty if they are not known yet."""
        template = self.templates[group]
        if template.has_total and not self.totals:
            return []
        end = min(first + count_max, template.count or COUNT_MAX)
        return [self.name(group, number) for number in range(first, end)]

    def names(self, shards: OutputShards) -> Iterator[str]:
        """The name of each shard.

        ``TemplateExhaustedError`` if a template has too few names; ``ValueError`` if a name cannot
        be an object's name.
        """
        for group, count in enumerate(self.needed(shards)):
            template = self.templates[group]
            if count > (template.count or COUNT_MAX):
                raise TemplateExhaustedError(
                    f"template {template.text} has {template.count} names, but the result is "
                    f"{count} shards"
                )
        for group, number in rows_of(shards.column("group"), shards.column("number")):
            inside = self._inside(group, number)
            check_output_name(inside)
            yield placed_at(self.place(group), inside)

    def cut_rule(
        self,
        group: int = 0,
        *,
        size_bytes: int | None,
        records: int | None,
        count: int | None,
        bytes_total: int,
        records_total: int,
        counts_file: bool = False,
        at_most: bool = False,
    ) -> CutRule:
        """The rule for where shards end. Without ``size_bytes``, ``records`` and ``count``: an even
        share for each name of a bounded template. ``bytes_total``: the bytes of all records that
        the rule counts, payload only or (``counts_file``) all that is stored."""
        if count:
            return CutRule(count=count, records_total=records_total)
        if size_bytes:
            return CutRule(
                size_bytes=size_bytes, records=records, counts_file=counts_file, at_most=at_most
            )
        if records:
            return CutRule(records=records)
        names = self.templates[group].count
        assert names, "an unbounded template has a size (the spec was checked)"
        share = max(-(-bytes_total // names), 1)
        return CutRule(size_bytes=share, shards_max=names, counts_file=counts_file)


def kept_name(name: str, extension: str) -> str:
    """The name of the output shard for the input shard ``name``, if outputs are ``extension``
    shards. Only a suffix that would not match the content is changed."""
    suffix = archive_extension(name) or ""
    if not suffix:
        return f"{name}{extension}"
    same = container_of(suffix) == container_of(extension)
    if same and codec_of(suffix) == codec_of(extension):
        return name
    return f"{name.removesuffix(suffix)}{extension}"


class KeptNames(OutputNames, frozen=True):
    """A single group, in which shard ``n`` has the name of input ``n``. Its only template stands
    for all names: it has their common prefix and their number."""

    listed: tuple[str, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_inputs(cls, inputs: Iterable[str], extension: str, suffix: str = "") -> Self:
        """The names for inputs of these names; ``ValueError`` if one cannot be the name of an
        output."""
        listed = tuple(kept_name(name, extension) + suffix for name in inputs)
        for name in listed:
            check_output_name(name)
        ends = (min(listed, default=""), max(listed, default=""))
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
        prefix = "".join(each for each, _ in pairs)
        counter = NumberRange(0, 1, len(listed), 1, "")
        template = ShardTemplate("of the inputs' names", "fmt", prefix, (counter,))
        numbers = {name: number for number, name in enumerate(listed)}
        return cls((template,), extension, (len(listed),), listed=listed, numbers=numbers)

    def counted(self, shards: Iterable[OutputShard]) -> Self:
        """These names: their number is known already."""
        return self

    def counted_in(self, names: Collection[str]) -> Self:
        """These names: their number is known already."""
        return self

    def _inside(self, group: int, number: int) -> str:
        """The name of shard ``number``."""
        return self.listed[number]

    def number_of(self, group: int, name: str) -> int:
        """The number of the shard that is called ``name``, or -1."""
        return self.numbers.get(name, -1)

    def made(self, names: Collection[str], first: Sequence[int]) -> set[str]:
        """The ``names`` that outputs have, from the number in ``first`` on."""
        return {name for name in names if self.numbers.get(name, -1) >= first[0]}

    def some(self, group: int, first: int, count_max: int) -> list[str]:
        """The names from number ``first`` on, ``count_max`` at most."""
        return list(self.listed[first : first + count_max])
