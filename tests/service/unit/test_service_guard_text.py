"""The text of a spec from the network is read within limits: whatever it says, the answer is there
before a second is over, and it is no longer than a screen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import DsortError, KeyMapError, SpecError, TooLargeError
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.service.security.spec_text import TextLimits, bounded_problems, check_fields, parse_text
from dsort.spec.load import parse_spec
from tests.support.internals import (
    BytesColumn,
    KeyMap,
    check_output_name,
    entries_of_mapping,
    glob_regex,
    parse_template,
)
from tests.support.refusals import raises

SECONDS_MAX = 3.0
MESSAGE_CHARACTERS_MAX = 60_000

PLAIN = {"input_bck": "in", "output_format": "x-%d", "output_shard_size": 1}


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Every single one of these tests is over at once."""
    parse_text(b"a: 1")
    parse_spec(PLAIN)  # imports
    glob_regex("*")
    begin = time.process_time()
    yield
    assert time.process_time() - begin < SECONDS_MAX


def read(text: str | bytes, root: Path = Path("/nowhere")) -> None:
    """What the service does with a body."""
    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    with bounded_problems():
        check_spec(parse_spec(parse_text(body)).spec, SpecPolicy(root=root))


def refused(text: str | bytes, error: type[DsortError] = SpecError) -> str:
    with pytest.raises(error) as caught:
        read(text)
    said = f"{caught.value}{caught.value.hint}"
    assert len(said) < MESSAGE_CHARACTERS_MAX
    return said


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{now}: &{now} [{','.join([f'*{before}'] * 9)}]\n"
    for before, now in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (LAUGHS, ""),
        (LAUGHS + "#" * 50_000, ""),
        ("a: &a [*a]", ""),
        ("a: &a {b: *a}", ""),
        ("a: &a {<<: *a}", ""),
        (LAUGHS.replace("[", "{<<: [").replace("]", "]}").replace("x", "{}"), ""),
        ("[" * 60_000, ""),
        ("a: " + "[" * 60_000, ""),
        ("a: " + "{b: " * 10_000, ""),
        ("- " * 30_000, ""),
        ("? " * 30_000, ""),
        ('{"a":' + "[" * 900_000, ""),
        ('{"a":' * 100_000, ""),
        ('{"a":' * 7 + "1" + "}" * 7, ""),
        ("a: !!python/object/apply:os.system [ls]", "!!"),
        ("a: !!timestamp 2024-01-01", "!!"),
        ('{"seed": ' + "1" * 1_000_000 + "}", ""),
        ('{"output_shard_records": ' + "1" * 40 + "}", "output_shard_records"),
        ("seed: " + "1" * 60_000, ""),
        ('{"x": 1e999999999}', "x"),
        ('{"description": "' + "x" * 900_000 + '"}', "4,096 characters"),
        ('{"description": "a\\u001b[2Jb"}', ""),
        ('{"input_bck": "a\\u0000b"}', ""),
        ('{"' + "x" * 900_000 + '": 1}', ""),
        ('{"a\\nb": 1}', ""),
        ('{"input_bck": "\\ud800"}', "input_bck"),
        (json.dumps({f"f{n}": n for n in range(60_000)}), "64 fields"),
        (json.dumps({f"input_bc{n}": n for n in range(60)}), "11"),
        ("\n".join(f"f{n}: {n}" for n in range(3_000)), "64 fields"),
        ("{" + ",".join(f'"{n}":0' for n in range(90_000)) + ',"89999":0}', "89999"),
        (json.dumps({"objnames": ["x"] * 100_001}), "100,000 items"),
        (json.dumps({"ekm": {f"x{n}-%d": [] for n in range(20_000)}}), "10,000 templates"),
        (b"\xff\xfe", "byte 0"),
        ("[1]", ""),
        ("", ""),
    ],
    ids=range(35),
)
def test_a_text_that_is_too_much_is_refused_at_once(text: str | bytes, named: str) -> None:
    assert named in refused(text)


def test_a_text_that_is_too_long_is_refused_by_its_size() -> None:
    refused(b"{" + b" " * TextLimits().bytes_max, TooLargeError)
    assert "as JSON" in refused("a: 1\n" + "#" * TextLimits().yaml_bytes_max, TooLargeError)


def test_a_number_of_problems_is_reported_that_can_be_read() -> None:
    names = [f"../{number}.tar" for number in range(3_000)]
    said = refused(json.dumps({**PLAIN, "input_format": {"objnames": names}}))
    assert "and 2,950 more" in said
    assert said.count("\n") < 2 * TextLimits().problems_max + 2


