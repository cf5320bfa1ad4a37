"""The external key map: what its two forms say, which key decides, how fast, what is refused."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from dsort.errors import InvariantError, KeyMapError, SpecError
from tests.support.internals import (
    BytesColumn,
    KeyMap,
    KeyMapEntries,
    MalformedLine,
    entries_of_mapping,
    parse_keymap,
)
from tests.support.internals import match as keymap_patterns
from tests.support.refusals import raises

Record = tuple[str | bytes, Sequence[str]]  # record key, extensions of its members


def raw(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def pairs_of(entries: KeyMapEntries) -> list[tuple[str, str]]:
    keys = [key.decode("utf-8", "surrogateescape") for key in entries.keys.tolist()]
    return [
        (key, entries.templates[group])
        for key, group in zip(keys, entries.groups.tolist(), strict=True)
    ]


def placed(keymap: KeyMap, *records: Record) -> list[str | None]:
    """The template of each record; ``?`` or ``!`` in front if it is missing or ambiguous."""
    keys = [raw(key) for key, _ in records]
    names = [raw(key) + raw(extension) for key, extensions in records for extension in extensions]
    offsets = np.cumsum([0, *(len(extensions) for _, extensions in records)])
    match = keymap.lookup(BytesColumn.of(keys), BytesColumn.of(names), offsets)
    assert match.groups.dtype == np.int32
    marks = np.where(match.missing, "?", np.where(match.ambiguous, "!", "")).tolist()
    return [
        mark + (keymap.templates[group] if group >= 0 else "")
        for mark, group in zip(marks, match.groups.tolist(), strict=True)
    ]


def keymap_of(mapping: dict[str, list[str]], default: str | None = None) -> KeyMap:
    return KeyMap.of(entries_of_mapping(mapping), default or "")


# --- text --------------------------------------------------------------------------------------


def test_lines_are_keys_and_templates() -> None:
    text = "\ufeff a\tone-%d \r\n\n  \nb.*\ttwo-%d\nc d\tone-%d"
    entries, malformed = parse_keymap(text, separator="\t", source_name="map.txt")
    assert pairs_of(entries) == [("a", "one-%d"), ("b.*", "two-%d"), ("c d", "one-%d")]
    assert entries.templates == ("one-%d", "two-%d")
    assert malformed == []


def test_white_space_around_the_separator_is_removed() -> None:
    entries, _ = parse_keymap("a ->  one\n b->two", separator="->", source_name="map")
    assert pairs_of(entries) == [("a", "one"), ("b", "two")]


def test_malformed_lines_are_returned_with_their_numbers() -> None:
    text = "a,one\n\nno separator\nb,two,three\n,one\nc,\nd,two"
    entries, malformed = parse_keymap(text, separator=",", source_name="map")
    assert pairs_of(entries) == [("a", "one"), ("d", "two")]
    assert [(line.line_number, line.line) for line in malformed] == [
        (3, "no separator"),
        (4, "b,two,three"),
        (5, ",one"),
        (6, "c,"),
    ]
    assert str(malformed[0]) == "malformed line (3) in external key map: no separator"
    assert len(str(MalformedLine(1, "x" * 10_000))) < 300


def test_json_is_read_whatever_the_source_is_called() -> None:
    text = '{"one-%d": ["a", "b", "d", "a"], "two-%d": ["c\\u00e9"], "none": []}'
    for name in ("map.json", "map.txt", "https://host/map"):
        entries, malformed = parse_keymap(text, separator="\t", source_name=name)
        assert pairs_of(entries) == [
            ("a", "one-%d"),
            ("b", "one-%d"),
            ("d", "one-%d"),
            ("cé", "two-%d"),
        ]
        assert entries.templates == ("one-%d", "two-%d")
        assert malformed == []


@pytest.mark.parametrize("name", ["map.json", "MAP.JSON", "http://host/map.json?version=1#x"])
@pytest.mark.parametrize("text", ["a\tone", "[1]", '"a"', "{", "", "[" * 100_000])
def test_a_json_source_has_to_be_json(name: str, text: str) -> None:
    with raises(KeyMapError, name):
        parse_keymap(text, separator="\t", source_name=name)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"one": "a"}', "'one'"),
        ('{"one": {"a": 1}}', "'one'"),
        ('{"one": [1]}', "'one'"),
        ('{"one": [""]}', "'one'"),
        ('{"one": ["\\ud800"]}', "ud800"),
        ('{"one": ["a",]}', "JSON"),
        ("{}", "map"),
        ('{"one": []}', "map"),
        ("", "map"),
        ("\n \n", "map"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, named: str) -> None:
    with raises(KeyMapError, named):
        parse_keymap(text, separator="\t", source_name="map")


def test_numbers_in_lines_are_not_taken_for_json() -> None:
    assert len(parse_keymap("12\tone", separator="\t", source_name="map")[0]) == 1
    assert parse_keymap("12", separator="\t", source_name="map")[1] == [MalformedLine(1, "12")]


@pytest.mark.parametrize("text", ["a\tone\nb\tone\na\ttwo", '{"one": ["a"], "two": ["b", "a"]}'])
def test_a_key_with_two_templates_is_refused(text: str) -> None:
    with raises(KeyMapError, "key 'a'", "'one'", "'two'"):
        parse_keymap(text, separator="\t", source_name="map")
    with raises(KeyMapError, "'one'", "'two'"):
        entries_of_mapping({"one": ["a"], "two": ["a"]})


def test_a_separator_is_needed() -> None:
    with raises(SpecError, paths=["ekm_file_sep"]):
        parse_keymap("a\tone", separator="", source_name="map")


# --- which key decides -------------------------------------------------------------------------


def test_a_key_that_equals_a_name_decides_before_expressions() -> None:
    keymap = keymap_of({"one": ["1.txt", "x/2"], "two": [".*"]})
    assert placed(
        keymap,
        ("1", [".jpg", ".txt"]),  # a member's name, not of the first member
        ("x/2", [".jpg"]),  # the record key
        ("11", [".txt"]),  # which 1.txt as an expression matches, too
        ("2", [".jpg"]),
    ) == ["one", "one", "!", "two"]


def test_expressions_are_tried_anywhere_in_the_first_name_and_the_key() -> None:
    keymap = keymap_of({"one": ["cat"], "two": [r"dog\.png$"], "three": ["/mouse$"]})
    assert placed(
        keymap,
        ("x/cat-1", [".jpg"]),
        ("dog", [".png", ".jpg"]),
        ("dog", [".jpg", ".png"]),  # not the first member
        ("a/mouse", [".jpg"]),  # the record key ends there
        ("a/mouse1", [".jpg"]),
        ("cat/mouse", [".jpg"]),
    ) == ["one", "two", "?", "three", "?", "!"]


def test_unplaced_records_go_to_the_default_template() -> None:
    mapping = {"one": ["cat"], "two": ["dog"]}
    records: list[Record] = [("cat", [".a"]), ("cow", [".a"]), ("catdog", [".a"])]
    assert placed(keymap_of(mapping), *records) == ["one", "?", "!"]
    assert placed(keymap_of(mapping, "rest"), *records) == ["one", "?rest", "!rest"]
    assert placed(keymap_of(mapping, "two"), *records) == ["one", "?two", "!two"]
    assert keymap_of(mapping, "rest").templates == ("one", "two", "rest")
    assert keymap_of(mapping, "two").templates == ("one", "two")


def test_a_map_without_keys_places_nothing() -> None:
    entries, _ = parse_keymap("malformed", separator="\t", source_name="map")
    assert placed(KeyMap.of(entries, "rest"), ("a", [".b"])) == ["?rest"]


def test_no_records_are_no_match() -> None:
    assert placed(keymap_of({"one": ["a"]})) == []


def test_characters_are_characters_and_odd_bytes_are_one_each() -> None:
    text = b"^caf.$\tdot\n(?i)\xc3\x89t\xc3\xa9\tfold\nx\xe9y\tbyte\n".decode(
        "utf-8", "surrogateescape"
    )
    entries, _ = parse_keymap(text, separator="\t", source_name="map")
    assert placed(
        KeyMap.of(entries),
        ("café", [".a"]),
        (b"caf\xe9", [".a"]),
        (b"caf\xe9\xe9", [".a"]),
        ("l'été", [".a"]),
        (b"x\xe9y", [".a"]),  # equal
        (b"-x\xe9y-", [".a"]),  # as an expression
        ("xéy", [".a"]),
    ) == ["dot", "dot", "?", "fold", "byte", "byte", "?"]


@pytest.mark.parametrize("plain_keys_in_set_max", [0, 20_000])
def test_plain_keys_mean_the_same_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, plain_keys_in_set_max: int
) -> None:
    monkeypatch.setattr(keymap_patterns, "_PLAIN_KEYS_IN_SET_MAX", plain_keys_in_set_max)
    keymap = keymap_of(
        {"one": ["a.b", r"^x\.y", "same-", "é.日$"], "two": ["b+c", r"same\-", r"\[\\\]"]}
    )
    records: dict[Record, str] = {
        ("1axb2", (".j",)): "one",
        ("1a日b2", (".j",)): "one",
        (b"1a\xffb2", (".j",)): "one",
        ("1a\nb2", (".j",)): "?",  # a dot does not stand for a line feed
        ("axxb", (".j",)): "?",
        ("x", (".y", ".j")): "one",
        ("-x", (".y",)): "?",
        ("xzy", (".j",)): "?",
        ("the same-", (".j",)): "!",
        ("é-日", (".j",)): "one",
        ("é-日1", (".j",)): "?",
        ("bbc", (".j",)): "two",
        ("[\\]", (".j",)): "two",
        ("bbc/a.b", (".j",)): "!",
    }
    assert dict(zip(records, placed(keymap, *records), strict=True)) == records


def test_a_record_without_members_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        placed(keymap_of({"one": ["a"]}), ("a", []))


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["[abc", "a(b", "c++", "(?=x)", r"(a)\1", "x{1001}"])
def test_a_key_that_is_no_expression_is_named(key: str) -> None:
    with raises(KeyMapError, f"key {key!r}", "'two-%d'", hint="RE2") as caught:
        keymap_of({"one": ["fine"], "two-%d": ["also", key]})
    assert "RE2" in caught.value.hint


def test_expressions_too_large_for_memory_are_refused() -> None:
    keys = [f"{number}(x{{1000}}y){{1,1}}.{{900}}" for number in range(400)]
    with raises(KeyMapError, "400"):
        keymap_of({"one": keys})


def test_too_many_expressions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keymap_patterns, "_REGEX_KEYS_MAX", 10)
    monkeypatch.setattr(keymap_patterns, "_PLAIN_KEYS_IN_SET_MAX", 10)
    keymap_of({"one": [f"plain{number}.jpg" for number in range(1000)] + ["a|b"] * 5})
    with raises(KeyMapError, "11", "10"):
        keymap_of({"one": [f"{number}|b" for number in range(11)]})


# --- speed -------------------------------------------------------------------------------------


def timed_lookup(keymap: KeyMap, names: Sequence[bytes]) -> tuple[float, float]:
    """Seconds of CPU, and the share of records that were placed."""
    keys = [name.partition(b".")[0] for name in names]
    columns = BytesColumn.of(keys), BytesColumn.of(names)
    started = time.process_time()
    match = keymap.lookup(*columns, np.arange(len(names) + 1))
    return time.process_time() - started, float((match.groups >= 0).mean())


def test_a_hundred_thousand_records_by_a_thousand_expressions() -> None:
    keymap = keymap_of({f"t{n % 50}-%d": [f"n{n:08}_.*", f"x{n}.*y{n}$"] for n in range(500)})
    names = [b"train/n%08d_%d.jpg" % (number % 600, number) for number in range(100_000)]
    seconds, share = timed_lookup(keymap, names)
    assert seconds < 10
    assert 0 < share < 1


@pytest.mark.exhaustive
def test_a_hundred_thousand_records_by_a_hundred_thousand_names() -> None:
    keymap = keymap_of({"out-%d": [f"train/{number:08}.jpg" for number in range(100_000)]})
    names = [b"train/%08d.jpg" % (2 * number) for number in range(100_000)]
    seconds, share = timed_lookup(keymap, names)  # half of them are nowhere in the map
    assert seconds < 10
    assert share == 0.5


def test_a_template_that_is_in_json_twice_is_refused() -> None:
    text = '{"a-%d": ["x"], "b-%d": ["y"], "a-%d": ["z"]}'
    with raises(KeyMapError, "template 'a-%d'", "map.json"):
        parse_keymap(text, separator="\t", source_name="map.json")
    with raises(KeyMapError, "template 'a-%d'"):
        parse_keymap(text, separator="\t", source_name="lines or JSON")
