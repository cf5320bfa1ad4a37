"""JSON as it is read and written: one field of a document, found exactly, with and without
decoding the document; and one row a line, readable and quick to write."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import (
    ROWS_AT_ONCE,
    JsonNumber,
    JsonPointer,
    JsonSizeError,
    JsonSyntaxError,
    ManifestOutput,
    Rows,
    is_json,
    json_bytes,
    wids_index_bytes,
)
from tests.support.manifests import manifest_bytes
from tests.support.refusals import raises

DOCUMENT = b'{"a": {"b/c": [10, {"~": "x"}]}, "": 1, "a.b": 2, "n": -0, "e": 1e2, "t": true}'


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/a/b~1c/0", "10"),
        ("/a/b~1c/1/~0", "x"),
        ("/", "1"),
        ("a.b", "2"),
        ("/n", "-0"),
        ("e", "1e2"),
        ("t", True),
    ],
)
def test_a_pointer_leads_to_a_value_as_it_is_written(pointer: str, value: object) -> None:
    assert JsonPointer.parse(pointer).value(DOCUMENT) == value


@pytest.mark.parametrize("pointer", ["/a/b", "/a/b~1c/2", "/a/b~1c/-", "/n/x", "b", "/a/b~1c/01x"])
def test_what_is_not_there_is_a_key_error(pointer: str) -> None:
    with pytest.raises(KeyError):
        JsonPointer.parse(pointer).value(DOCUMENT)


def test_a_number_of_any_length_keeps_its_digits() -> None:
    digits = "9" * 400 + ".50"
    value = JsonPointer.parse("n").value(f'{{"n": {digits}}}'.encode())
    assert isinstance(value, JsonNumber)
    assert value == digits


@pytest.mark.parametrize(
    "document",
    [b'{"a": 1', b'{"a": 1}{"a": 2}', b"", b"{'a': 1}", b"[" * 100_000, b'{"a": "\n"}'],
)
def test_what_is_no_json_is_an_error_of_its_own(document: bytes) -> None:
    assert not is_json(document)
    with pytest.raises(JsonSyntaxError):
        JsonPointer.parse("a").value(document)


def test_bytes_that_are_no_utf8_are_read_and_come_out_again() -> None:
    value = JsonPointer.parse("a").value(b'{"a": "\xff"}')
    assert value.encode("utf-8", "surrogateescape") == b"\xff"


def plain(documents: list[bytes], name: str = "id") -> list[bytes | None]:
    block = b"\n".join([*documents, b""])
    ends = np.cumsum([len(each) + 1 for each in documents]) - 1
    starts = ends - [len(each) for each in documents]
    return JsonPointer.parse(name).plain_tokens(block, starts, ends)


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (b'{"id": "a", "t": "{"}', b'"a"'),
        (b'{"t": "[{", "id" : -1.5e3}', b"-1.5e3"),
        (b'{"id":"\xff"}', b'"\xff"'),
        (b'{"t": "x", "id": "a"}', b'"a"'),
    ],
)
def test_a_plain_field_is_found_without_decoding(document: bytes, value: bytes) -> None:
    assert plain([document]) == [value]


@pytest.mark.parametrize(
    "document",
    [
        b'{"x": {"id": "a"}}',
        b'{"x": [{"id": "a"}], "y": 1}',
        b'{"id": "a", "x": {"id": "b"}}',
        b'{"id": "a", "id": "b"}',
        b'{"id": "a", "\\u0069d": "b"}',
        b'{"id": "a\\nb"}',
        b'{"t": "\\"id\\": 1"}',
        b'{"say \\"id": 5}',
        b'{"x": "id"}',
        b'{"id": [1]}',
        b'{"id": 007}',
        b'{"id": 1 2}',
        b'[{"id": 1}]',
        b'"id"',
        b'{"id": "a"',
        b"{",
        b"",
        b'{"other": 1}',
    ],
)
def test_what_is_not_sure_is_left_to_the_decoder(document: bytes) -> None:
    assert plain([b'{"id": "before"}', document, b'{"id": "after"}']) == [
        b'"before"',
        None,
        b'"after"',
    ]


NAMES = st.sampled_from(["id", "i", "idx", 'say "id', "\\id", "é", "a/b", "", "id\\"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('id":{}[],\\\n é\u20ac0'), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.builds(
    lambda value, plain_text, compact: json.dumps(
        value, ensure_ascii=not plain_text, separators=(",", ":") if compact else None
    ).encode(),
    st.dictionaries(NAMES, VALUES, max_size=5) | VALUES,
    st.booleans(),
    st.booleans(),
)


@given(st.lists(DOCUMENTS, min_size=1, max_size=6), NAMES)
def test_a_plain_value_is_always_the_one_that_decoding_finds(
    documents: list[bytes], name: str
) -> None:
    if name.startswith("/") or not name:
        return
    for document, value in zip(documents, plain(documents, name), strict=True):
        if value is not None:
            expected = JsonPointer.parse(name).value(document)
            is_text = not isinstance(expected, JsonNumber)
            assert value.decode() == (f'"{expected}"' if is_text else expected)


@given(DOCUMENTS, NAMES)
def test_decoding_finds_what_the_json_module_finds(document: bytes, name: str) -> None:
    whole: Any = json.loads(document, parse_float=JsonNumber, parse_int=JsonNumber)
    pointer = JsonPointer("", (name,))
    if isinstance(whole, dict) and name in whole:
        found = pointer.value(document)
        assert type(found) is type(whole[name])
        assert found == whole[name] or isinstance(found, list | dict), "numbers in it are no text"
    else:
        with pytest.raises(KeyError):
            pointer.value(document)


def test_a_document_whose_values_would_fill_memory_is_not_decoded() -> None:
    document = b'{"x": [' + b"[]," * (1 << 20) + b"[]]}"
    with raises(JsonSizeError):
        JsonPointer.parse("y").value(document)
    assert is_json(document + b" \r\n")
    assert not is_json(document[:-1])


def test_rows_are_lines_and_all_else_is_indented() -> None:
    content = {
        "a": 1,
        "b": {"c": Rows([{"x": 1, "y": "é"}, [2, None]]), "d": [{"e": 1}]},
        "empty": {},
    }
    assert json_bytes(content).decode() == (
        "{\n"
        '  "a": 1,\n'
        '  "b": {\n'
        '    "c": [\n'
        '      {"x": 1, "y": "é"},\n'
        "      [2, null]\n"
        "    ],\n"
        '    "d": [\n'
        "      {\n"
        '        "e": 1\n'
        "      }\n"
        "    ]\n"
        "  },\n"
        '  "empty": {}\n'
        "}\n"
    )


@pytest.mark.parametrize("count", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
def test_any_number_of_rows_reads_back(count: int) -> None:
    rows = [{"name": f"line\nof {number}", "n": number} for number in range(count)]
    text = json_bytes({"before": 1, "rows": Rows(iter(rows)), "after": {"more": Rows([])}})
    assert json.loads(text) == {"before": 1, "rows": rows, "after": {"more": []}}
    assert text.count(b"\n") == 7 + (count + 1 if count else 0)


def test_nothing_is_an_empty_object() -> None:
    assert json_bytes({}) == b"{}\n"


def test_names_that_are_not_utf8_survive() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    text = json_bytes({"a": name, "b": Rows([[name]]), name: 1})
    assert json.loads(text) == {"a": name, "b": [[name]], name: 1}
    text.decode("utf-8")


def _outputs() -> list[ManifestOutput]:
    return [ManifestOutput(f"out-{n}.tar", 3, 6, 30, 10_240, f"{n:016x}") for n in (10, 9)]


def test_every_output_shard_is_a_line_of_the_manifest() -> None:
    text = manifest_bytes(
        job_id="20260101-000000-000000",
        spec={"input_bck": {"name": "a"}},
        inputs=[],
        outputs=_outputs(),
    ).decode()
    assert [line.strip().rstrip(",") for line in text.splitlines() if "xxh3" in line] == [
        '{"name": "out-10.tar", "records": 3, "members": 6, "payload_bytes": 30, '
        '"file_bytes": 10240, "xxh3": "000000000000000a"}',
        '{"name": "out-9.tar", "records": 3, "members": 6, "payload_bytes": 30, '
        '"file_bytes": 10240, "xxh3": "0000000000000009"}',
    ]
    document = json.loads(text)
    assert document["inputs"] == []
    assert document["totals"]["file_bytes"] == 20_480


def test_every_shard_is_a_line_of_the_wids_index_in_order_of_names() -> None:
    text = wids_index_bytes("job", _outputs(), ["a" * 32, "b" * 32])
    document = json.loads(text)
    assert [shard["url"] for shard in document["shardlist"]] == ["out-10.tar", "out-9.tar"]
    assert [shard["md5sum"] for shard in document["shardlist"]] == ["a" * 32, "b" * 32]
    assert text.count(b"\n") == len(document) + 2 + 1 + 2
