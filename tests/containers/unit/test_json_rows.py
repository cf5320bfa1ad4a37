"""JSON with one row a line: the same content as any other, readable, and quick to write."""

from __future__ import annotations

import json

import pytest

from tests.support.internals import ROWS_AT_ONCE, ManifestOutput, Rows, json_bytes, wids_index_bytes
from tests.support.manifests import manifest_bytes


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
