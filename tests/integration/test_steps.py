"""The steps of a transform as their users meet them: lists in files, mistakes, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.data.columns import BytesColumn
from dsort.data.hashes import hash_keys
from dsort.data.key_set import KeySet, lines_of
from dsort.errors import SpecError, TransformError
from dsort.options import open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec import parse_spec
from dsort.storage.network_policy import FetchPolicy
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import count_of, record, records_out, refused, run_local, spec_of
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")


def with_steps(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return spec_of(transform={"steps": list(steps)}, **fields)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    members = [m for key in ("a", "b", "c.d") for m in record(key, "jpg", "cls")]
    write_shards(tmp_path / "in", {"in-0.tar": Shard([*members, Member("stray", b"1")])})
    return tmp_path


@pytest.mark.parametrize(
    "text", ["a\nstray\n", "\ufeffa\r\nstray", "stray\n\n\na\na\n", "a\r\n\r\nstray\r\n"]
)
def test_a_list_of_keys_is_read_however_its_lines_end(text: str, shard: Path) -> None:
    (shard / "keys.txt").write_text(text, newline="")
    step = {"keep_keys": {"file": str(shard / "keys.txt")}}
    report = run_local(shard, with_steps(step))
    assert records_out(shard) == ["a.jpg", "a.cls", "stray"]
    assert count_of(report, "left_out_by_steps")[0] == 2


def test_an_empty_list_keeps_nothing_and_drops_nothing(shard: Path) -> None:
    (shard / "keys.txt").touch()
    run_local(shard, with_steps({"drop_keys": {"file": str(shard / "keys.txt")}}))
    assert len(records_out(shard)) == 7
    assert run_local(shard, with_steps({"keep_keys": {"keys": []}}), overwrite=True).records == 0


def test_a_list_may_be_in_an_object_store(shard: Path, s3: S3Server) -> None:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    lists = open_with_settings("s3://steps/lists", root=shard, settings=settings)
    lists.create()
    lists.write("keys.txt", b"b\n")
    spec = with_steps({"keep_keys": {"file": "s3://steps/lists/keys.txt"}})
    run_local(shard, spec, settings=settings)
    assert records_out(shard) == ["b.jpg", "b.cls"]
    spec = with_steps({"keep_keys": {"file": "s3://steps/lists/other.txt"}})
    with pytest.raises(TransformError, match=r"cannot read list of keys s3://.*/other\.txt"):
        run_local(shard, spec, settings=settings)


def test_a_list_that_cannot_be_had_is_named(shard: Path) -> None:
    with refused(shard, TransformError, "list of keys nowhere.txt", "transform.steps"):
        run_local(shard, with_steps({"keep_keys": {"file": "nowhere.txt"}}))


@pytest.mark.parametrize("file", ["/etc/passwd", "s3://bucket/keys.txt", "http://127.0.0.1:1/keys"])
def test_a_spec_from_the_network_reads_no_list_that_it_may_not(shard: Path, file: str) -> None:
    with pytest.raises(TransformError, match="list"):
        run_local(shard, with_steps({"keep_keys": {"file": file}}), fetch=FetchPolicy())


def test_keys_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dsort.data.key_set.hash_column",
        lambda keys: hash_keys([key[:1] for key in keys.tolist()], len(keys)),
    )
    listed = KeySet.of(BytesColumn.of([b"ax", b"ay", b"b", b"b"]))
    asked = BytesColumn.of([b"ay", b"ax", b"az", b"b", b"c"])
    assert listed.has(asked).tolist() == [True, True, False, True, False]


def test_lines_of_nothing_are_none() -> None:
    assert [lines_of(text).tolist() for text in (b"", b"\n\r\n", b"x")] == [[], [], [b"x"]]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"fields": {"rename": {"jpg": "cls"}}}, ["record a", "in-0.tar", "two members a.cls"]),
        (
            {"require": {"members": ["jpg", "x;txt"], "lacking": "abort"}},
            ["record a", "in-0.tar", "no member .x or .txt"],
        ),
        ({"rekey": "{key}.x"}, ["new key a.x", "record a", "has a dot"]),
        ({"rekey": "x/"}, ["has no name behind its last slash"]),
        ({"rekey": "../{key}"}, ["leads out of the directory"]),
        ({"rekey": "/{key}"}, ["leads out of the directory"]),
    ],
)
def test_what_a_step_cannot_do_names_the_record(
    step: dict[str, Any], words: list[str], shard: Path
) -> None:
    with refused(shard, TransformError, *words):
        run_local(shard, with_steps(step))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"keep_keys": {}}, "keep_keys: needs either keys or file, but has neither"),
        (
            {"drop_keys": {"keys": [], "file": "x"}},
            "drop_keys: needs either keys or file, but has both",
        ),
        ({"keep_keys": {"keyz": []}}, "keep_keys.keyz"),
        ({"sample": {"fraction": 1.5}}, "sample.fraction: must be at most 1"),
        ({"sample": {}}, "sample.fraction: is required"),
        ({"fields": {}}, "fields: says nothing to do"),
        ({"fields": {"keep": [".jpg"]}}, "fields: '.jpg' begins with a dot"),
        ({"fields": {"keep": ["a:x", "b:x"]}}, "fields: gives x two names, b and a"),
        ({"require": {}}, "require.members: is required"),
        ({"require": {"members": []}}, "require: names no member"),
        ({"require": {"members": ["jpg;.png"]}}, "require: '.png' begins with a dot"),
        ({"rekey": "{kye}"}, "rekey: has {kye}, which means nothing here"),
        ({"rekey": "{key"}, "rekey: has a brace without its partner"),
    ],
)
def test_a_mistake_in_a_step_is_told_with_the_spec(step: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec(with_steps(step))
    assert f"transform.steps[0].{words}" in str(refused.value)
