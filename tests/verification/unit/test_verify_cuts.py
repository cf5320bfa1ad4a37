"""Names and cuts of output shards, checked from what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.spec.load import parse_spec
from tests.support.internals import (
    Findings,
    FirstRecord,
    ManifestOutput,
    OutputNames,
    Place,
    ShardFacts,
    check_cuts,
    find_strangers,
    place_outputs,
)
from tests.support.memory_bucket import MemoryBucket


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


def cut(
    shards: list[tuple[int, int, int]], template: str = "o-%d", group: int = 0, **spec: Any
) -> list[str]:
    """The shards (records, payload bytes, those of the last record) that are cut wrongly."""
    parsed = parse_spec({"input_bck": "in", "output_format": template, **spec}).spec
    facts = [
        ShardFacts(f"{number}", Place(group, number), True, records, records, payload, last)
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
        ShardFacts("0", Place(0, 0), True, 4, 4, 4, 1),
        ShardFacts("1", Place(0, 1), False, 4, 4, 4, 0),
        ShardFacts("2", Place(1, 0), True, 2, 2, 2, 1),
        ShardFacts("3", Place(1, 1), True, 1, 1, 1, 1),
    ]
    spec = {"input_bck": "in", "output_format": "o-%d", "output_shard_records": 4}
    found = findings()
    check_cuts(facts, parse_spec(spec).spec, OutputNames.of(["o-%d", "p-%d"], ".tar"), found)
    assert [problem.shard for problem in found.problems] == ["2"]


def at_most(records: int, payload: int, first: int) -> ShardFacts:
    """A shard whose first record has ``first`` bytes."""
    grown = FirstRecord(1, 1, first, 512)
    return ShardFacts(
        "s", Place(0, 0), True, records, records, payload, 0, 512 * records, 512, 0, grown
    )


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
