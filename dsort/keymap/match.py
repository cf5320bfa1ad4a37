"""The external key map, as users write it (JSON, lines, or a mapping inside the spec). It assigns
each record to one output template.

The two forms of files are those of AIStore's dSort ("EKM", formerly "order file").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import ClassVar

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import BytesColumn, Int32s, Int64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import InvariantError, KeyMapError, SpecError, SpecProblem
from dsort.order.base import GivenPlaces, KeyMatch

_SHOWN_MAX = 200  # characters of a line that messages show

_JSON_FORM = '{"template": ["key", ...], ...}'


class MalformedLine(Struct, frozen=True):
    """A line that has another form than key, separator, template."""

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

    ``KeyMapError`` if a source named ``.json`` is no such JSON, if a template occurs twice, if a
    key has two templates, or if there are no keys at all. ``SpecError`` for an empty separator.
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
        raise KeyMapError(f"external key map {source_name} is not JSON, unlike its name: {reason}")
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
                hint="programs differ in which of two equal names counts: write one list of keys",
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


NONE = -1
AMBIGUOUS = -2

_REGEX_KEYS_MAX = 100_000  # compiling them takes a second and 250 MB; RE2 gives up at about 200,000
_PLAIN_KEYS_IN_SET_MAX = 20_000  # up to this number, plain keys are in RE2's automaton, too
_SET_BYTES_MIN = 64 << 20
_SET_BYTES_PER_KEY = 4 << 10

# A key that spells out the text that it matches, except for single dots and anchors.
_PLAIN = re.compile(
    r"(\^?)((?:[^\\.+*?()|\[\]{}^$]|\.|\\[-!\"#$%&'()*+,./:;<=>?@\[\\\]^`{|}~])+)(\$?)"
)
_MAYBE_NOT_PLAIN = re.compile(r"[\\+*?()|\[\]{}^$]")
_PLAIN_CHARACTER = re.compile(r"\\?(.)", re.DOTALL)

# Number of characters, places of dots, anchored at the start, anchored at the end.
_Shape = tuple[int, tuple[int, ...], bool, bool]


def merged_groups(one: Int32s, other: Int32s) -> Int32s:
    """The combined result of two rounds of matching. Two different groups are ambiguous."""
    merged = np.where(one == NONE, other, one)
    merged[(one != NONE) & (other != NONE) & (one != other)] = AMBIGUOUS
    return merged


class KeyPatterns:
    """Keys as unanchored regular expressions, each of which belongs to a group.

    ``keys`` may hold lone surrogates for bytes that are not UTF-8; ``groups`` are ordinals into
    ``templates``. ``KeyMapError`` if a key is no regular expression, or if there are too many of
    them. The number of plain keys (see ``_PLAIN``) is not limited.
    """

    def __init__(
        self, keys: Sequence[str], groups: Sequence[int], templates: Sequence[str]
    ) -> None:
        is_plain = np.zeros(len(keys), np.bool_)
        if len(keys) > _PLAIN_KEYS_IN_SET_MAX:
            is_plain[:] = np.fromiter(map(_is_plain, keys), np.bool_, len(keys))
        in_set = np.flatnonzero(~is_plain).tolist()
        plain = np.flatnonzero(is_plain).tolist()
        if len(in_set) > _REGEX_KEYS_MAX:
            raise KeyMapError(
                f"the external key map has {len(in_set):,} regular expressions, more than the "
                f"{_REGEX_KEYS_MAX:,} that can be matched at once",
                hint="keys of letters, digits, dots and escaped characters are not limited",
            )
        self._matchers: list[_RegexSet | _PlainKeys] = []
        if in_set:
            self._matchers.append(
                _RegexSet([keys[i] for i in in_set], [groups[i] for i in in_set], templates)
            )
        if plain:
            self._matchers.append(_PlainKeys([keys[i] for i in plain], [groups[i] for i in plain]))

    def groups_of(self, texts: Sequence[bytes]) -> Int32s:
        """The group of each text; ``NONE`` if no key matches it, ``AMBIGUOUS`` if keys of two
        groups do."""
        found = np.full(len(texts), NONE, np.int32)
        for matcher in self._matchers:
            found = merged_groups(found, matcher.groups_of(texts))
        return found


class _RegexSet:
    """Keys combined into one RE2 automaton: about 1 us a text, for any number of keys."""

    def __init__(
        self, keys: Sequence[str], groups: Sequence[int], templates: Sequence[str]
    ) -> None:
        import re2  # 20 ms, and only jobs with a key map need it

        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = _SET_BYTES_MIN + _SET_BYTES_PER_KEY * len(keys)
        self._groups = list(groups)
        self._set = re2.Set.SearchSet(options)
        for key, group in zip(keys, groups, strict=True):
            pattern = key.encode("utf-8", "surrogatepass")
            try:
                self._set.Add(pattern)
            except re2.error:
                raise KeyMapError(
                    f"key {key!r} of template {templates[group]!r} in the external key map is no "
                    f"regular expression: {_reason_of(pattern, options)}",
                    hint=r"the syntax is RE2's; write \. \( \[ \+ for these characters themselves",
                ) from None
        try:
            self._set.Compile()
        except re2.error:
            raise KeyMapError(
                f"the {len(keys):,} regular expressions of the external key map are too large to "
                f"be combined in {options.max_mem >> 20:,} MiB of memory",
                hint="large counts such as {1000} take most; write fewer or shorter expressions",
            ) from None

    def groups_of(self, texts: Sequence[bytes]) -> Int32s:
        match, owner = self._set.Match, self._groups
        groups = np.full(len(texts), NONE, np.int32)
        for row, text in enumerate(texts):
            found = match(text if text.isascii() else _characters_of(text))
            if found:
                group = owner[found[0]]
                if len(found) > 1 and any(owner[key] != group for key in found):
                    group = AMBIGUOUS
                groups[row] = group
        return groups


def _reason_of(pattern: bytes, options: object) -> str:
    """The error of RE2 for ``pattern`` (a set of patterns does not report it)."""
    import re2

    try:
        re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return "it is too large"


def _characters_of(text: bytes) -> bytes:
    """``text`` with each byte that is not UTF-8 replaced by an encoded lone surrogate."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
    return text


