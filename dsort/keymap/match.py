"""The external key map: which output template each record goes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np

from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s
from dsort.errors import InvariantError
from dsort.keymap.patterns import AMBIGUOUS, NONE, KeyPatterns, merged_groups
from dsort.keymap.text import KeyMapEntries, MalformedLine, entries_of_mapping, parse_keymap

__all__ = [
    "KeyMap",
    "KeyMapEntries",
    "KeyMapMatch",
    "MalformedLine",
    "entries_of_mapping",
    "parse_keymap",
]

# What of a regular expression looks at what follows: $ \z \b \B.
_LOOKS_AHEAD = re.compile(r"\$|\\[zbB]")


@dataclass(frozen=True, slots=True, eq=False)
class KeyMapMatch:
    """Where records go. All columns have shape ``(records,)``.

    ``groups``: the ordinal of each record's template; for records that the map does not place the
    default template's, or -1 if there is none. ``missing``: no key matches. ``ambiguous``: keys of
    two templates match, which places a record as little as no match. Never both.
    """

    groups: Int32s
    missing: Bools
    ambiguous: Bools


@dataclass(frozen=True, eq=False)
class KeyMap:
    """An external key map, ready to place records. May be pickled; compiles itself when needed.

    A key that equals the record key, or the name of one of the record's members, decides first.
    If no key does, every key is tried as a regular expression (RE2 syntax, unanchored) on the name
    of the record's first member, as AIStore does, and on the record key, so that ``^cat$`` means
    the record key ``cat``. Several keys of one template that match are one match.
    """

    entries: KeyMapEntries
    default_template: str | None = None

    @classmethod
    def of(cls, entries: KeyMapEntries, default_template: str | None = None) -> KeyMap:
        """The map of ``entries``; ``KeyMapError`` if a key is no regular expression, or if they
        are too many or too large to be matched."""
        made = cls(entries, default_template)
        _ = made._patterns
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return (KeyMap, (self.entries, self.default_template))

    @property
    def templates(self) -> tuple[str, ...]:
        """The output templates, in first-seen order, the default one last if it is no key's."""
        templates = self.entries.templates
        default = self.default_template
        return templates if default is None or default in templates else (*templates, default)

    def lookup(
        self, record_keys: BytesColumn, member_names: BytesColumn, member_offsets: Int64s
    ) -> KeyMapMatch:
        """Where each record goes.

        Record ``i`` has the key ``record_keys[i]`` and the members ``member_names[k]`` for ``k``
        from ``member_offsets[i]`` to ``member_offsets[i + 1] - 1``, at least one;
        ``member_offsets`` has shape ``(records + 1,)``. A record costs about 0.2 us a name, and 1
        to 2 us more if no key equals one.
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
        default = self.default_template
        groups[missing | ambiguous] = NONE if default is None else self.templates.index(default)
        return KeyMapMatch(groups, missing, ambiguous)

    def _equal_groups(
        self, record_keys: BytesColumn, member_names: BytesColumn, member_offsets: Int64s
    ) -> Int32s:
        """The groups of records that a key equals (or one of whose names it equals)."""
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
        """The group of the key that equals each name, or ``NONE``."""
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
        """The keys that may match a record key without matching the name that begins with it."""
        texts = self._key_texts()
        rows = [row for row, text in enumerate(texts) if _LOOKS_AHEAD.search(text)]
        return self._compiled(texts, rows) if rows else None

    def _key_texts(self) -> list[str]:
        return [key.decode("utf-8", "surrogateescape") for key in self.entries.keys.tolist()]

    def _compiled(self, texts: Sequence[str], rows: Sequence[int] | None = None) -> KeyPatterns:
        groups = self.entries.groups.tolist()
        if rows is not None:
            texts, groups = [texts[row] for row in rows], [groups[row] for row in rows]
        return KeyPatterns(texts, groups, self.entries.templates)