EVIL: list[dict[str, Any]] = [
    {"input_format": {"glob": "*a" * 1_000 + "b"}},
    {"input_format": {"glob": "**/*a" * 500 + "b"}},
    {"input_format": {"glob": "[" * 4_000}},
    {"input_format": {"glob": "[/" * 2_000}},
    {"input_format": {"template": "{a,b}" * 500 + ".tar"}},
    {"input_format": {"template": "{a,b}{c,d}{0..9}" * 6 + ".tar"}},
    {"input_format": {"template": "{0..9}" * 600}},
    {"input_format": {"template": "{" * 4_000}},
    {"input_format": {"template": "{a" * 1_300 + "}" * 1_300}},
    {"input_format": {"template": "{" + "a," * 2_000 + "}.tar"}},
    {"input_format": {"template": "{0..9999999999999999999999}"}},
    {"input_format": {"template": "{" + "9" * 2_000 + ".." + "9" * 2_000 + "}"}},
    {"input_format": {"template": "a@1" * 1_300}},
    {"input_format": {"template": "a-{0..9}.tar::" * 250 + "a.tar"}},
    {"input_format": {"template": "{a..z..0}.tar"}},
    {"input_format": {"template": "{a..z..99999999999999999999999999999}.tar"}},
    {"output_format": "a@1" * 1_300},
    {"output_format": "{0..1}" * 600},
    {"output_format": "%0999999999d"},
    {"output_format": "%d%d" * 1_000},
    {"output_format": "{1..2}" + "}" * 4_000},
    {"output_bck": "http://s3" + "-a" * 120 + "!.x/y"},
    {"output_bck": "http://s3" + "-a" * 120 + ".x/y"},
    {"output_bck": "http://" + "s3." * 80 + "x/y"},
    {"output_bck": "http://" + "a" * 4_000 + "/y"},
    {"output_bck": "http://h:" + "1" * 4_000 + "/y"},
    {"input_bck": "s3://" + "a." * 2_000},
    {"input_bck": "az://" + "a-" * 2_000},
    {"input_bck": "@" * 4_000},
    {"input_bck": "s3:" + "/" * 4_000 + "@"},
    {"input_bck": "x" * 4_000},
    {"input_bck": "x/" * 2_000},
    {"input_bck": {"name": "x", "provider": "a" * 4_000}},
    {"max_mem_usage": "1" * 4_000 + "%"},
    {"max_mem_usage": "1." + "1" * 4_000 + "GB"},
    {"output_shard_size": "-" + " " * 4_000 + "x"},
    {"algorithm": {"kind": "a" * 4_000}},
    {"algorithm": {"kind": "content", "json_field": "a." * 2_000}},
    {"ekm_file": "http://" + "@" * 4_000},
    {"ekm_file": "http://" + "a:" * 2_000},
]


@pytest.mark.parametrize("fields", EVIL, ids=range(len(EVIL)))
def test_an_evil_field_is_judged_at_once(fields: dict[str, Any], tmp_path: Path) -> None:
    body = json.dumps({**PLAIN, **fields})
    said = ""
    try:
        read(body, tmp_path)
    except DsortError as error:
        said = str(error)
    assert len(said) < MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("*a" * 300 + "b", "a" * 4_000),
        ("**/*a" * 200 + "b", "a/" * 2_000),
        ("?*" * 100 + "x", "y" * 4_000),
        ("[a-z]*" * 100 + "!", "y" * 4_000),
    ],
)
def test_a_glob_is_matched_in_linear_time(glob: str, name: str) -> None:
    assert not glob_regex(glob).fullmatch(name)


@pytest.mark.parametrize(
    "key", ["(a*)*b", "(a|a)*b", "(a+)+$b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){20}a{20}b", "a{0,9}" * 9]
)
def test_a_key_of_a_key_map_is_matched_in_linear_time(key: str) -> None:
    import numpy as np

    keymap = KeyMap.of(entries_of_mapping({"x-%d": [key]}))
    names = BytesColumn.of([b"a" * 5_000 for _ in range(20)])
    match = keymap.lookup(names, names, np.arange(21))
    assert len(match.missing) == 20


@pytest.mark.parametrize("key", ["((a{100}){100}){100}", "(" * 1_000, r"(a)\1", "a**"])
def test_a_key_that_is_too_much_is_refused(key: str) -> None:
    with pytest.raises(KeyMapError):
        KeyMap.of(entries_of_mapping({"x-%d": [key]}))


def test_a_template_from_a_key_map_has_a_length() -> None:
    for text in ("@1" * 100_000, "{1..1}" * 100_000, "x" * 9_000 + "%d"):
        with raises(ValueError, "8192 characters"):
            parse_template(text)


@pytest.mark.parametrize("sign", ["\n", "\x00", "\x1b", "\x7f", "\x9b", "\r", "\t"])
def test_no_output_has_control_characters_wherever_its_template_comes_from(sign: str) -> None:
    with raises(ValueError):
        check_output_name(f"a{sign}b.tar")


def test_what_is_within_the_limits_is_read() -> None:
    fields = {
        **PLAIN,
        "description": "two\nlines",
        "ekm_file_sep": "\x01",
        "output_format": None,
        "ekm": {f"x{number}-%d": [f"key{number}"] for number in range(2_000)},
        "algorithm": {"kind": "shuffle", "seed": 10**30},
    }
    check_fields(fields)
    assert parse_text(json.dumps(fields).encode()) == fields
    assert parse_text(b"\xef\xbb\xbf{}") == {}
