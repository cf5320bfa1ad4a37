"""Parses the external key map as users write it: JSON, lines, or a mapping inside the spec.

The two forms of files are those of AIStore's dSort ("EKM", formerly "order file").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from dsort.data.columns import BytesColumn, Int32s
from dsort.errors import KeyMapError, SpecError, SpecProblem

_SHOWN_MAX = 200  # characters of a line that messages show

_JSON_FORM = '{"template": ["key", ...], ...}'


class MalformedLine(Struct, frozen=True):
    """A line that is not a key, the separator and a template."""

    line_number: int  # from 1
    line: str  # white space around it removed

    def __str__(self) -> str:
        shown = self.line if len(self.line) <= _SHOWN_MAX else self.line[:_SHOWN_MAX] + "..."
        return f"malformed line ({self.line_number}) in external key map: {shown}"


class KeyMapEntries(Struct, frozen=True, eq=False):
    """The template of each key, one row a key, every key once.

    ``groups``: ordinals into ``templates``, shape ``(n,)``. ``templates`` are in the order of their
    first key.
    """

    keys: BytesColumn
    groups: Int32s
    templates: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.groups)


def parse_keymap(
    text: str, *, separator: str, source_name: str
) -> tuple[KeyMapEntries, list[MalformedLine]]:
    """Read ``text`` in either form; ``source_name`` is the path or URL that it comes from.

    JSON: an object ``{template: [key, ...]}``. Lines: key, ``separator``, template. White space
    around a line, a key and a template is removed, and empty lines are skipped. Lines that do not
    have exactly two parts are returned, so that the caller can react to them. Bytes that are not
    UTF-8 are lone surrogates in ``text``, as Python makes them.

    ``KeyMapError`` if a source named ``.json`` is not such JSON, if a template is in it twice, if a
    key has two templates, or if it has no keys at all. ``SpecError`` for an empty separator.
    """
    if not separator:
        raise SpecError([SpecProblem("ekm_file_sep", "must not be empty")])
    text = text.removeprefix("\ufeff")
    try:
        parsed = json.loads(text, object_pairs_hook=_Pairs)
        reason = f"expected {_JSON_FORM}"
    except (ValueError, RecursionError) as error:
        parsed, reason = None, str(error)
    malformed: list[MalformedLine] = []
    if isinstance(parsed, _Pairs):
        entries = _entries_of(_json_pairs(parsed, source_name), source_name)
    elif _is_json_name(source_name):
        raise KeyMapError(f"external key map {source_name} is not JSON as its name says: {reason}")
    else:
        entries = _entries_of(_line_pairs(text, separator, malformed), source_name)
        if not len(entries) and text.lstrip().startswith("{"):
            raise KeyMapError(f"external key map {source_name} cannot be read as JSON: {reason}")
    if not len(entries) and not malformed:
        raise KeyMapError(f"external key map {source_name} has no keys")
    return entries, malformed


def entries_of_mapping(mapping: Mapping[str, Sequence[str]]) -> KeyMapEntries:
    """The entries of a key map ``{template: [key, ...]}`` inside the spec (``ekm``).

    ``KeyMapError`` if a key leads to two templates.
    """
    pairs = ((key, template) for template, keys in mapping.items() for key in keys)
    return _entries_of(pairs, "ekm")


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all of its keys, including keys that occur twice."""


def _is_json_name(source_name: str) -> bool:
    path = re.split("[?#]", source_name)[0] if "://" in source_name else source_name
    return path.lower().endswith(".json")


def _json_pairs(parsed: _Pairs, source_name: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for template, keys in parsed:
        if template in seen:
            raise KeyMapError(
                f"template {template!r} is in external key map {source_name} twice",
                hint="readers of JSON disagree on which of two counts: write one list of keys",
            )
        seen.add(template)
        if not isinstance(keys, list) or isinstance(keys, _Pairs):
            raise KeyMapError(
                f"template {template!r} of external key map {source_name} has no list of keys",
                hint=f"expected {_JSON_FORM}",
            )
        for key in keys:
            if not isinstance(key, str) or not key:
                raise KeyMapError(
                    f"template {template!r} of external key map {source_name} has a key that is "
                    f"{'an empty string' if key == '' else 'not a string'}",
                    hint="the regular expression .* matches every record",
                )
            yield key, template


def _line_pairs(
    text: str, separator: str, malformed: list[MalformedLine]
) -> Iterator[tuple[str, str]]:
    for line_number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line:
            continue
        key, _, template = line.partition(separator)
        key, template = key.rstrip(), template.lstrip()
        if key and template and separator not in template:
            yield key, template
        else:
            malformed.append(MalformedLine(line_number, line))


def _entries_of(pairs: Iterable[tuple[str, str]], source_name: str) -> KeyMapEntries:
    groups: dict[str, int] = {}
    owners: dict[str, int] = {}
    for key, template in pairs:
        group = groups.setdefault(template, len(groups))
        if owners.setdefault(key, group) != group:
            first = list(groups)[owners[key]]
            raise KeyMapError(
                f"key {key!r} of external key map {source_name} has two templates, "
                f"{first!r} and {template!r}",
                hint="a record goes to one output shard: keep one of them",
            )
    try:
        keys = BytesColumn.of([key.encode("utf-8", "surrogateescape") for key in owners])
    except UnicodeEncodeError as error:
        raise KeyMapError(
            f"key {error.object!r} of external key map {source_name} is not Unicode text"
        ) from None
    return KeyMapEntries(keys, np.fromiter(owners.values(), np.int32, len(owners)), tuple(groups))
