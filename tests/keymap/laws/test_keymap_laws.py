"""Laws of the external key map, for random keys and names.

Placing agrees with trying every key in turn, by another regular expression engine; how many keys
there are, and so how they are matched, changes nothing; both forms of the text say the same.
"""

from __future__ import annotations

import json
import pickle
import re
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.internals import BytesColumn, KeyMap, entries_of_mapping, parse_keymap
from tests.support.internals import match as keymap_patterns
from tests.support.sampling import examples

# Few characters, so that keys do match; \udce9 stands for a byte that is not UTF-8.
LETTERS = ["a", "b", "1", "-", "é", "日", "\udce9", "\n", "/"]
texts = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=6).map("".join)

PUNCTUATION = "-!\"#$%&'()*+,./:;<=>?@[\\]^`{|}~"
piece = st.one_of(
    st.sampled_from([*LETTERS, ".", r"\."]),
    st.sampled_from(PUNCTUATION).map(lambda character: "\\" + character),
)
plain_keys = st.builds(
    lambda start, body, end: start + "".join(body) + end,
    st.sampled_from(["", "^"]),
    st.lists(piece, min_size=1, max_size=4),
    st.sampled_from(["", "$"]),
)
other_keys = st.builds(
    lambda start, left, middle, right, end: start + left + middle + right + end,
    st.sampled_from(["", "^"]),
    st.lists(piece, max_size=2).map("".join),
    st.sampled_from(["a*", "(?:a|b1)", "[ab]", "[^a]", "é?", "b+", "|", "日{1,2}", ".*"]),
    st.lists(piece, max_size=2).map("".join),
    st.sampled_from(["", "$", "|a"]),
)
keys = st.one_of(texts, plain_keys, other_keys)
mappings = st.dictionaries(keys, st.sampled_from(["one", "two", "three"]), max_size=8)

extensions = st.lists(st.sampled_from(["", ".a", ".b1", ".é", ".\n"]), min_size=1, max_size=3)
records = st.lists(st.tuples(texts, extensions), max_size=8)


def keymap_of(owners: dict[str, str]) -> KeyMap:
    mapping: dict[str, list[str]] = {}
    for key, template in owners.items():
        mapping.setdefault(template, []).append(key)
    return KeyMap.of(entries_of_mapping(mapping))


def placed(keymap: KeyMap, made: list[tuple[str, list[str]]]) -> list[str]:
    record_keys = BytesColumn.of([raw(key) for key, _ in made])
    names = BytesColumn.of([raw(key + extension) for key, found in made for extension in found])
    offsets = np.cumsum([0, *(len(found) for _, found in made)])
    match = keymap.lookup(record_keys, names, offsets)
    assert not np.any(match.missing & match.ambiguous)
    assert np.array_equal(match.groups < 0, match.missing | match.ambiguous)
    templates = [*keymap.templates, "missing"]
    found = [templates[group] for group in match.groups]
    return np.where(match.ambiguous, "ambiguous", found).tolist() if found else []


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def placed_one_by_one(owners: dict[str, str], key: str, found: list[str]) -> str:
    """The definition: equal keys first, then every key as an expression (by Python's engine)."""
    names = [key + extension for extension in found]
    templates = {owners[name] for name in (key, *names) if name in owners}
    if not templates:
        templates = {
            template
            for pattern, template in owners.items()
            if any(re.search(in_python(pattern), text) for text in (names[0], key))
        }
    if not templates:
        return "missing"
    return templates.pop() if len(templates) == 1 else "ambiguous"


def in_python(pattern: str) -> str:
    """The same expression for Python, whose $ also stands before a last line feed."""
    return re.sub(r"(\\.)|\$", lambda match: match[1] or r"\Z", pattern, flags=re.DOTALL)


@given(mappings, records)
@settings(max_examples=examples(300), deadline=None)
def test_placing_is_trying_every_key_in_turn(
    owners: dict[str, str], made: list[tuple[str, list[str]]]
) -> None:
    wanted = [placed_one_by_one(owners, key, found) for key, found in made]
    keymap = keymap_of(owners)
    assert placed(keymap, made) == wanted
    assert placed(pickle.loads(pickle.dumps(keymap)), made) == wanted


@given(mappings, records)
@settings(max_examples=examples(300), deadline=None)
def test_the_way_for_many_keys_says_the_same(
    owners: dict[str, str], made: list[tuple[str, list[str]]]
) -> None:
    wanted = [placed_one_by_one(owners, key, found) for key, found in made]
    with mock.patch.object(keymap_patterns, "_PLAIN_KEYS_IN_SET_MAX", 0):
        assert placed(keymap_of(owners), made) == wanted


@given(st.dictionaries(texts, st.sampled_from(["one-%d", "two-@9"]), min_size=1, max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_both_forms_say_the_same(owners: dict[str, str]) -> None:
    owners = {key.replace("\n", "x"): template for key, template in owners.items()}
    mapping: dict[str, list[str]] = {}
    for key, template in owners.items():
        mapping.setdefault(template, []).append(key)
    lines = "\n".join(f"{key}\t{owners[key]}" for keys in mapping.values() for key in keys)
    wanted = entries_of_mapping(mapping)
    for text in (lines, json.dumps(mapping), json.dumps(mapping, indent=1, ensure_ascii=False)):
        entries, malformed = parse_keymap(text, separator="\t", source_name="map")
        assert malformed == []
        assert entries.keys.tolist() == wanted.keys.tolist()
        assert entries.groups.tolist() == wanted.groups.tolist()
        assert entries.templates == wanted.templates