class _PlainKeys:
    """Any number of plain keys: each text's substrings are looked up in dicts.

    Keys of the same shape (length, places of dots, anchors) share a dict. So a text of n characters
    costs up to n look-ups (about 0.2 us each) a shape.
    """

    def __init__(self, keys: Sequence[str], groups: Sequence[int]) -> None:
        self._keys = keys
        self._groups = groups

    @cached_property
    def _tables(self) -> list[tuple[_Shape, dict[str, int]]]:
        """From the shortest to the longest keys. The tables are made only when they are needed."""
        tables: dict[_Shape, dict[str, int]] = {}
        for key, group in zip(self._keys, self._groups, strict=True):
            shape, spelled = _shape_of(key)
            table = tables.setdefault(shape, {})
            if table.setdefault(spelled, group) != group:
                table[spelled] = AMBIGUOUS  # one expression, written with and without a backslash
        return sorted(tables.items(), key=lambda item: item[0])

    def groups_of(self, texts: Sequence[bytes]) -> Int32s:
        groups = np.full(len(texts), NONE, np.int32)
        for row, text in enumerate(texts):
            found = set(self._found_in(text.decode("utf-8", "surrogateescape")))
            if found:
                groups[row] = found.pop() if len(found) == 1 else AMBIGUOUS
        return groups

    def _found_in(self, text: str) -> Iterator[int]:
        for (length, dots, at_start, at_end), table in self._tables:
            last = len(text) - length
            if last < 0:
                return
            first = last if at_end else 0
            last = 0 if at_start else last
            for start in range(first, last + 1):
                piece = text[start : start + length]
                for dot in dots:
                    if piece[dot] != "\n":  # a dot does not match a line feed
                        piece = f"{piece[:dot]}.{piece[dot + 1 :]}"
                group = table.get(piece)
                if group is not None:
                    yield group


def _is_plain(key: str) -> bool:
    return (key != "" and not _MAYBE_NOT_PLAIN.search(key)) or _PLAIN.fullmatch(key) is not None


def _shape_of(key: str) -> tuple[_Shape, str]:
    """The shape of a plain key, and the text for which it stands; dots stay dots."""
    match = _PLAIN.fullmatch(key)
    if match is None:
        raise InvariantError(f"key {key!r} is not plain")
    start, body, end = match.groups()
    dots: tuple[int, ...] = ()
    if "\\" in body:
        characters = [piece.group() for piece in _PLAIN_CHARACTER.finditer(body)]
        dots = tuple(at for at, character in enumerate(characters) if character == ".")
        body = "".join(character[-1] for character in characters)
    elif "." in body:
        dots = tuple(at for at, character in enumerate(body) if character == ".")
    return (len(body), dots, bool(start), bool(end)), body


# The parts of a regular expression that depend on the next character: $ \z \b \B.
_LOOKS_AHEAD = r"\$|\\[zbB]"


