"""What the registry says of containers and codecs without loading them is what they say; what is
odd about a shard has one table; kinds of sidecars that packages add have names of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.containers import registry
from dsort.containers.base import oddities_in, shortfall_in
from dsort.containers.registry import (
    codec_of,
    container_of,
    is_columnar,
    is_supported,
    register,
)
from dsort.containers.tar.oddities import TarNotes
from dsort.shard_contents import inspect_object
from dsort.sidecars import kinds
from dsort.sidecars.base import Sidecar
from dsort.sizes import agreed
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import CONTAINERS
from tests.support.refusals import raises
from tests.support.slow_codec import SlowCodec
from tests.support.stored_zip import StoredZip
from tests.support.tar_builder import END, header, member


@pytest.mark.parametrize("extension", CONTAINERS)
def test_a_container_is_columnar_where_its_suffix_is(extension: str) -> None:
    container = container_of(extension)
    assert container.is_columnar is is_columnar(extension)
    assert extension in container.suffixes


def test_a_container_with_a_suffix_of_dsorts_own_is_refused_with_all_of_its_suffixes() -> None:
    class Other(StoredZip):
        suffixes = (".other", ".tar")

    tar = container_of("a.tar")
    with pytest.raises(ValueError, match=r"'\.tar'"):
        register(Other())
    assert container_of("a.tar") is tar
    assert not is_supported("a.other")


def test_a_codec_with_a_suffix_of_dsorts_own_is_refused() -> None:
    class Other(SlowCodec):
        suffixes = (".gz",)

    with pytest.raises(ValueError, match=r"'\.gz'"):
        registry._added_codecs.register(Other())
    codec = codec_of("a.tar.gz")
    assert codec is not None
    assert not isinstance(codec, SlowCodec)


@pytest.mark.parametrize("extension", CONTAINERS)
def test_the_texts_of_a_container_have_forms_for_one_and_many(extension: str) -> None:
    for oddity in container_of(extension).oddities:
        for text in filter(None, (oddity.warning, oddity.text)):
            said = agreed(text, 1) != agreed(text, 2)
            assert said or oddity.note in ("blank", "missing_end"), text


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


@pytest.mark.parametrize("name", ["none", "lineage", "samples", "wids", "../up", "a/b", "", "A b"])
def test_a_name_that_is_taken_or_no_word_is_refused(name: str) -> None:
    class Own(Sidecar):
        kind = name

    with raises(ValueError, name):
        kinds.SIDECARS.register(kinds._checked(Own))
    assert name == "wids" or name not in kinds.SIDECARS
