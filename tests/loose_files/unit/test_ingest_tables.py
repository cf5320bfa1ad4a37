"""What a loose file becomes by its name, and what tables, class maps and lists of labels say of
it; all may be hostile."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from pyarrow import parquet

from dsort.errors import InputError
from dsort.loose_files.members import (
    HIDDEN,
    NO_EXTENSION,
    ODD_NAME,
    OTHER,
    Members,
    NameRules,
)
from dsort.loose_files.metadata import add_described, class_map_of, json_payload, labels_of, rows_of
from tests.support.refusals import raises


def parquet_of(rows: list[dict[str, object]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def test_tables_of_each_kind_have_the_same_rows() -> None:
    csv = b'\xef\xbb\xbfa,b\r\n1,"x,\ny"\r\n\r\n2,\r\n'
    assert [row for _, row in rows_of("t.csv", csv)] == [
        {"a": "1", "b": "x,\ny"},
        {"a": "2", "b": ""},
    ]
    jsonl = b'{"a": 1, "b": [1.5, null]}\n\n{"a": 2}'
    assert list(rows_of("t.jsonl", jsonl)) == [
        ("t.jsonl, line 1", {"a": 1, "b": [1.5, None]}),
        ("t.jsonl, line 3", {"a": 2}),
    ]
    rows: list[dict[str, object]] = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert [row for _, row in rows_of("t.parquet", parquet_of(rows))] == rows


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("t.csv", b"a,a\n1,2\n", ""),
        ("t.csv", b"a,b\n1\n", "line 2"),
        ("t.csv", b'a\n"x', "line 2"),
        ("t.csv", b"a\n\xff", "byte 2"),
        ("t.jsonl", b"{}\n[1]", "line 2"),
        ("t.jsonl", b"{}\n{", "line 2"),
        ("t.jsonl", b'{}\n{"a": [' + b"[]," * (6 << 20) + b"[]]}", "characters"),
        ("t.jsonl", b'{"a":' + b"[" * 100_000, "line 1"),
        ("t.parquet", b"PAR1nothing", ""),
        ("t.txt", b"", ""),
    ],
)
def test_what_is_no_table_is_refused_by_file_and_line(name: str, data: bytes, named: str) -> None:
    with raises(InputError, name, named):
        list(rows_of(name, data))


def test_what_json_cannot_say_is_refused() -> None:
    for value in (b"bytes", float("nan")):
        with raises(InputError, "row 3"):
            json_payload("row 3", {"a": value})


@pytest.mark.parametrize(
    "data",
    [
        b'{"cat": 0, "dog": 1}',
        b'["cat", "dog"]',
        b"cat,0\ndog,1\n",
        b"class,index\r\ncat,0\r\ndog,1",
        b"cat\ndog\n",
    ],
)
def test_a_class_map_is_json_or_lines(data: bytes) -> None:
    assert class_map_of("map", data) == {b"cat": 0, b"dog": 1}


def test_a_matlab_file_is_no_class_map() -> None:
    with raises(InputError, "meta.mat", hint="docs/ingest.md"):
        class_map_of("meta.mat", b"MATLAB 5.0 MAT-file, Platform: posix".ljust(126) + b"\x00\x01IM")


def test_a_class_map_of_json_is_no_longer_than_half_a_million_classes_need() -> None:
    classes = b"[" + b",".join(b'"n%08d"' % number for number in range(500_000)) + b"]"
    assert len(class_map_of("map", classes)) == 500_000
    with raises(InputError, "map", hint="name,number"):
        class_map_of("map", b"[" + b"[]," * (6 << 20) + b"[]]")


@pytest.mark.parametrize(
    "data",
    [
        *(b"a,1\na,2", b"a,1,2", b"a,x\nb,y", b'{"a": 1.5}', b'{"a": true}', b"[1]", b"[", b"\xff"),
        b'{"a": 0, "a": 1}',
        b'{"a": 1' + b"0" * 18 + b"}",
        b'{"\\ud800": 0}',
        b'["\\ud800"]',
        b'[["a", 1]]',
        b"[{}]",
    ],
)
def test_what_is_no_class_map_is_refused(data: bytes) -> None:
    with raises(InputError, "map"):
        class_map_of("map", data)


@pytest.mark.parametrize(
    "row",
    [b'{"file_name": "\\ud800.jpg"}', b'{"file_name": "a.jpg", "\\ud800_file_name": "b.jpg"}'],
)
def test_names_that_are_no_text_are_refused_by_line(row: bytes) -> None:
    files = {b"metadata.jsonl": (1, 1), b"a.jpg": (1, 1), b"b.jpg": (1, 1)}
    with raises(InputError, "metadata.jsonl, line 1"):
        add_described(Members(), NameRules(), 0, files, lambda _: row)


def test_labels_are_a_number_a_line() -> None:
    assert labels_of("l", b"490\n361\n\n7\r\n") == [490, 361, 7]
    with raises(InputError, "l, line 2: 'x'"):
        labels_of("l", b"1\nx")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"a.jpg", (b"a", b"jpg")),
        (b"a/b.c/d.seg.png", (b"a/b.c/d", b"seg.png")),
        (b"a/\xff\n.x", (b"a/\xff\n", b"x")),
        (b"..a.jpg", HIDDEN),
        (b".git/config.txt", HIDDEN),
        (b"a/.b.jpg", HIDDEN),
        (b"README", NO_EXTENSION),
        (b"a.b/README", NO_EXTENSION),
        (b"a.", NO_EXTENSION),
        (b"/etc/passwd.txt", ODD_NAME),
        (b"a//b.txt", ODD_NAME),
        (b"../b.txt", ODD_NAME),
        (b"a/../b.txt", ODD_NAME),
        (b"a/./b.txt", ODD_NAME),
        (b"a\0.txt", ODD_NAME),
    ],
)
def test_a_name_is_parted_at_its_first_dot(path: bytes, found: object) -> None:
    assert NameRules().member_of(path) == found


def test_extensions_are_chosen_in_any_case() -> None:
    rules = NameRules(extensions=[b"jpg"])
    assert rules.member_of(b"a.JPG") == (b"a", b"JPG")
    assert rules.member_of(b"a.txt") == OTHER
