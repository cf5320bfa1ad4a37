"""What a job may write is said in a form that can be stored and compared: with the names that its
shards really get, wherever their buckets lie to each other."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from dsort.spec.load import parse_spec
from tests.support.internals import (
    claim_on,
    claims_of,
    conflicts_among,
    first_conflict,
    is_within,
    names_made,
    overlap,
)

PLAIN = {"input_bck": "in", "output_shard_size": 1}


def claims(fields: Mapping[str, Any], uri: str = "file:///d") -> list[list[str]] | None:
    made = claims_of(parse_spec({**PLAIN, **fields}).spec, {"": uri})
    assert json.loads(json.dumps(made)) == made
    return made


def test_a_job_claims_the_names_that_its_shards_get() -> None:
    assert claims({"output_format": "x-%06d"}) == [["file:///d", "x-%06d.tar"]]
    assert claims({"output_format": "x-{0..9}.tar"}) == [["file:///d", "x-{0..9}.tar"]]
    assert claims({"output_format": "x.tar.lz%d"}) == [
        ["file:///d", "x.tar.lz{4..4}"],
        ["file:///d", "x.tar.lz%d.tar"],
    ]
    ekm = {"a-%d": ["a"], "b-%d": ["b"]}
    assert claims({"ekm": ekm}) == [["file:///d", "a-%d.tar"], ["file:///d", "b-%d.tar"]]
    with_default = {"ekm": ekm, "ekm_default": "c-@9", "Config": {"ekm_missing_key": "warn"}}
    assert (claims(with_default) or [])[-1] == ["file:///d", "c-@9.tar"]


def test_a_view_claims_the_names_of_its_files_and_not_those_of_its_shards() -> None:
    fields = {"output_format": "x-%06d"}
    (of_view,) = claims({**fields, "output": "view"}) or []
    assert of_view == ["file:///d", "x-%06d.tar.view"]
    (of_shards,) = claims(fields) or []
    assert first_conflict([of_view], [of_shards]) is None
    assert names_made([of_view[1]], ["x-000001.tar", "x-000002.tar.view"]) == {"x-000002.tar.view"}


def test_a_job_that_keeps_its_shards_may_write_any_name_of_its_bucket() -> None:
    fields = {"input_bck": "in", "output_bck": "out", "keep_shards": True}
    (claim,) = claims_of(parse_spec(fields).spec, {"": "file:///d/out"}) or []
    for other, conflict in (
        (("file:///d/out", "x-%d.tar"), True),
        (("file:///d/out/sub", "x-%d.tar"), True),
        (("file:///d", "x-%d.tar"), False),
        (("file:///d", "out/x-%d.tar"), True),
        (("file:///d/out2", "x-%d.tar"), False),
        (("s3://d/out", "x-%d.tar"), False),
        (tuple(claim), True),
    ):
        assert bool(first_conflict([claim], [other])) is conflict, other
        assert bool(first_conflict([other], [claim])) is conflict, other
    assert names_made([claim[1]], ["a.tar"]) == set()  # whose it is, that does not say


def test_claims_are_of_the_bucket_that_an_output_has() -> None:
    outputs = [
        {"name": "a", "fraction": 0.5},
        {"name": "b", "fraction": 0.5, "output_bck": "val", "output_extension": ".tar.zst"},
    ]
    spec = parse_spec({**PLAIN, "output_format": "x-%d", "outputs": outputs}).spec
    uris = {"": "file:///d/out", "b": "file:///d/val"}
    assert claims_of(spec, uris) == [
        ["file:///d/out", "x-%d.tar"],
        ["file:///d/val", "x-%d.tar.zst"],
    ]


def test_claims_of_a_key_map_in_a_file_are_unknown_before_it_is_read() -> None:
    assert claims({"ekm_file": "map.txt"}) is None


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        (("file:///d", "x-%d.tar"), ("file:///d", "x-{0..9}.tar"), True),
        (("file:///d", "sub/x-%d.tar"), ("file:///d/sub", "x-%d.tar"), True),
        (("file:///d", "sub{1..9}/x-{0..5}.tar"), ("file:///d/sub7", "x-%d.tar"), True),
        (("file:///d", "x-%d.tar"), ("file:///d/sub", "x-%d.tar"), False),
        (("file:///d", "subx-%d.tar"), ("file:///d/sub", "x-%d.tar"), False),
        (("file:///", "d/x-%d.tar"), ("file:///d", "x-%d.tar"), True),
        (("file:///d", "x-%d.tar"), ("s3://d", "x-%d.tar"), False),
        (("s3://b", "train/x-%d.tar"), ("s3://b/train", "x-%d.tar"), True),
        (("file:///a%25d", "x-%d.tar"), ("file:///a%25d", "x-%d.tar"), True),
        (("file:///a%25d", "x-%d.tar"), ("file:///a1", "x-%d.tar"), False),
        (("file:///a{1..2}", "x-%d.tar"), ("file:///a1", "x-%d.tar"), False),
        (("file:///gr%C3%B6%C3%9Fe", "x-%d.tar"), ("file:///", "größe/x-%d.tar"), True),
        (("file:///d", "latest.json"), ("file:///d", "latest.json"), True),
        (("file:///d", "latest.json"), ("file:///d", "latest%d.json"), False),
    ],
)
def test_claims_of_buckets_inside_other_buckets_conflict(
    one: tuple[str, str], other: tuple[str, str], conflict: bool
) -> None:
    free = ("file:///elsewhere", "x-%d.tar")
    found = first_conflict([free, one], [("s3://elsewhere", "x-%d.tar"), other])
    assert found == ((one, other) if conflict else None)
    assert first_conflict([other], [one]) == ((other, one) if conflict else None)


def test_conflicts_among_groups_are_those_that_pairs_of_them_have() -> None:
    groups = [
        [("file:///d", "x-%d.tar")],
        [("file:///d", "y-%d.tar"), ("file:///e", "x-%d.tar")],
        [("file:///d", "y-7.tar")],
        [("file:///", "d/x-{1..3}.tar")],
        [("file:///f", "x-%d.tar")],
        [("file:///d", "x-2.tar")],
    ]
    pairs = [
        next(((one, two) for one in range(two) if first_conflict(groups[one], groups[two])), None)
        for two in range(len(groups))
    ]
    assert [*conflicts_among(groups)] == [pair for pair in pairs if pair is not None]
    assert [*conflicts_among(groups)] == [(1, 2), (0, 3), (0, 5)]


def test_a_hundred_groups_are_read_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, read = overlap.parse_template, []
    monkeypatch.setattr(overlap, "parse_template", lambda text: read.append(text) or parse(text))
    groups = [[("file:///d", f"{{00..99}}/{n}-{{0..9}}.tar")] for n in range(100)]
    assert [*conflicts_among(groups)] == []
    assert len(read) == 100


def test_comparing_a_broken_template_is_an_error() -> None:
    with pytest.raises(ValueError):
        first_conflict([("file:///d", "x-{")], [("file:///d", "x-%d")])
    with pytest.raises(ValueError):
        first_conflict([("file:///d", "")], [])


def test_names_of_a_key_map_as_aistore_makes_them_have_no_extension() -> None:
    fields = {
        "input_bck": "a",
        "output_bck": "b",
        "output_shard_records": 1,
        "ekm": {"x-%d": ["k"]},
    }
    ours = parse_spec(fields).spec
    theirs = parse_spec(fields | {"compatibility": "aistore"}).spec
    assert claims_of(ours, {"": "b"}) == [["b", "x-%d.tar"]]
    assert claims_of(theirs, {"": "b"}) == [["b", "x-%d"]]


def test_an_object_is_held_against_what_a_job_may_write() -> None:
    claims = [("file:///d/out", "deep/x-%02d.tar"), ("file:///d/a%20b", "*"), ("s3://c", "{0..9}")]
    for uri, name in (
        ("file:///d/out", "deep/x-07.tar"),
        ("file:///d/out/deep", "x-07.tar"),
        ("file:///d", "out/deep/x-07.tar"),
        ("file:///", "d/a b/any name"),
        ("s3://c", "7"),
    ):
        assert claim_on(claims, uri, name) is not None, (uri, name)
    for uri, name in (
        ("file:///d/out", "deep/x-7.tar"),
        ("file:///d/out", "x-07.tar"),
        ("file:///d/outer", "deep/x-07.tar"),
        ("file:///d/out", "deep/x-%02d.tar"),  # a name, and no template
        ("s3://c", "{0..9}"),
        ("s3://cc", "7"),
    ):
        assert claim_on(claims, uri, name) is None, (uri, name)
    assert is_within("s3://c/a", "b", "s3://c")
    assert is_within("s3://c/a", "b", "s3://c/a/")
    assert not is_within("s3://c", "ab/c", "s3://c/a")


def test_templates_of_one_job_are_not_compared_with_each_other() -> None:
    many = [("file:///b", f"shard-%06d-{number}.tar") for number in range(20_000)]
    began = time.process_time()
    assert not [*conflicts_among([many, [("file:///b", "shard-%06d-other.tar")]])]
    assert time.process_time() - began < 5, "0.4 s; 8 s where they were"
