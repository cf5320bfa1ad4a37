"""The steps of a transform as their users meet them: lists in files, mistakes, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash

from dsort.errors import SpecError, TransformError
from dsort.options import open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import parse_spec
from dsort.storage.network_policy import FetchPolicy
from dsort.transforms.base import InputPositions, readings_needed
from dsort.transforms.rekey import Rekey
from dsort.transforms.steps import Sample, Slice
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import count_of, record, records_out, refused, run_local, spec_of
from tests.support.internals import BytesColumn, KeySet, hash_keys, lines_of
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server
from tests.support.verified import assert_verified

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


def test_a_list_may_be_in_an_object_store(shard: Path, s3: S3Server) -> None:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    lists = open_with_settings("s3://steps/lists", root=shard, settings=settings)
    lists.create()
    lists.write("keys.txt", b"b\n")
    spec = with_steps({"keep_keys": {"file": "s3://steps/lists/keys.txt"}})
    run_local(shard, spec, settings=settings)
    assert records_out(shard) == ["b.jpg", "b.cls"]
    spec = with_steps({"keep_keys": {"file": "s3://steps/lists/other.txt"}})
    with raises(TransformError, "s3://", "other.txt"):
        run_local(shard, spec, settings=settings)


def test_a_list_that_cannot_be_had_is_named(shard: Path) -> None:
    with refused(shard, TransformError, "nowhere.txt", "transform.steps"):
        run_local(shard, with_steps({"keep_keys": {"file": "nowhere.txt"}}))


@pytest.mark.parametrize("file", ["/etc/passwd", "s3://bucket/keys.txt", "http://127.0.0.1:1/keys"])
def test_a_spec_from_the_network_reads_no_list_that_it_may_not(shard: Path, file: str) -> None:
    with raises(TransformError):
        run_local(shard, with_steps({"keep_keys": {"file": file}}), fetch=FetchPolicy())


def test_keys_whose_hashes_are_equal_stay_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dsort.data.text_sets.hash_column",
        lambda keys: hash_keys([key[:1] for key in keys.tolist()], len(keys)),
    )
    listed = KeySet.of(BytesColumn.of([b"ax", b"ay", b"b", b"b"]))
    asked = BytesColumn.of([b"ay", b"ax", b"az", b"b", b"c"])
    assert listed.has(asked).tolist() == [True, True, False, True, False]


def test_a_text_without_lines_lists_no_keys() -> None:
    assert [lines_of(text).tolist() for text in (b"", b"\n\r\n", b"x")] == [[], [], [b"x"]]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"fields": {"rename": {"jpg": "cls"}}}, ["record a", "in-0.tar", "two members a.cls"]),
        (
            {"require": {"extensions": ["jpg", "x;txt"], "on_missing": "abort"}},
            ["record a", "in-0.tar", "no member .x or .txt"],
        ),
        ({"rekey": "{key}.x"}, ["new key a.x", "record a", "has a dot"]),
        ({"rekey": "x/"}, ["has no name behind its last slash"]),
        ({"rekey": "{input}/{key}"}, ["{input} is the name of an input"]),
        ({"rekey": "{key}" * 5000}, ["record a of shard", "5,000 bytes, more than 4,096"]),
        ({"rekey": "../{key}"}, ["leads out of the directory"]),
        ({"rekey": "/{key}"}, ["leads out of the directory"]),
    ],
)
def test_what_a_step_cannot_do_names_the_record(
    step: dict[str, Any], words: list[str], shard: Path
) -> None:
    with refused(shard, TransformError, *words):
        run_local(shard, with_steps(step))


@pytest.mark.parametrize("kind", ["shuffle", "alphanumeric"])
@pytest.mark.parametrize("move", ["map", "spill"])
def test_numbers_count_what_the_steps_before_left_over_all_shards(
    kind: str, move: Any, tmp_path: Path
) -> None:
    keys = [[f"{shard}{number}" for number in range(shard * 7)] for shard in range(4)]
    shards = {
        f"in-{shard}.tar": Shard([m for key in own for m in record(key, "x")])
        for shard, own in enumerate(keys)
    }
    write_shards(tmp_path / "in", shards)
    dropped = {"11", "20", "35"}
    spec = with_steps(
        {"drop_keys": {"keys": sorted(dropped)}},
        {"slice": "3:30:2"},
        {"drop_keys": {"keys": ["15"]}},
        {"rekey": "%04d-{base}"},
        algorithm={"kind": kind},
        duplicate_keys="rename",
    )
    report = run_local(tmp_path, spec, move=move)
    left = [key for own in keys for key in own if key not in dropped][3:30:2]
    wanted = [f"{n:04d}-{key}.x" for n, key in enumerate(key for key in left if key != "15")]
    assert sorted(records_out(tmp_path)) == sorted(wanted)
    assert_verified(tmp_path, report.job_id)


@pytest.mark.parametrize(
    ("reaction", "kind", "left"),
    [
        ("exclude", "missing_members_excluded", ["a.jpg", "a.cls"]),
        ("warn", "missing_members", ["a.jpg", "a.cls", "b.png", "c.cls"]),
        ("ignore", "", ["a.jpg", "a.cls", "b.png", "c.cls"]),
    ],
)
def test_records_that_lack_members_are_counted_and_named(
    reaction: str, kind: str, left: list[str], tmp_path: Path
) -> None:
    members = [Member(name, b"1") for name in ("a.jpg", "a.cls", "b.png", "c.cls")]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    require = {"extensions": ["png;jpg", "cls"], "on_missing": reaction}
    report = run_local(tmp_path, spec_of(require=require))
    assert records_out(tmp_path) == left
    if kind:
        count, names = count_of(report, kind)
        assert (count, len(names)) == (2, 2)
        assert "b of shard in-0.tar has no member .cls" in str(names)
    assert count_of(report, "left_out_by_steps")[0] == (2 if reaction == "exclude" else 0)


def test_members_are_required_before_the_steps(tmp_path: Path) -> None:
    members = [Member(name, b"1") for name in ("a.jpg", "a.cls", "b.jpg")]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    spec = with_steps({"fields": {"keep": ["jpg"]}}, require={"extensions": ["cls"]})
    run_local(tmp_path, spec)
    assert records_out(tmp_path) == ["a.jpg"]
    parsed = parse_spec(spec).spec
    assert parse_spec(parsed.canonical()).spec == parsed
    with raises(SpecError, "'.x'", paths=["require"]):
        parse_spec(spec_of(require={"extensions": [".x"]}))


def test_equal_records_get_equal_keys_by_their_content(tmp_path: Path) -> None:
    members = [Member(f"{key}.x", b"same" if key in "ab" else b"other") for key in "abc"]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    report = run_local(tmp_path, with_steps({"rekey": "{xxh3}"}, duplicate_keys="drop"))
    hashes = {xxhash.xxh3_128_hexdigest(data) for data in (b"same", b"other")}
    assert {*records_out(tmp_path)} == {f"{each}.x" for each in hashes}
    assert count_of(report, "duplicate_keys_dropped")[0] == 1


def test_what_was_counted_is_enough_to_go_on() -> None:
    steps = [Slice.of("2:8"), Rekey.of("%d"), Sample.of({"fraction": 0.5}), Rekey.of("%d")]
    assert readings_needed(steps) == 2
    positions = InputPositions(steps)
    positions.add([3, 0, 9])
    assert [positions.firsts(shard) for shard in range(3)] == [(0, 0), (3, 1), (3, 1)]
    assert [positions.counts(shard) for shard in range(3)] == [(3, 1), (0, 0), (9, 5)]
    positions.add([1, 0, 2])
    assert positions.is_complete
    again = InputPositions.of(steps, positions.rows())
    assert [again.firsts(shard) for shard in range(3)] == [(0, 0, 0), (3, 1, 1), (3, 1, 1)]
    with raises(ValueError):
        InputPositions.of(steps[:1], positions.rows())


@pytest.mark.parametrize("text", ["0:", "3:9", "2:30:4", ":5:3", "1::2", "9:3"])
def test_a_slice_leaves_as_many_as_it_says(text: str) -> None:
    step = Slice.of(text)
    bounds = [int(part) if part else None for part in text.split(":")]
    wanted = set(range(100)[slice(*bounds)])
    for first in range(12):
        for count in range(7):
            assert step.count_left(first, count) == len(wanted & {*range(first, first + count)})
