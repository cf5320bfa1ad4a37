"""Results that are amended: records are removed from them, and shards are added, each in one commit
with a manifest that lists the whole result."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dsort
from dsort import api
from dsort.amendments import append_fields
from dsort.errors import (
    DsortError,
    DuplicateError,
    ForbiddenError,
    InputError,
    JobConflictError,
    SpecError,
    StorageError,
)
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.amending import append, keys_of, made, newest, options, remove, verify
from tests.support.commands import CommandLine
from tests.support.container_kinds import kind_named, some_records
from tests.support.datasets import Shard, files_of, tree_of, write_shards
from tests.support.engine import record, run_local, shard_of, spec_of
from tests.support.internals import (
    OutputNames,
    parse_manifest,
    without_names,
)
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

KINDS = [".tar", ".tar.gz", ".zip", ".jsonl", ".tfrecord", ".parquet"]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", KINDS)
def test_only_the_records_of_the_keys_are_gone(suffix: str, tmp_path: Path) -> None:
    kind = kind_named(suffix)
    (tmp_path / "in").mkdir()
    records = [some_records(shard, 10) for shard in range(2)]
    for shard, own in enumerate(records):
        (tmp_path / "in" / f"s-{shard}{suffix}").write_bytes(kind.write(own))
    fields = {"input_extension": suffix, "key_field": kind.key_field, "output_shard_records": 4}
    run_local(tmp_path, spec_of(**fields, algorithm={"kind": "shuffle", "seed": 3}))
    before = files_of(tmp_path / "out", f"*{suffix}")
    gone = [records[0][3].key, records[1][7].key]
    done = remove(tmp_path, *gone)
    assert (done.found.records, done.found.missing) == (2, ())
    assert done.job is not None
    assert done.to_dict()["job"] == done.job.to_dict()
    after = files_of(tmp_path / "out", f"*{suffix}")
    assert after.keys() == before.keys()
    assert kind.key_of is not None
    for name, data in before.items():
        left = [each for each in kind.read(data) if kind.key_of(each) not in gone]
        assert kind.read(after[name]) == left
        if name not in done.found.shards:
            assert after[name] == data
    assert verify(tmp_path).problems == ()
    assert verify(tmp_path).records == 18


def test_keys_that_no_record_has_are_named_and_nothing_else_is_done(tmp_path: Path) -> None:
    made(tmp_path)
    before = tree_of(tmp_path / "out")
    done = remove(tmp_path, "x", "y", "x")
    assert (done.job, done.found.shards, sorted(done.found.missing)) == (None, (), ["x", "y"])
    assert tree_of(tmp_path / "out") == before
    assert remove(tmp_path, "x", "a").found.missing == ("x",)


def test_no_file_says_which_keys_were_removed(tmp_path: Path) -> None:
    """They may have been removed because they tell who a person is."""
    members = [*record("jane-doe"), *record("b"), *record("c")]
    shard = shard_of()
    write_shards(tmp_path / "in", {"a.tar": type(shard)(tuple(members))})
    run_local(tmp_path, spec_of())
    remove(tmp_path, "jane-doe")
    files = tree_of(tmp_path / "out")
    assert [name for name, (_, data) in files.items() if b"jane-doe" in data] == []
    assert [name for name in files if name.endswith("removed.json")] != []
    assert keys_of(tmp_path) == ["b", "c"]


def names_in(root: Path, word: bytes) -> list[str]:
    """The objects of the bucket that have ``word`` in them."""
    return [name for name, (_, data) in tree_of(root / "out").items() if word in data]


def test_no_report_or_older_manifest_of_a_result_names_a_removed_key(tmp_path: Path) -> None:
    twice = Shard((*record("jane-doe"), *record("b"), *record("jane-doe"), *record("c")))
    write_shards(tmp_path / "in", {"a.tar": twice})
    run_local(tmp_path, spec_of(Config={"duplicate_keys": "warn"}))
    write_shards(tmp_path / "more", {"m.tar": shard_of("d")})
    append(tmp_path, "more", duplicate_keys="ignore")
    write_shards(tmp_path / "again", {"m.tar": shard_of("jane-doe", "e")})
    with pytest.raises(DuplicateError):
        append(tmp_path, "again", duplicate_keys="abort")
    reports = [*tmp_path.glob("out/.dsort/*/report.json")]
    assert len(reports) == 1
    assert reports[0].name in {Path(name).name for name in names_in(tmp_path, b"jane-doe")}
    before = [path.read_bytes() for path in sorted(tmp_path.glob("out/.dsort/*/manifest.json"))]
    assert remove(tmp_path, "jane-doe").found.records == 2
    assert names_in(tmp_path, b"jane-doe") == []
    # What else they say stays, and they are still manifests.
    after = [path.read_bytes() for path in sorted(tmp_path.glob("out/.dsort/*/manifest.json"))]
    for old, new in zip(before, after, strict=False):
        was, now = json.loads(old), json.loads(new)
        kept = {"reactions", "reactions_file"}
        assert {k: v for k, v in was.items() if k not in kept} == {
            k: v for k, v in now.items() if k not in kept
        }
        counts = [[(each["kind"], each["count"]) for each in m["reactions"]] for m in (was, now)]
        assert counts[0] == counts[1]
        parse_manifest(new)
    assert keys_of(tmp_path) == ["b", "c", "d"]
    assert verify(tmp_path).problems == ()
    assert without_names(newest(tmp_path)) == newest(tmp_path)  # it is written as a job writes it


def test_a_later_append_that_fails_does_not_name_a_removed_key(tmp_path: Path) -> None:
    made(tmp_path)
    remove(tmp_path, "c")
    twice = Shard((*record("jane-doe"), *record("e2"), *record("jane-doe")))
    write_shards(tmp_path / "more", {"m.tar": twice})
    with raises(DuplicateError, "jane-doe"):
        append(tmp_path, "more", duplicate_keys="abort")
    (report,) = tmp_path.glob("out/.dsort/*/report.json")
    assert json.loads(report.read_bytes())["error"].startswith("DuplicateError")
    assert names_in(tmp_path, b"jane-doe") == []


def test_a_removed_record_leaves_the_rejects_of_its_job(tmp_path: Path) -> None:
    made(tmp_path)
    (path,) = tmp_path.glob("out/.dsort/*/manifest.json")
    rejects = path.with_name("rejects.jsonl")
    lines = [{"key": key, "shard": "a.tar", "step": "", "error": "it failed"} for key in "abc"]
    lines.append({"key": "d", "error": "left out with b, c"})
    rejects.write_text("".join(json.dumps(each) + "\n" for each in lines) + "[1]\nno JSON\n")
    text = path.read_text()
    name = f".dsort/{path.parent.name}/rejects.jsonl"
    path.write_text(text.replace('"rejects_file": null', f'"rejects_file": "{name}"'))
    remove(tmp_path, "b")
    *left, number, other = rejects.read_text().splitlines()
    assert [json.loads(line)["key"] for line in left] == ["a", "c", "d"]
    assert json.loads(left[2])["error"] == "left out with another record"
    assert (number, other) == ("[1]", "no JSON")


def test_a_record_that_comes_back_is_found_by_verify(tmp_path: Path) -> None:
    """By its key, also once the inputs are gone."""
    made(tmp_path)
    done = remove(tmp_path, "c")
    (name,) = done.found.shards
    path, manifest = tmp_path / "out" / name, newest(tmp_path)
    content = json.loads(manifest)
    (row,) = [each for each in content["outputs"] if each["name"] == name]
    write_shards(tmp_path / "out", {name: shard_of("c")})
    row["file_bytes"] = path.stat().st_size
    found = dsort.verify(json.dumps(content).encode(), options=options(tmp_path))
    assert "undropped_record" in {problem.kind for problem in found.problems}
    for each in (tmp_path / "in").iterdir():
        each.unlink()
    found = dsort.verify(json.dumps(content).encode(), options=options(tmp_path))
    assert ("undropped_record", "c") in {(each.kind, each.record) for each in found.problems}


def test_shards_are_added_behind_those_that_are_there(tmp_path: Path) -> None:
    made(tmp_path)
    before = files_of(tmp_path / "out")
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    report = append(tmp_path, "more")
    after = files_of(tmp_path / "out")
    assert sorted(after.keys() - before.keys()) == ["out-3.tar", "out-4.tar"]
    assert {name: after[name] for name in before} == before
    assert sorted(keys_of(tmp_path)) == list("abcdefghijkluvwxyz")
    found = verify(tmp_path)
    assert (found.problems, found.warnings) == ((), ())
    assert (found.records, found.input_shards, found.output_shards) == (18, 3, 5)
    content = json.loads(newest(tmp_path))
    assert content["totals"]["records"] == 18
    assert content["job_id"] == report.job_id
    assert [*content["earlier"]] == [content["amends"]]


def test_old_manifests_still_describe_what_they_listed(tmp_path: Path) -> None:
    made(tmp_path)
    first = newest(tmp_path)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvw")})
    append(tmp_path, "more")
    assert dsort.verify(first, options=options(tmp_path)).problems == ()


def test_what_is_wrong_with_a_part_of_a_result_is_found(tmp_path: Path) -> None:
    made(tmp_path)
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    append(tmp_path, "more")
    for name, other in (("out-0.tar", "out-1.tar"), ("out-3.tar", "out-4.tar")):
        kept = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "out" / name).write_bytes((tmp_path / "out" / other).read_bytes())
        found = verify(tmp_path)
        assert {problem.shard for problem in found.problems} >= {name}
        (tmp_path / "out" / name).write_bytes(kept)
    content = json.loads(newest(tmp_path))
    content["totals"]["records"] = 17
    found = dsort.verify(json.dumps(content).encode(), options=options(tmp_path))
    assert [problem.kind for problem in found.problems] == ["manifest"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=4)),
        st.tuples(st.just("remove"), st.sets(st.sampled_from("abcdefghx"), min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.exhaustive
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(STEPS)
def test_whatever_is_added_and_removed_the_result_has_the_rest(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Collection[str]]]
) -> None:
    """A key that was removed may be added again; a removal takes all of its records."""
    root = tmp_path_factory.mktemp("amended")
    made(root)
    expected = list("abcdefghijkl")
    for number, (kind, keys) in enumerate(steps):
        if kind == "remove":
            done = remove(root, *keys)
            assert sorted(done.found.missing) == sorted({*keys} - {*expected})
            expected = [key for key in expected if key not in keys]
        else:
            write_shards(root / f"more-{number}", {"m.tar": shard_of(*sorted(keys))})
            append(root, f"more-{number}")
            expected += keys
        assert sorted(keys_of(root)) == sorted(expected)
    assert verify(root).problems == ()


class Failing:
    """Has the directories of the outputs fail at the ``nth`` name that they give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.left = nth
        real = LocalBucket.publish

        def publish(bucket: LocalBucket, token: str, name: str, **named: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise StorageError("the disk is gone")
            real(bucket, token, name, **named)

        monkeypatch.setattr(LocalBucket, "publish", publish)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_removal_that_fails_leaves_the_result_as_it_was(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first name, the second, and at the manifest's."""
    made(tmp_path)
    before, manifest = files_of(tmp_path / "out"), newest(tmp_path)
    with monkeypatch.context() as patch:
        Failing(patch, nth)
        with pytest.raises(DsortError):
            remove(tmp_path, "a", "b", "c", "d", "e", "f")
    assert files_of(tmp_path / "out") == before
    assert newest(tmp_path) == manifest
    assert verify(tmp_path).problems == ()
    assert not list(tmp_path.glob("out/.dsort/*/removed.json"))
    assert remove(tmp_path, "a", "b").found.records == 2


def test_an_append_that_fails_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    before = files_of(tmp_path / "out")
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    with monkeypatch.context() as patch:
        Failing(patch, 2)
        with pytest.raises(DsortError):
            append(tmp_path, "more")
    assert files_of(tmp_path / "out") == before
    (report,) = tmp_path.glob("out/.dsort/*/report.json")
    dsort.resume(report.parent.name, "out", options=options(tmp_path))
    assert verify(tmp_path).problems == ()
    assert len(keys_of(tmp_path)) == 18


def test_of_two_jobs_that_amend_one_result_the_second_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    base = newest(tmp_path)
    write_shards(tmp_path / "more", {"m.tar": shard_of("x")})
    write_shards(tmp_path / "again", {"m.tar": shard_of("y")})
    append(tmp_path, "more")
    with raises(JobConflictError, parse_manifest(base).job_id):
        append(tmp_path, "again", manifest=base, output_format="other-%d")
    with raises(JobConflictError, parse_manifest(base).job_id):
        remove(tmp_path, "a", manifest=base)
    assert verify(tmp_path).problems == ()


def test_a_claim_of_a_job_that_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    report = made(tmp_path)
    claim = tmp_path / "out" / ".dsort" / report.job_id / "amended.json"
    write_shards(tmp_path / "more", {"m.tar": shard_of("x")})
    claim.write_text('{"job_id": "20260101-000000-abcdef"}')
    append(tmp_path, "more")
    claim.write_text('{"job_id": "../x"}')
    with raises(StorageError, "amended.json"):
        append(tmp_path, "more", manifest=(claim.parent / "manifest.json").read_bytes())


def test_records_without_keys_are_not_removed(tmp_path: Path) -> None:
    made(tmp_path, output_extension=".mds")
    before = tree_of(tmp_path / "out")
    with raises(InputError, ".mds"):
        remove(tmp_path, "a")
    assert tree_of(tmp_path / "out") == before


def test_templates_continue_behind_the_names_that_are_there(tmp_path: Path) -> None:
    """Where they have one number, which counts by one, and where there are some left."""
    made(tmp_path)
    base = parse_manifest(newest(tmp_path))
    for template, goes_on in [
        ("x-%06d", "x-{000003..999999999}"),
        ("x-%d", "x-{3..999999999}"),
        ("x-{00..99}", "x-{03..99}"),
        ("a/x-@999-b", "a/x-{003..999}-b"),
        ("x-{n:04d}.tar", "x-{0003..999999999}.tar"),
        ("x-{7..99}", "x-{10..99}"),
        ("x-{0..2}", None),
        ("x-{0..9..2}", None),
        ("x-{0..9}-{0..9}", None),
        ("x-{n:02d}-of-{total:02d}", None),
    ]:
        spec = parse_spec({**base.spec.canonical(), "output_format": template}).spec
        names = islice(OutputNames.of([template], ".tar", [3]).some(0, 0, 3), 3)
        pairs = zip(base.outputs, names, strict=True)
        named = replace(
            base, spec=spec, outputs=tuple(replace(each, name=name) for each, name in pairs)
        )
        if goes_on is None:
            with raises(SpecError, template):
                append_fields(named, "out", "more")
        else:
            assert append_fields(named, "out", "more")["output_format"] == goes_on


def test_outputs_in_several_buckets_get_their_parts_there(tmp_path: Path) -> None:
    outputs = [
        {"name": "one", "when": 'key < "g"'},
        {"name": "two", "when": True, "output_bck": "other", "output_extension": ".tar.gz"},
    ]
    made(tmp_path, outputs=outputs, lineage="jsonl")
    before = {name: files_of(tmp_path / name, "*.tar*") for name in ("out", "other")}
    write_shards(tmp_path / "more", {"m.tar": shard_of("aa", "zz")})
    append(tmp_path, "more")
    for name, number in (("out", 2), ("other", 2)):
        after = files_of(tmp_path / name, "*.tar*")
        assert {**after, **before[name]} == after
        suffix = ".tar" if name == "out" else ".tar.gz"
        assert [*after] == [f"out-{each}{suffix}" for each in range(number + 1)]
    assert verify(tmp_path).problems == ()
    assert verify(tmp_path).records == 14
    with raises(InputError):
        remove(tmp_path, "a")
    fields = {"output_format": "x-%d", "amend": {"job": parse_manifest(newest(tmp_path)).job_id}}
    with raises(InputError, fields["amend"]["job"]):
        run_local(tmp_path, spec_of(input_bck="more", lineage="jsonl", **fields))


def test_templates_of_a_key_map_go_on(tmp_path: Path) -> None:
    ekm = {"first-%02d": ["^[a-f]"], "last-%02d": ["^[g-z]"]}
    made(tmp_path, ekm=ekm, output_format=None)
    write_shards(tmp_path / "more", {"m.tar": shard_of("aa", "zz", "zzz")})
    append(tmp_path, "more")
    assert verify(tmp_path).problems == ()
    names = [*files_of(tmp_path / "out")]
    assert names == [f"{each}-{n:02d}.tar" for each in ("first", "last") for n in range(3)]
    keys = {each.key for each in dsort.read_shards(str(tmp_path / "out" / "last-02.tar"))}
    assert keys == {"zz", "zzz"}
    done = remove(tmp_path, "zz", "a")
    assert (done.found.records, verify(tmp_path).problems) == (2, ())
    (tmp_path / "map.json").write_text(json.dumps(ekm))
    made(tmp_path, ekm_file=str(tmp_path / "map.json"), output_format=None, output_bck="filed")
    (path,) = tmp_path.glob("filed/.dsort/*/manifest.json")
    with raises(SpecError, "map.json"):
        api.append(path.read_bytes(), "more", place="filed", options=options(tmp_path))


def test_what_was_joined_gets_new_shards_of_each_input(tmp_path: Path, cli: CommandLine) -> None:
    for name, extension in (("images", "img"), ("labels", "cls")):
        for part, keys in (("", "abcdef"), ("-new", "uvwx")):
            members = [each for key in keys for each in record(key, extension)]
            shard = type(shard_of())(tuple(members))
            write_shards(tmp_path / f"{name}{part}", {"s.tar": shard})
    inputs = [{"name": name, "input_bck": name} for name in ("images", "labels")]
    spec = spec_of(inputs=inputs, join={"by": "key"}, algorithm={"kind": "shuffle", "seed": 3})
    del spec["input_bck"]
    run_local(tmp_path, {**spec, "lineage": "jsonl"})
    refused = cli("append", "out", "images-new")
    assert (refused.code, "images=BUCKET labels=BUCKET" in refused.err) == (2, True)
    assert cli("append", "out", "images=images-new", "labels=labels-new").code == 0
    assert sorted(keys_of(tmp_path)) == sorted("abcdefuvwx")
    assert verify(tmp_path).problems == ()
    assert remove(tmp_path, "a", "x").found.records == 2
    assert verify(tmp_path).problems == ()


def test_code_that_a_result_says_is_not_run_unless_a_user_asks(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def same(record):\n    return record\n")
    steps = {"steps": [{"map": {"python": f"{tmp_path}/code.py:same"}}]}
    made(tmp_path, transform=steps)
    write_shards(tmp_path / "more", {"m.tar": shard_of("x")})
    asked_for_none = RunOptions(root=tmp_path, workers=1, runs_code=False)
    with pytest.raises(ForbiddenError):
        api.append(newest(tmp_path), "more", place="out", options=asked_for_none)


@pytest.mark.parametrize(
    "wrong",
    [
        {"removed": ["../../etc/passwd"]},
        {"removed": "x"},
        {"earlier": [1]},
        {"earlier": {"j": {"outputs": -1}}},
        {"earlier": {"j": 5}},
        {"amends": 7},
    ],
)
def test_a_manifest_that_says_nonsense_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    made(tmp_path)
    data = json.dumps({**json.loads(newest(tmp_path)), **wrong}).encode()
    with raises(InputError):
        dsort.verify(data, options=options(tmp_path))
