"""What output shards are called, and which rule closes them."""

from __future__ import annotations

import pytest

from tests.support.internals import (
    CutRule,
    OutputNames,
    OutputShard,
    OutputShards,
    TemplateExhaustedError,
)
from tests.support.refusals import raises


@pytest.mark.parametrize(
    "template",
    [
        *(
            "s-%d",
            "s-%03d",
            "s-@09",
            "s-{02..20..3}",
            "d/s-%d0",
            "s-%d-12.tar",
            "%d",
            "s-{7..7}.tgz",
        ),
        *("s-{n}", "d/s-{n:03d}", "s-{n:02d}-12.tar", "{n}"),
    ],
)
def test_the_number_of_a_name_is_found_and_no_other_name_has_one(template: str) -> None:
    names = OutputNames.of([template], ".tar")
    made = names.some(0, 0, 120)
    assert [names.number_of(0, name) for name in made] == list(range(len(made)))
    assert names.some(0, len(made) - 1, 1) == made[-1:]
    others = [f"{name}x" for name in made] + [f"x{name}" for name in made] + ["", "s-", "s-.tar"]
    others += [name.replace("s-", "s-0") for name in made if "s-0" not in name and "s-" in name]
    wrong = [name for name in others if name not in made and names.number_of(0, name) >= 0]
    assert [name for name in wrong if names.name(0, names.number_of(0, name)) != name] == []
    assert names.made([*made, *others], [2]) >= set(made[2:])
    assert names.made(made, [2]) == set(made[2:])


def shards(*places: tuple[int, int]) -> OutputShards:
    return OutputShards.of(
        [
            OutputShard(ordinal, group, number, 1, 1, 1, 512, ())
            for ordinal, (group, number) in enumerate(places)
        ]
    )


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("o-%03d", ["o-000.tar", "o-001.tar", "o-002.tar"]),
        ("o-{05..09}", ["o-05.tar", "o-06.tar", "o-07.tar"]),
        ("o-@99", ["o-00.tar", "o-01.tar", "o-02.tar"]),
        ("d/o-%d.tar", ["d/o-0.tar", "d/o-1.tar", "d/o-2.tar"]),
        ("o{n}", ["o0.tar", "o1.tar", "o2.tar"]),
        ("d/o-{n:02d}-of-{total:03d}", [f"d/o-0{n}-of-003.tar" for n in range(3)]),
        ("{total}/{n:d}.tar", ["3/0.tar", "3/1.tar", "3/2.tar"]),
    ],
)
def test_shards_are_named_by_their_number(template: str, names: list[str]) -> None:
    found = OutputNames.of([template], ".tar").counted(shards((0, 0), (0, 1), (0, 2)))
    assert list(found.names(shards((0, 0), (0, 1), (0, 2)))) == names


def test_a_total_counts_the_shards_of_its_template() -> None:
    names = OutputNames.of(["a-{n}-{total}", "b-%d", "c-{n}-{total}"], ".tar")
    planned = shards((0, 0), (0, 1), (1, 0), (2, 0))
    assert list(names.counted(planned).names(planned)) == [
        "a-0-2.tar",
        "a-1-2.tar",
        "b-0.tar",
        "c-0-1.tar",
    ]
    again = names.counted_in(["a-0-2.tar", "a-1-2.tar", "b-0.tar", "c-0-1.tar", "other"])
    assert again == names.counted(planned)


def test_names_with_a_total_are_known_once_shards_are_counted() -> None:
    names = OutputNames.of(["a-{n:02d}-of-{total:02d}"], ".tar")
    assert names.some(0, 0, 5) == []
    found = ["a-00-of-02.tar", "a-01-of-02.tar", "a-0-of-02.tar", "a-00-of-02", "b-00-of-02.tar"]
    assert [names.number_of(0, name) for name in found] == [0, 1, -1, -1, -1]
    assert names.made(found, [0]) == {"a-00-of-02.tar", "a-01-of-02.tar"}
    known = names.counted(shards((0, 0), (0, 1), (0, 2)))
    assert known.some(0, 1, 5)[:2] == ["a-01-of-03.tar", "a-02-of-03.tar"]
    # What an older result of two shards left is made by the template, whatever its number.
    assert known.made([*found, "a-00-of-03.tar", "a-03-of-03.tar"], [3]) == {
        *("a-00-of-02.tar", "a-01-of-02.tar", "a-03-of-03.tar")
    }


def test_a_template_that_is_too_small_says_what_is_needed() -> None:
    names = OutputNames.of(["a-%d", "b-{0..1}"], ".tar")
    assert list(names.names(shards((1, 0), (1, 1)))) == ["b-0.tar", "b-1.tar"]
    with raises(TemplateExhaustedError, "b-{0..1}", "3 shards"):
        list(names.names(shards((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))))


@pytest.mark.parametrize("template", ["../a-%d", "a#%d", "a?%d", ".dsort/a-%d", "/a-%d"])
def test_names_that_no_object_may_have_are_refused(template: str) -> None:
    with pytest.raises(ValueError):
        OutputNames.of([template], ".tar").names(shards((0, 0)))


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"records": 5}, CutRule(records=5)),
        ({"count": 5}, CutRule(count=5, records_total=77)),
        ({"size_bytes": 9}, CutRule(size_bytes=9)),
        ({}, CutRule(size_bytes=334, shards_max=3)),
    ],
)
def test_one_rule_closes_all_shards(asked: dict[str, int], rule: CutRule) -> None:
    given = {"size_bytes": None, "records": None, "count": None, **asked}
    names = OutputNames.of(["o-{0..2}"], ".tar")
    assert names.cut_rule(**given, bytes_total=1000, records_total=77) == rule
