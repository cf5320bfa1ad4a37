"""Lines and their keys, found in windows of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat

import numpy as np
import pytest

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.lines import scan
from dsort.containers.lines.container import JSON_LINES, TEXT_LINES
from dsort.containers.lines.scan import BOM, KEYED_LINE_BYTES_MAX, LineNotes, line_feeds
from dsort.containers.tar.container import TAR
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError
from tests.support.datasets import Member, Shard
from tests.support.internals import MemberTable, bare_table, form_records
from tests.support.refusals import raises
from tests.support.scanning import columns_of, in_windows, payloads_of, stored_in

BY_ID = JSON_LINES.with_options(ContainerOptions(key_field="/id"))
ODD = (
    BOM + b'{"id": "a"}\r\n'
    b"\n"
    b" \t\r\n"
    b'{"id": "b", "x": {"id": 1}}\n'
    b' {"x": "\\"id\\": 3", "id": 7} \n'
    b'{"id": "\\u0063"}\n'
    b'{"id": "\xff", "text": "' + bytes(range(128, 256)) + b'"}\n'
    b'{"id": -0.50}'
)


def keys_of(members: MemberTable) -> list[bytes]:
    assert members.own.key_bytes is not None
    pairs = zip(members.names.tolist(), members.own.key_bytes.tolist(), strict=True)
    return [name[:length] for name, length in pairs]


@pytest.mark.parametrize("container", [JSON_LINES, BY_ID, TEXT_LINES])
@pytest.mark.parametrize("window_bytes", [1, 2, 3, 5, 16, 64])
def test_windows_of_any_size_find_the_same_lines(container: Container, window_bytes: int) -> None:
    whole = container.scan("a.jsonl", ODD)
    by_windows = in_windows(container, "a.jsonl", ODD, window_bytes)
    assert columns_of(by_windows) == columns_of(whole)


@pytest.mark.parametrize("block_bytes", [1, 2, 7])
def test_lines_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    whole = [columns_of(each.scan("a.jsonl", ODD)) for each in (JSON_LINES, BY_ID, TEXT_LINES)]
    monkeypatch.setattr(scan, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(scan, "_KEYS_BYTES", block_bytes)
    again = [columns_of(each.scan("a.jsonl", ODD)) for each in (JSON_LINES, BY_ID, TEXT_LINES)]
    assert again == whole


def test_lines_keep_their_bytes_and_what_is_odd_is_counted() -> None:
    members = JSON_LINES.scan("d/a.jsonl", ODD)
    kept = [line for line in ODD.removeprefix(BOM).splitlines(keepends=True) if line.strip()]
    assert stored_in(members, ODD) == b"".join(kept) + b"\n"
    assert members.notes == LineNotes(empty_lines=2, byte_order_mark=1, unended_line=1)
    assert keys_of(members) == [f"d/a-{n:09d}".encode() for n in range(6)]
    assert payloads_of(members, ODD) == [line.removesuffix(b"\n") for line in kept]


def test_keys_come_from_the_lines() -> None:
    assert keys_of(BY_ID.scan("a.jsonl", ODD)) == [b"a", b"b", b"7", b"c", b"\xff", b"-0.50"]


def test_white_space_behind_a_document_may_have_any_length() -> None:
    ends = [bytes(blanks) for count in range(8) for blanks in (b" " * count, b"\t\r" * count)]
    data = b"".join(b'{"id": %d}' % row + end + b"\n" for row, end in enumerate(ends))
    assert keys_of(BY_ID.scan("a.jsonl", data)) == [b"%d" % row for row in range(len(ends))]


def test_white_space_is_a_line_of_a_text_but_not_of_json() -> None:
    data = b" \n\r\n\n\t\nx\n"
    assert payloads_of(TEXT_LINES.scan("a.txt", data), data) == [b" ", b"\t", b"x"]
    assert payloads_of(JSON_LINES.scan("a.jsonl", data), data) == [b"x"]


@pytest.mark.parametrize("data", [b"", b"\n", BOM, b"\n" * 1_000_000])
def test_a_file_without_lines_has_no_records(data: bytes) -> None:
    for container in (JSON_LINES, BY_ID, TEXT_LINES):
        members = container.scan("a.jsonl", data)
        assert len(members) == 0
        assert members.notes.empty_lines == data.count(b"\n")  # type: ignore[attr-defined]


def test_a_line_longer_than_every_window_is_found() -> None:
    data = b'{"id": "long", "t": "' + b"x" * 3_000_000 + b'"}\n{"id": "short"}\n'
    for container in (JSON_LINES, BY_ID):
        members = in_windows(container, "a.jsonl", data, 1000)
        assert members.range_length.tolist() == [len(data) - 16, 16]


def test_a_line_that_is_too_long_to_look_for_its_key_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "KEYED_LINE_BYTES_MAX", 1 << 20)
    data = b'{"id": 1}\n' + b"x" * (4 << 20)
    with raises(CorruptShardError, "line 2", "1 MiB", shard="a.jsonl", offset=10):
        in_windows(BY_ID, "a.jsonl", data, 1000)
    assert len(in_windows(TEXT_LINES, "a.txt", data, 1000)) == 2


@pytest.mark.parametrize(
    "line",
    [
        b'{"x": 1}',
        b"[1, 2]",
        b'{"id": null}',
        b'{"id": {"a": 1}}',
        b'{"id": [1]}',
        b'{"id": false}',
        b'{"id": ""}',
        b'{"id": "\\ud800"}',
    ],
)
def test_a_line_without_a_key_is_named(line: bytes) -> None:
    with raises(ContentKeyError, "line 3 of shard a.jsonl", "field /id"):
        BY_ID.scan("a.jsonl", b'{"id": 1}\n\n' + line + b"\n")


def test_a_line_that_is_no_json_is_named_where_its_key_is_asked_for() -> None:
    data = b'{"id": 1}\n{"id": nope}\n'
    with raises(CorruptShardError, "line 2", shard="a.jsonl", offset=10):
        BY_ID.scan("a.jsonl", data)
    assert len(JSON_LINES.scan("a.jsonl", data)) == 2


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_file_that_ends_in_the_middle_of_a_document_may_not_be_whole(cut: int) -> None:
    data = b'{"id": 1}\n{"id": "abcdefgh"}\n'
    shortfall = JSON_LINES.scan("a.jsonl", data[:-cut]).notes.shortfall
    if cut in (1, 19):
        assert shortfall == ""  # a whole document; or the end of a line
    else:
        assert "its last line, 2, is cut off" in shortfall


def test_what_is_no_file_of_lines_is_refused() -> None:
    for container in (JSON_LINES, TEXT_LINES):
        with raises(CorruptShardError, "UTF-16", shard="a.jsonl", offset=0):
            in_windows(container, "a.jsonl", '{"a": 1}\n'.encode("utf-16"), 4)


def test_a_key_may_be_anything_that_json_can_say() -> None:
    keys = ["../a", "a b", "a.b", "é", 'say "id"', "a\nb", "\0"]
    data = "".join(json.dumps({"id": key}) + "\n" for key in keys).encode()
    assert keys_of(BY_ID.scan("a.jsonl", data)) == [key.encode() for key in keys]


@pytest.mark.parametrize("window_bytes", [8, 9, 10, 11, 1 << 10])
@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"one line\n", b"\n\n"])
def test_a_byte_order_mark_within_a_file_is_refused(head: bytes, window_bytes: int) -> None:
    data = head + b"\xef\xbb\xbftwo, after another file\nthree"
    with raises(CorruptShardError, shard="s.txt", offset=len(head)):
        _scan(data, window_bytes)


def _scan(data: bytes, window_bytes: int) -> None:
    in_windows(TEXT_LINES, "s.txt", data, window_bytes)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4096, 4103])
def test_line_feeds_are_found_however_many_there_are(size: int) -> None:
    rng = np.random.default_rng(size)
    for share in (0, 0.001, 0.02, 0.3, 1):
        block = np.where(rng.random(size + 3) < share, ord("\n"), ord("x")).astype(np.uint8)
        for part in (block[:size], block[3:]):
            assert line_feeds(part).tolist() == np.flatnonzero(part == ord("\n")).tolist()


class LongPayload:
    """The payload of each row: ``head``, and so many MiB of blanks."""

    are_sealed_later, shard_bytes = False, 0

    def __init__(self, head: bytes, blanks_mib: int) -> None:
        self._head, self._blanks_mib = head, blanks_mib

    def pieces(self, row: int) -> Iterator[bytes]:
        return chain([self._head], repeat(b" " * (1 << 20), self._blanks_mib))


@pytest.mark.parametrize(
    ("head", "blanks_mib", "named"),
    [
        (b'{"id": "a"}', KEYED_LINE_BYTES_MAX >> 20, "256 MiB"),
        (b'{"id": "b"}', 70, "field /id"),
        (b"no JSON", 70, ".jsonl"),
    ],
)
def test_a_record_in_which_no_key_can_be_found_is_refused_by_name(
    head: bytes, blanks_mib: int, named: str
) -> None:
    members = bare_table(TAR.scan("a.tar", Shard((Member("a.json", b"{}"),)).data))
    with raises(ConversionError, "record a", named):
        BY_ID.packed(members, form_records(members, "keep"), LongPayload(head, blanks_mib))
