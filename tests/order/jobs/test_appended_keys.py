"""The keys of records that are added to a result are compared with those that it has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsort
from dsort import api
from dsort.errors import DuplicateError
from tests.support import amending
from tests.support.amending import keys_of, made, newest, options, remove
from tests.support.container_kinds import kind_named, some_records
from tests.support.datasets import tree_of, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import JobReport, known_keys
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture(autouse=True)
def a_shard_or_two_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one task would read all shards."""
    monkeypatch.setattr(known_keys, "RECORDS_A_FILE", 8)


def append(root: Path, *keys: str, **named: Any) -> JobReport:
    number = len([*root.glob("more-*")])
    write_shards(root / f"more-{number}", {"m.tar": shard_of(*keys)})
    return amending.append(root, f"more-{number}", **named)


def problems(root: Path) -> set[tuple[str, str]]:
    found = dsort.verify(newest(root), options=options(root))
    return {(each.kind, each.record) for each in found.problems}


def counts(report: JobReport) -> dict[str, int]:
    return {each.kind: each.count for each in report.reactions}


SORTED = {"kind": "alphanumeric"}


@pytest.mark.parametrize("order", [{}, {"algorithm": SORTED}])
def test_new_records_whose_key_is_there_are_dropped(order: dict[str, Any], tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="drop", **order)
    report = append(tmp_path, "a", "x", "l", "y", "x")
    assert counts(report)["duplicate_keys_dropped"] == 3
    assert sorted(keys_of(tmp_path)) == [*"abcdefghijklxy"]
    (path,) = tmp_path.glob(f"out/.dsort/{report.job_id}/reactions.jsonl")
    named = path.read_text()
    assert [json.loads(line)["name"] for line in named.splitlines()].count("l") == 1
    assert problems(tmp_path) == set()


def test_a_key_that_is_there_ends_the_append(tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="abort")
    before = tree_of(tmp_path / "out")
    with raises(DuplicateError, "1 record ", "m.tar: c", hint="duplicate_keys: drop"):
        append(tmp_path, "x", "c")
    left = {name: data for name, data in tree_of(tmp_path / "out").items() if name in before}
    assert left == before
    append(tmp_path, "x", "y")
    assert problems(tmp_path) == set()


def test_a_warning_names_the_keys_that_are_there(tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="warn")
    report = append(tmp_path, "x", "c")
    assert any("m.tar: c" in text for text in report.warnings)
    assert keys_of(tmp_path).count("c") == 2
    assert problems(tmp_path) == set()


def test_an_append_that_ignores_keys_reads_no_older_shard(tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="abort")
    for each in (tmp_path / "out").glob("*.tar"):
        each.rename(each.with_suffix(".away"))
    report = append(tmp_path, "c", "x", duplicate_keys="ignore")
    for each in (tmp_path / "out").glob("*.away"):
        each.rename(each.with_suffix(".tar"))
    assert "duplicate_keys" not in counts(report)
    assert keys_of(tmp_path).count("c") == 2


def test_new_names_are_given_among_the_new_alone(tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="rename")
    append(tmp_path, "x", "z", "x")
    assert sorted(keys_of(tmp_path))[-3:] == ["x", "x-1", "z"]
    for clash in (["a"], ["x-1"]):
        with raises(DuplicateError):
            append(tmp_path, "y", *clash)
    assert problems(tmp_path) == set()


@pytest.mark.parametrize("keep", ["first", "last"])
def test_what_is_deduplicated_by_key_stays_so(keep: str, tmp_path: Path) -> None:
    """The record that is there stays: its shard is not written again."""
    made(tmp_path, deduplicate={"by": "key", "keep": keep})
    report = append(tmp_path, "x", "a", "x", "b")
    assert counts(report)["deduplicated"] == 3
    assert Counter(keys_of(tmp_path)) == Counter("abcdefghijklx")
    assert problems(tmp_path) == set()


def test_verify_finds_a_key_that_was_let_in(tmp_path: Path) -> None:
    made(tmp_path, duplicate_keys="drop")
    append(tmp_path, "c", "x", duplicate_keys="ignore")
    content = json.loads(newest(tmp_path))
    content["spec"]["duplicate_keys"] = "drop"
    data = json.dumps(content).encode()
    found = dsort.verify(data, options=options(tmp_path)).problems
    assert ("duplicate_key", "c") in {(each.kind, each.record) for each in found}
    assert ("undropped_record", "c") in {(each.kind, each.record) for each in found}


def test_exact_numbers_are_of_what_is_left(tmp_path: Path) -> None:
    outputs = [{"name": "one", "fraction": 0.5}, {"name": "two", "fraction": 0.5}]
    fields = {"outputs": outputs, "exact": True, "output_format": "{split}-%d"}
    made(tmp_path, duplicate_keys="drop", **fields)
    report = append(tmp_path, *"abcdwxyz")
    assert [each.records for each in report.outputs] == [2, 2]
    assert problems(tmp_path) == set()


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", [".tar.gz", ".zip", ".jsonl", ".tfrecord", ".parquet"])
def test_keys_of_other_containers_are_compared(suffix: str, tmp_path: Path) -> None:
    kind = kind_named(suffix)
    old, new = some_records(0, 10), some_records(1, 4)
    for name, own in (("in", old), ("more", [*new, old[3]])):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"s{suffix}").write_bytes(kind.write(own))
    fields = {"input_extension": suffix, "key_field": kind.key_field, "duplicate_keys": "drop"}
    order = {"kind": "shuffle", "seed": 3}
    run_local(tmp_path, spec_of(**fields, output_shard_records=4, algorithm=order))
    report = api.append(newest(tmp_path), "more", place="out", options=options(tmp_path))
    assert (report.records, counts(report)["duplicate_keys_dropped"]) == (4, 1)
    assert problems(tmp_path) == set()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.sampled_from("abcdxyz"), min_size=1, max_size=4, unique=True),
        ),
        st.tuples(
            st.just("remove"),
            st.lists(st.sampled_from("abcdxyz"), min_size=1, max_size=2, unique=True),
        ),
    ),
    min_size=2,
    max_size=4,
)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_each_key_is_there_once_whatever_is_added_and_removed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[str]]]
) -> None:
    root = tmp_path_factory.mktemp("appended")
    made(root, duplicate_keys="drop")
    expected = {*"abcdefghijkl"}
    for kind, keys in steps:
        if kind == "remove":
            remove(root, *keys)
            expected -= {*keys}
        else:
            append(root, *keys)
            expected |= {*keys}
        assert sorted(keys_of(root)) == sorted(expected)
    assert problems(root) == set()
