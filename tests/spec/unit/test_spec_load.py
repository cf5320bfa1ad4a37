"""Where specs come from: files, standard input, texts; JSON and YAML mean exactly the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from dsort.errors import SpecError
from dsort.spec.load import SPEC_BYTES_MAX, LoadedSpec, load_spec
from dsort.spec.syntax import parse_json
from dsort.spec.yaml_text import parse_yaml
from tests.support.refusals import raises
from tests.support.spec_cases import SMALL, small, spec_of


def from_yaml(text: str) -> LoadedSpec:
    return load_spec("-", stdin=io.StringIO(text))


def message_of(text: str) -> str:
    with pytest.raises(SpecError) as error:
        load_spec("-", stdin=io.StringIO(text))
    assert error.value.exit_code == 2
    return str(error.value)


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml", "spec.yml", "spec.txt", "spec"])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_files_are_json_or_yaml(tmp_path: Path, name: str, write: object) -> None:
    text = (
        json.dumps(SMALL) if write is json.dumps or name.endswith("json") else yaml.dump({**SMALL})
    )
    path = tmp_path / name
    path.write_text(text)
    assert load_spec(path) == load_spec(str(path)) == LoadedSpec(spec_of(), ())


def test_a_text_that_begins_with_a_brace_is_the_spec_itself() -> None:
    assert load_spec(f"  {json.dumps(SMALL)}").spec == spec_of()


@pytest.mark.parametrize(
    "text",
    [
        yaml.dump({**SMALL}),
        f"# a comment first\n{yaml.dump({**SMALL})}",
        f"---\n{yaml.dump({**SMALL})}",
        f"\n  {json.dumps(SMALL)}",
    ],
)
def test_a_text_in_yaml_is_the_spec_itself(text: str) -> None:
    assert load_spec(text) == LoadedSpec(spec_of(), ())


def test_yaml_in_braces_is_a_spec_too() -> None:
    text = "{input_bck: images, output_format: x-%03d, output_shard_size: 1MB}"
    spec = load_spec(text).spec
    assert (spec.input_bck.uri, spec.output_format) == ("images", "x-%03d")
    with raises(SpecError, "JSON", "line 1"):
        load_spec('{"input_bck": images}')


def test_one_line_of_yaml_is_a_spec_and_not_a_file() -> None:
    with pytest.raises(SpecError) as error:
        load_spec("output_bck: x")
    assert {problem.path for problem in error.value.problems} >= {"input_bck", "output_format"}
    with raises(SpecError, "input_bck", paths=["input_bck", "output_format"]):
        load_spec("description: " + "x" * 5000)  # no file has so long a name


@pytest.mark.parametrize(
    "name", ["spec.yaml", "specs/a: b.yaml", "spec", "a b", "C:\\specs", "x:", "spec.yaml:1", "s:y"]
)
def test_a_mistyped_name_of_a_file_is_reported_as_one(name: str) -> None:
    with raises(SpecError, name):
        load_spec(name)


def test_a_file_is_a_file_whatever_its_name_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec: mine").write_text(json.dumps(SMALL))
    assert load_spec("spec: mine").spec == spec_of()


def test_several_names_in_one_text_are_no_spec() -> None:
    with raises(SpecError, '"a.yaml b.yaml"', hint="path"):
        load_spec("a.yaml\nb.yaml")


def test_a_dash_is_standard_input() -> None:
    assert load_spec("-", stdin=io.StringIO(json.dumps(SMALL))).spec == spec_of()
    assert load_spec("-", stdin=io.StringIO("\ufeff" + yaml.dump({**SMALL}))).spec == spec_of()
    with raises(SpecError):
        load_spec("-")


def test_a_byte_order_mark_is_no_part_of_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SMALL).encode())
    assert load_spec(path).spec == spec_of()


def test_overrides_replace_fields_of_the_spec() -> None:
    text = json.dumps(small(input_bck=..., bck="old", output_bck="s3://wrong"))
    spec = load_spec(text, overrides={"input_bck": "in", "output_bck": "file:///out"}).spec
    assert (spec.input_bck.uri, spec.output_bck.uri) == ("in", "file:///out")
    assert load_spec(json.dumps(SMALL), overrides={"input_bck": "in"}).spec.output_bck.uri == "in"


def test_a_relative_key_map_is_beside_the_spec_file(tmp_path: Path) -> None:
    fields = small(output_format=..., ekm_file="maps/keys.json")
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(fields))
    assert load_spec(path).spec.ekm_file == str(tmp_path / "maps/keys.json")
    assert load_spec(json.dumps(fields)).spec.ekm_file == "maps/keys.json"
    for place in ("/maps/keys.json", "https://host/keys.json"):
        path.write_text(json.dumps({**fields, "ekm_file": place}))
        assert load_spec(path).spec.ekm_file == place


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with raises(SpecError, str(path)[:60]):
            load_spec(path)
    with pytest.raises(SpecError) as error:
        load_spec("x" * 5000)
    assert len(str(error.value)) < 300


def test_specs_have_a_size_limit(tmp_path: Path) -> None:
    text = json.dumps(small(description="x" * SPEC_BYTES_MAX))
    path = tmp_path / "spec.json"
    path.write_text(text)
    for source in (path, text):
        with raises(SpecError, "1 MiB"):
            load_spec(source)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(b'{"description": "\xff"}')
    with raises(SpecError, "UTF-8", "byte 17"):
        load_spec(path)
    with raises(SpecError, "UTF-8", "byte 0"):
        load_spec("-", stdin=io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"a": 1,\n  "b" 2}', "JSON at line 2, column 7"),
        ('{"a": 1,}', "JSON at line 1, column "),  # Python 3.13 names the comma's
        ('{"a": [1, 2}', "JSON at line 1, column 12"),
        ('{"a": 1} x', "JSON at line 1, column 10"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', '"c"'),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": ' + "1" * 5000 + "}", ""),
        ('{"a": ' * 100_000, ""),
        ("[1]", ""),
        ("a: [1, 2\nb: 3", "YAML at line 2, column 2"),
        ("a: 1\n  b: 2", "YAML at line 2, column 4"),
        ("a: 1\nb: 2\na: 3", 'YAML at line 3, column 1: "a"'),
        ("a: 1\n'a': 2", 'line 2, column 1: "a"'),
        ("a: 1\n---\nb: 2", "YAML at line 2, column 1"),
        ("a: 1\nb: \x07", "YAML at line 2, column 4"),
        ("? [a]\n: 1", "line 1, column 3"),
        ("a: *b", "line 1, column 4"),
        ("a: !!python/object:os.system x", "!!python/object:os.system"),
        ("a: !!binary aGk=", "line 1, column 4: the tag !!binary"),
        ("a: !!set {x}", "!!set"),
        ("a: !!int 0x10", "!!int"),
        ("a: !mine {b: 1}", "!mine"),
        ("a: " + "1" * 5000, ""),
        ("a: " + "[" * 5000, ""),
        ("", ""),
        ("just words", '"just words"'),
    ],
)
def test_broken_texts_say_where_and_why(text: str, named: str) -> None:
    said = message_of(text)
    assert said.startswith("standard input: ")
    assert named in said
    assert len(said) < 300


def test_aliases_are_fine_as_far_as_they_do_not_blow_up() -> None:
    text = "a: &keys [x, y]\nb: *keys"
    assert parse_yaml(text, "spec") == {"a": ["x", "y"], "b": ["x", "y"]}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
    )
    for text in (bomb, "a: &a [*a]"):
        with raises(SpecError):
            parse_yaml(text, "spec")


def test_merge_keys_bring_in_the_fields_of_other_objects() -> None:
    base = "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\n"
    plain = {"base": {"a": 1, "b": 2}, "more": {"b": 3, "c": 4}}
    for text, merged in (
        ("x: {<<: *base}", {"a": 1, "b": 2}),
        ("x: {a: 9, <<: *base}", {"a": 9, "b": 2}),  # what is written there counts
        ("x: {<<: *base, a: 9}", {"a": 9, "b": 2}),
        ("x: {<<: [*base, *more]}", {"a": 1, "b": 2, "c": 4}),  # the first that has it
        ("x: {<<: {d: 5}}", {"d": 5}),
        ("x: {<<: []}", {}),
        ("x: &x {<<: *base}\ny: {<<: *x, b: 7}", {"a": 1, "b": 2}),
    ):
        found = parse_yaml(base + text, "spec")
        assert {name: found[name] for name in plain} == plain
        assert found["x"] == merged
    assert parse_yaml("'<<': 1", "spec") == {"<<": 1}  # in quotes it is a name like others
    assert parse_yaml("- <<", "spec") == ["<<"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<<: 1", 'line 1, column 5: "<<"'),
        ("<<: <<", '"<<"'),
        ("x: &x [1]\ny: {<<: *x}", '"<<"'),
        ("x: {<<: {a: 1}, <<: {b: 1}}", '"<<"'),
        ("x: {a: 1, <<: {b: 1}, a: 2}", '"a"'),
        ("x: &x {<<: *x}", ""),
        ("x: &x {<<: [*x, *x]}", ""),
        ("a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n"
                                      for n in range(1, 12)), ""),
    ],
)  # fmt: skip
def test_merge_keys_are_bounded_and_checked(text: str, named: str) -> None:
    with raises(SpecError, named):
        parse_yaml(text, "spec")


@pytest.mark.parametrize(
    "word",
    ["yes", "no", "on", "off", "y", "n", "010", "0x1F", "0o7", "1_000", "+5", ".5", "5.", "1:30",
     "2024-01-01", ".inf", ".nan", "NaN", "=", "samples-000", "v1.0.0"],
)  # fmt: skip
def test_a_bare_word_of_yaml_is_text_unless_json_knows_it(word: str) -> None:
    assert parse_yaml(f"[{word}]", "spec") == [word]
    assert parse_yaml(f"{word}: {word}", "spec") == {word: word}


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("0", 0),
     ("-7", -7), ("42", 42), ("1.5", 1.5), ("-0.5e3", -500.0), ("1e3", 1000.0), ("'42'", "42"),
     ('"true"', "true"), ("!!str 42", "42")],
)  # fmt: skip
def test_the_words_that_json_knows(word: str, value: object) -> None:
    (found,) = parse_yaml(f"- {word}", "spec")
    assert found == value
    assert type(found) is type(value)


def test_field_names_of_yaml_are_always_text() -> None:
    assert parse_yaml("{1: a, true: b, null: c, 1.5: d}", "spec") == {
        "1": "a",
        "true": "b",
        "null": "c",
        "1.5": "d",
    }


def test_record_keys_that_look_like_numbers_stay_what_they_are() -> None:
    spec = from_yaml(
        "input_bck: a\noutput_shard_records: 1\nekm:\n  s-%d: [000123, 0x10, 1:30, no, '42']"
    ).spec
    assert spec.ekm == {"s-%d": ("000123", "0x10", "1:30", "no", "42")}


def test_json_is_read_as_strictly_as_json_is_meant() -> None:
    assert parse_json('{"a": [1, 1.5, true, null, "x"]}', "spec") == {
        "a": [1, 1.5, True, None, "x"]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"description": "\\ud800"}', "description: '\\ud800' cannot be written as UTF-8"),
        ('{"\\ud800": 1}', "the field name '\\ud800' is no text"),
        ('{"Config": {"\\ud800": 1}}', "Config: the field name '\\ud800' is no text"),
        ('{"ekm": {"a": [[[[[[[[[1]]]]]]]]]}}', "nested too deeply"),
    ],
)
def test_values_that_nothing_can_hold_are_refused_before_all_else(text: str, message: str) -> None:
    assert message in message_of(text)