class KeyMap(GivenPlaces, frozen=True):
    """An external key map, ready to place records. A key map may be pickled; its patterns are
    compiled when they are needed.

    A key that equals the record key, or the name of one of the record's members, decides first.
    If no key is equal, every key is tried as a regular expression (RE2 syntax, unanchored) on the
    name of the record's first member, as AIStore does, and on the record key, so that ``^cat$``
    matches the record key ``cat``. Several matching keys of one template count as one match.
    """

    entries: KeyMapEntries
    default_template: str = ""  # for records that no key places; "": none

    field: ClassVar[str] = "ekm"
    missing_hint: ClassVar[str] = (
        "add a key, or set ekm_missing_key: warn (and ekm_default, the template of such records)"
    )

    @classmethod
    def of(cls, entries: KeyMapEntries, default_template: str = "") -> KeyMap:
        """The map of ``entries``. ``KeyMapError`` if a key is no regular expression, or if the keys
        are too many or too large to be matched."""
        made = cls(entries, default_template)
        _ = made._patterns
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return (KeyMap, (self.entries, self.default_template))

    def __bool__(self) -> bool:
        return True

    @property
    def words(self) -> str:
        """The name of the source of the places, for messages."""
        return "the external key map"

    @property
    def templates(self) -> tuple[str, ...]:
        """The output templates in the order of their first key, and the default one last if it has
        no key."""
        return tuple(dict.fromkeys((*self.entries.templates, *self._default)))

    @property
    def _default(self) -> tuple[str, ...]:
        return (self.default_template,) if self.default_template else ()

    def match(
        self, records: FormedRecords, members: MemberTable, *, are_joined: bool = False
    ) -> KeyMatch:
        """The template of each of ``records``, which are rows of ``members``."""
        if are_joined:  # the key is the name that all pieces have in common
            return self.lookup(records.keys, records.keys, np.arange(len(records) + 1))
        names = members.names.take(records.member_rows)
        return self.lookup(records.keys, names, records.member_offsets)

    def lookup(
        self, record_keys: BytesColumn, member_names: BytesColumn, member_offsets: Int64s
    ) -> KeyMatch:
        """The template of each record.

        Record ``i`` has the key ``record_keys[i]`` and the members ``member_names[k]`` for ``k``
        from ``member_offsets[i]`` to ``member_offsets[i + 1] - 1``, at least one;
        ``member_offsets`` has shape ``(records + 1,)``. Each record takes about 0.2 us for each of
        its names, and 1 to 2 us more if none of the names is a key.
        """
        if len(member_offsets) != len(record_keys) + 1 or np.any(np.diff(member_offsets) < 1):
            raise InvariantError("every record has a key and at least one member")
        groups = self._equal_groups(record_keys, member_names, member_offsets)
        rows = np.flatnonzero(groups == NONE)
        if len(rows):
            names = member_names.take(member_offsets[rows]).tolist()
            found = self._patterns.groups_of(names)
            if self._key_patterns is not None:
                keys = record_keys.take(rows).tolist()
                found = merged_groups(found, self._key_patterns.groups_of(keys))
            groups[rows] = found
        missing, ambiguous = groups == NONE, groups == AMBIGUOUS
        groups[missing | ambiguous] = NONE
        for default in self._default:
            groups[missing | ambiguous] = self.templates.index(default)
        return KeyMatch(groups, missing, ambiguous)

    def digest(self) -> str:
        """A digest that is the same for key maps that place all records the same."""
        state = xxhash.xxh3_128()
        for column in (self.entries.keys.offsets, self.entries.keys.blob, self.entries.groups):
            state.update(np.ascontiguousarray(column).data.cast("B"))
        state.update("\0".join(self.templates).encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def _equal_groups(
        self, record_keys: BytesColumn, member_names: BytesColumn, member_offsets: Int64s
    ) -> Int32s:
        """The groups of the records for which a key equals the record key or a member name."""
        groups = self._ordinals(record_keys)
        of_names = self._ordinals(member_names)
        hits = np.flatnonzero(of_names != NONE)
        if len(hits):
            of_hits = of_names[hits]
            owners = np.searchsorted(member_offsets, hits, side="right") - 1
            starts = np.flatnonzero(np.diff(owners, prepend=-1))
            low = np.minimum.reduceat(of_hits, starts)
            by_name = np.full(len(groups), NONE, np.int32)
            by_name[owners[starts]] = np.where(
                low == np.maximum.reduceat(of_hits, starts), low, AMBIGUOUS
            )
            groups = merged_groups(groups, by_name)
        return groups

    def _ordinals(self, names: BytesColumn) -> Int32s:
        """For each name, the group of the key that is equal to it; ``NONE`` without such a key."""
        found = map(self._group_of_key.get, names.tolist(), repeat(NONE))
        return np.fromiter(found, np.int32, len(names))

    @cached_property
    def _group_of_key(self) -> dict[bytes, int]:
        entries = self.entries
        return dict(zip(entries.keys.tolist(), entries.groups.tolist(), strict=True))

    @cached_property
    def _patterns(self) -> KeyPatterns:
        return self._compiled(self._key_texts())

    @cached_property
    def _key_patterns(self) -> KeyPatterns | None:
        """Keys that may match a record's key although they match no name of its members."""
        texts = self._key_texts()
        rows = [row for row, text in enumerate(texts) if re.search(_LOOKS_AHEAD, text)]
        return self._compiled(texts, rows) if rows else None

    def _key_texts(self) -> list[str]:
        return [key.decode("utf-8", "surrogateescape") for key in self.entries.keys.tolist()]

    def _compiled(self, texts: Sequence[str], rows: Sequence[int] | None = None) -> KeyPatterns:
        groups = self.entries.groups.tolist()
        if rows is not None:
            texts, groups = [texts[row] for row in rows], [groups[row] for row in rows]
        return KeyPatterns(texts, groups, self.entries.templates)
