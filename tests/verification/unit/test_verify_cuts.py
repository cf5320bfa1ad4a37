"""Parts of verification by themselves: names and cuts of output shards, manifests as data from
outside, what is left over of inputs and outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsort.errors import InputError
from dsort.spec.load import parse_spec
from tests.support.internals import (
    PROBLEMS_MAX,
    Findings,
    InputTable,
    Int64s,
    ManifestInput,
    ManifestOutput,
    OutputNames,
    Place,
    RecordRows,
    ShardFacts,
    Sizes,
    UInt64s,
    check_cuts,
    check_totals,
    find_strangers,
    match_records,
    parse_manifest,
    place_outputs,
    sort_out,
)
from tests.support.manifests import manifest_bytes
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises


def findings() -> Findings:
    return Findings("j", lambda event: None)


def listed(*names: str) -> list[ManifestOutput]:
    return [ManifestOutput(name, 1, 1, 1, 1, "") for name in names]


def places(templates: list[str], *names: str) -> tuple[list[tuple[int, int]], list[str]]:
    found = findings()
    made = place_outputs(listed(*names), OutputNames.of(templates, ".tar"), found)
    assert all(problem.kind == "name" for problem in found.problems)
    return [(each.group, each.number) for each in made], [each.text for each in found.problems]


def test_names_follow_their_templates_one_after_the_other() -> None:
    names = ("a-0.tar", "a-1.tar", "c-0x.tar")
    assert places(["a-%d", "b-{0..3}", "c-@9x"], *names) == ([(0, 0), (0, 1), (2, 0)], [])
    assert places(["a-{1..2}.tar"], "a-1.tar", "a-2.tar") == ([(0, 0), (0, 1)], [])


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("a-0.tar", "a-2.tar"), "a-1.tar"),
        (("a-1.tar",), "a-0.tar"),
        (("a-0.tar", "b-1.tar"), "a-1.tar"),
        (("b-0.tar", "a-0.tar"), "b-1.tar"),
        (("b-0.tar", "b-1.tar", "b-1.tar"), "no further shard"),
    ],
)
def test_a_name_out_of_turn_is_reported(names: tuple[str, ...], wanted: str) -> None:
    _, texts = places(["a-%d", "b-{0..1}"], *names)
    assert len(texts) == 1
    assert f"gives {wanted} here" in texts[0]


def test_other_shards_under_the_names_of_a_template_are_found() -> None:
    bucket = MemoryBucket()
    for name in ("a-0.tar", "a-00007.tar", "a-x.tar", "a-1.tar.bak", "b-3-x.tar", "b-3.tar", "z"):
        bucket.write(name, b"")
    names = OutputNames.of(["a-%d", "b-{0..9}-x", "c-%d"], ".tar")
    assert find_strangers(["a-0.tar"], [], names, bucket) == ["a-00007.tar", "b-3-x.tar"]
    assert find_strangers(["a-0.tar"], ["b-3-x.tar"], names, bucket) == ["a-00007.tar"]


def shard(
    name: str, place: Place, sizes: tuple[int, int, int], *, readable: bool = True
) -> ShardFacts:
    """A shard with so many records, payload bytes, and payload bytes of the last record."""
    records, payload, last = sizes
    whole = Sizes(records, records, payload)
    return ShardFacts(name, place, readable, whole, last=Sizes(payload_bytes=last))


def cut(
    shards: list[tuple[int, int, int]], template: str = "o-%d", group: int = 0, **spec: Any
) -> list[str]:
    """The shards (records, payload bytes, those of the last record) that are cut wrongly."""
    parsed = parse_spec({"input_bck": "in", "output_format": template, **spec}).spec
    facts = [
        shard(f"{number}", Place(group, number), (records, payload, last))
        for number, (records, payload, last) in enumerate(shards)
    ]
    found = findings()
    check_cuts(facts, parsed, OutputNames.of([template], ".tar"), found)
    assert {problem.kind for problem in found.problems} <= {"cut"}
    return [problem.shard for problem in found.problems]


@pytest.mark.parametrize(
    ("shards", "wrong"),
    [
        ([(3, 100, 10), (2, 120, 30), (1, 5, 5)], []),
        ([(3, 100, 10), (1, 500, 500)], []),
        ([(3, 99, 10), (1, 5, 5)], ["0"]),
        ([(3, 110, 10), (1, 5, 5)], ["0"]),
        ([(3, 100, 10), (3, 130, 30)], ["1"]),
        ([(3, 100, 10), (0, 0, 0)], ["1"]),
        ([(1, 100, 100), (1, 0, 0)], []),
        ([], []),
    ],
)
def test_shards_by_size_close_at_the_size(
    shards: list[tuple[int, int, int]], wrong: list[str]
) -> None:
    assert cut(shards, output_shard_size=100) == wrong


@pytest.mark.parametrize(
    ("records", "wrong"),
    [([4, 4, 4], []), ([4, 4, 1], []), ([4, 3, 4], ["1"]), ([4, 5], ["1"]), ([4, 0], ["1"])],
)
def test_shards_by_records_have_so_many(records: list[int], wrong: list[str]) -> None:
    assert cut([(each, each, 1) for each in records], output_shard_records=4) == wrong


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([3, 3, 2], []),
        ([2, 2, 2], []),
        ([1, 0, 0], []),
        ([0, 0, 0], []),
        ([4, 2, 2], ["0"]),
        ([4, 3, 1], ["0", "2"]),
        ([4, 4], [""]),
        ([2, 2, 2, 2], [""]),
    ],
)
def test_shards_by_count_are_even(records: list[int], wrong: list[str]) -> None:
    assert cut([(each, each, 1) for each in records], output_shard_count=3) == wrong


def test_without_a_size_every_name_has_an_even_share() -> None:
    assert cut([(3, 40, 10), (3, 34, 1), (2, 26, 20)], template="o-{0..2}") == []
    assert cut([(3, 30, 10), (3, 45, 1), (2, 25, 5)], template="o-{0..2}") == ["0", "1"]
    assert cut([(3, 50, 9), (3, 50, 0)], template="o-{0..1}") == []  # the last one stays open


def test_a_shard_that_cannot_be_read_is_not_judged_but_counted() -> None:
    facts = [
        shard("0", Place(0, 0), (4, 4, 1)),
        shard("1", Place(0, 1), (4, 4, 0), readable=False),
        shard("2", Place(1, 0), (2, 2, 1)),
        shard("3", Place(1, 1), (1, 1, 1)),
    ]
    spec = {"input_bck": "in", "output_format": "o-%d", "output_shard_records": 4}
    found = findings()
    check_cuts(facts, parse_spec(spec).spec, OutputNames.of(["o-%d", "p-%d"], ".tar"), found)
    assert [problem.shard for problem in found.problems] == ["2"]


def at_most(records: int, payload: int, first: int) -> ShardFacts:
    """A shard whose first record has ``first`` bytes."""
    whole = Sizes(records, records, payload, 512 * records)
    return ShardFacts("s", Place(0, 0), True, whole, Sizes(1, 1, first, 512))


@pytest.mark.parametrize(
    ("shards", "wanted"),
    [
        ([at_most(3, 10, 1), at_most(2, 9, 1), at_most(1, 5, 5)], ""),
        ([at_most(1, 90, 90), at_most(2, 9, 1)], ""),
        ([at_most(3, 11, 1), at_most(2, 9, 1)], "more than 10"),
        ([at_most(3, 8, 1), at_most(2, 9, 2)], "though the next record fits"),
    ],
)
def test_a_shard_of_at_most_some_size_closes_before_it_is_larger(
    shards: list[ShardFacts], wanted: str
) -> None:
    fields = {"output_shard_size": 10, "output_shard_size_is": "at_most"}
    spec = parse_spec({"input_bck": "in", "output_format": "s-%d", **fields}).spec
    found = findings()
    check_cuts(shards, spec, OutputNames.of(["s-%d"], ".tar"), found)
    assert [wanted in problem.text for problem in found.problems] == [True] * bool(wanted)


@pytest.mark.parametrize(("equalize", "wanted"), [("drop", ""), (None, "a multiple of 2")])
def test_shards_are_as_many_as_the_records_needed_that_were_left_out_to_equalize(
    equalize: str | None, wanted: str
) -> None:
    count = {"output_shard_count": {"multiple_of": 2}, "output_shard_size": 600}
    fields = {"input_bck": "in", "output_format": "s-%d", **count}
    spec = parse_spec(fields | ({} if equalize is None else {"equalize": equalize})).spec
    found = findings()
    check_cuts([at_most(1, 10, 10)] * 8, spec, OutputNames.of(["s-%d"], ".tar"), found)
    assert [wanted in problem.text for problem in found.problems] == [True] * bool(wanted)


SPEC = parse_spec({"input_bck": "in", "output_format": "o-%d", "output_shard_size": "1MB"}).spec
INPUTS = [ManifestInput("in-\udcff.tar", 10240, 1, "etag", 3)]
OUTPUTS = [ManifestOutput("o-0.tar", 3, 6, 100, 5000, "0" * 16)]


def good() -> dict[str, Any]:
    data = manifest_bytes(
        job_id="j",
        spec=SPEC.canonical(),
        inputs=INPUTS,
        outputs=OUTPUTS,
    )
    loaded: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    return loaded


def test_a_manifest_comes_back_as_it_was_written() -> None:
    stored = parse_manifest(json.dumps(good()).encode())
    assert (stored.inputs, stored.outputs) == (tuple(INPUTS), tuple(OUTPUTS))
    assert (stored.job_id, stored.spec, stored.index) == ("j", SPEC, None)
    findings = Findings("j", lambda event: None)
    check_totals(stored, findings)
    assert findings.count == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"[1, 2]", b"{}", b"[" * 100_000, b'{"manifest": "1"}', b"null"],
    ids=["nothing", "no text", "a list", "empty", "deep", "version as text", "null"],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(InputError) as refused:
        parse_manifest(data)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("spec",), 3, "spec"),
        (("spec", "input_bck"), None, "input_bck"),
        (("job_id",), None, "job_id"),
        (("totals",), [], "totals"),
        (("index",), 3, "index"),
        (("inputs",), {}, "inputs"),
        (("inputs", 0), "in-0.tar", "inputs[0]"),
        (("inputs", 0, "bytes"), "10240", "inputs[0].bytes"),
        (("outputs", 0, "records"), True, "outputs[0].records"),
        (("outputs", 0, "xxh3"), 17, "outputs[0].xxh3"),
        (("outputs", 0, "name"), None, "outputs[0].name"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    path: tuple[str | int, ...], value: object, named: str
) -> None:
    manifest: Any = good()
    holder = manifest
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with raises(InputError, named):
        parse_manifest(json.dumps(manifest).encode())


def test_a_manifest_of_another_version_is_refused() -> None:
    with raises(InputError, "version 2"):
        parse_manifest(json.dumps({**good(), "manifest": 2}).encode())


@pytest.mark.parametrize("name", sorted(good()["totals"]))
def test_totals_that_do_not_add_up_are_reported(name: str) -> None:
    manifest = good()
    manifest["totals"][name] += 1
    findings = Findings("j", lambda event: None)
    check_totals(parse_manifest(json.dumps(manifest).encode()), findings)
    (problem,) = findings.problems
    assert problem.kind == "manifest"
    assert name in problem.text


def test_all_problems_are_counted_and_the_first_kept() -> None:
    findings = Findings("j", lambda event: None)
    for number in range(PROBLEMS_MAX + 5):
        findings.problem("order", "s.tar", str(number), "")
    findings.unnamed(7)
    assert findings.count == PROBLEMS_MAX + 12
    assert [each.record for each in findings.problems] == [str(n) for n in range(PROBLEMS_MAX)]


def column(values: Sequence[int]) -> UInt64s:
    return np.array(values, np.uint64)


def digests(values: Sequence[int]) -> UInt64s:
    """A digest for each value, the same for the same value."""
    return np.array([(value * 7 + 1, value) for value in values], np.uint64).reshape(-1, 2)


def table(keys: Sequence[int], contents: Sequence[int], dropped: Sequence[int] = ()) -> InputTable:
    expected = np.ones(len(keys), np.bool_)
    expected[list(dropped)] = False
    return InputTable(
        shards=("in.tar",),
        rows=RecordRows(np.array([0, len(keys)])),
        key_hash=column(keys),
        digests=digests(contents),
        members=np.ones(len(keys), np.int32),
        group=np.zeros(len(keys), np.int32),
        expected=expected,
    )


def matches(inputs: InputTable, found: UInt64s, order: Sequence[int] = ()) -> Int64s:
    rows = np.array(order or range(len(inputs)), np.int64)
    return match_records(inputs, found, rows, np.zeros(len(found), np.int32))


@pytest.mark.parametrize(
    ("keys", "contents", "expected"),
    [
        ([1, 2], [1, 2], {"missing": [2]}),
        ([1, 2, 3, 3], [1, 2, 3, 3], {"doubled": [3]}),
        ([1, 2, 30], [1, 2, 30], {"missing": [2], "foreign": [2]}),
        ([1, 2, 3], [1, 2, 9], {"changed": [2], "changed_from": [2]}),
        ([1, 2, 3, 3], [1, 2, 8, 9], {"split": [2, 3]}),
        ([1, 2, 3, 3], [1, 2, 3, 9], {"foreign": [3]}),
        ([1, 2, 3, 4], [1, 2, 3, 4], {"dropped": [3]}),
        ([], [], {"missing": [0, 1, 2]}),
    ],
)
def test_what_is_left_over_is_distinguished(
    keys: list[int], contents: list[int], expected: dict[str, list[int]]
) -> None:
    inputs = table([1, 2, 3, 4], [1, 2, 3, 4], dropped=[3])
    source = matches(inputs, digests(contents))
    left = sort_out(inputs, column(keys), digests(contents), source)
    found = {name: getattr(left, name).tolist() for name in left.__slots__}
    assert {name: rows for name, rows in found.items() if rows} == expected


def test_changed_records_of_one_key_have_a_partner_each() -> None:
    inputs = table([5, 5, 6, 5], [1, 2, 3, 4])
    source = matches(inputs, digests([11, 3, 12]))
    left = sort_out(inputs, column([5, 6, 5]), digests([11, 3, 12]), source)
    assert (left.changed.tolist(), left.changed_from.tolist()) == ([0, 2], [0, 1])
    assert left.missing.tolist() == [3]
