"""What is odd about a shard: one table of the container, from which jobs, ``dsort inspect`` and
``dsort verify`` take what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.containers.base import oddities_in, shortfall_in
from dsort.containers.registry import container_of
from dsort.containers.tar.oddities import TarNotes
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.tar_builder import END, header, member

TABLE = container_of(".tar").oddities
VOLUME_LABEL = header(b"a label", typeflag=b"V")


def inspected(directory: Path, data: bytes) -> dict[str, int]:
    (directory / "s.tar").write_bytes(data)
    summary = inspect_object(LocalBucket(directory), "s.tar")
    return {oddity.kind: oddity.count for oddity in summary.oddities}


def test_inspect_tells_of_volume_labels_and_lone_zero_blocks_as_a_job_does(tmp_path: Path) -> None:
    odd = VOLUME_LABEL + member(b"a.txt", b"a") + bytes(512) + member(b"b.txt", b"b") + END
    assert inspected(tmp_path, odd) == {"volume_labels": 1, "lone_zero_blocks": 1}
    assert inspected(tmp_path, member(b"a.txt", b"a") + END) == {}


@pytest.mark.parametrize(
    ("notes", "kinds"),
    [
        (TarNotes(blank=True, missing_end=True), ["blank"]),
        (TarNotes(missing_end=True), ["missing_end"]),
        (TarNotes(concatenated=2, lone_zero_blocks=3), ["concatenated", "lone_zero_blocks"]),
        (TarNotes(mended=(0, 4)), ["mended"]),
    ],
)
def test_each_note_is_said_once(notes: TarNotes, kinds: list[str]) -> None:
    assert [oddity.note for oddity, _ in oddities_in(TABLE, notes)] == kinds


def test_the_gravest_reason_says_why_a_shard_falls_short() -> None:
    assert shortfall_in(TABLE, TarNotes(trailing_bytes=1234, missing_end=True)) == (
        "1,234 bytes behind its end marker are no tar"
    )
    assert shortfall_in(TABLE, TarNotes(unusual_padding=512)) == ""


def test_every_note_of_a_tar_has_its_sentences() -> None:
    known = {field for field in TarNotes.__struct_fields__ if field != "shortfall"}
    assert {oddity.note for oddity in TABLE} == known
    for oddity in TABLE:
        assert oddity.inspected, oddity.note
        assert oddity.text, oddity.note
        assert oddity.kind or oddity.shortfall or oddity.note == "unsafe_prefixes"
