"""Outputs that get exact numbers of records, of all or of each class."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dsort import api
from dsort.errors import SpecError, TransformError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import refused, run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import exact_outputs, manifest_name
from tests.transforms.laws.test_step_laws import mix

pytestmark = pytest.mark.usefixtures("workers_here")

PARTS = [{"name": name, "fraction": part} for name, part in (("a", 0.7), ("b", 0.2), ("c", 0.1))]


def dealt(**fields: Any) -> dict[str, Any]:
    shuffled = {"output_format": "{split}-%d", "algorithm": {"kind": "shuffle", "seed": 3}}
    return spec_of(**{**shuffled, "outputs": PARTS, **fields})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """97 records in three shards; their classes are 0 to 6."""
    keys = [f"{number:03d}" for number in range(97)]
    shards = {}
    for shard in range(3):
        members = []
        for key in keys[shard::3]:
            members.append(Member(f"{key}.cls", b" %d\n" % (int(key) % 7)))
            members.append(Member(f"{key}.json", b'{"at": {"place": "p%d"}}' % (int(key) % 2)))
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def outputs_of(root: Path) -> dict[str, list[str]]:
    """The keys in each output."""
    found: dict[str, list[str]] = {}
    for name, content in files_of(root / "out").items():
        keys = [m.name.partition(".")[0] for m in read_shard(content) if m.name.endswith(".cls")]
        found.setdefault(name[0], []).extend(keys)
    return found


def lot_of(key: str) -> int:
    salt = xxhash.xxh3_64_intdigest(b"", seed=xxhash.xxh3_64_intdigest(b"outputs"))
    return mix(xxhash.xxh3_64_intdigest(key.encode()) ^ salt)


def verified(root: Path, job_id: str, bucket: str = "out") -> None:
    manifest = (root / bucket / manifest_name(job_id)).read_bytes()
    assert api.verify(manifest, options=RunOptions(root=root)).problems == ()


def counts_of(root: Path) -> dict[str, int]:
    return {name: len(keys) for name, keys in outputs_of(root).items()}


@pytest.mark.parametrize("move", ["map", "spill"])
def test_each_output_gets_those_with_the_smallest_hashes_that_are_left(
    data: Path, move: str
) -> None:
    report = run_local(data, dealt(exact=True), move=move, workers=2)
    by_lot = sorted((f"{number:03d}" for number in range(97)), key=lot_of)
    found = outputs_of(data)
    assert [sorted(found[name]) for name in "abc"] == [
        sorted(by_lot[:68]),
        sorted(by_lot[68:87]),
        sorted(by_lot[87:]),
    ]
    assert [each.records for each in report.outputs] == [68, 19, 10]
    verified(data, report.job_id)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("by", ["cls", 'ext("cls")', "json.at.place"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_fractions_hold_in_each_class(data: Path, by: str, exact: bool) -> None:
    report = run_local(data, dealt(stratify=by, exact=exact))
    classes: Callable[[str], int] = lambda key: int(key) % (2 if "json" in by else 7)  # noqa: E731
    found = {name: Counter(map(classes, keys)) for name, keys in outputs_of(data).items()}
    for each in range(2 if "json" in by else 7):
        total = sum(found[name][each] for name in "abc")
        for part in PARTS:
            assert abs(found[part["name"]][each] - total * part["fraction"]) <= 1
    if exact:
        assert counts_of(data) == {"a": 68, "b": 19, "c": 10}
    verified(data, report.job_id)


def test_neither_workers_nor_movement_nor_lost_nodes_change_it(data: Path) -> None:
    spec = dealt(exact=True, stratify="cls")
    ways = [
        Moved(movement="map", workers=1),
        Moved(movement="spill", workers=3, partitions=7, buffer_bytes=5000, order_seed=1),
        Moved(movement="spill", workers=2, nodes=2, partitions=5, losses=2, order_seed=2),
    ]
    found = []
    for number, moved in enumerate(ways):
        run_inline({**spec, "output_bck": f"out{number}"}, data, moved)
        found.append(files_of(data / f"out{number}"))
    assert found[0] == found[1] == found[2]


def test_ties_are_parted_in_input_order(tmp_path: Path) -> None:
    shards = {f"in-{at}.tar": Shard((Member("same.txt", b"%d" % at),)) for at in range(10)}
    write_shards(tmp_path / "in", shards)
    spec = dealt(
        exact=True, duplicate_keys="ignore", algorithm={"kind": "none"}, output_shard_records=10
    )
    report = run_local(tmp_path, spec)
    held = {
        name[0]: b"".join(member.payload for member in read_shard(content))
        for name, content in files_of(tmp_path / "out").items()
    }
    assert held == {"a": b"0123456", "b": b"78", "c": b"9"}
    verified(tmp_path, report.job_id)


def test_records_of_the_same_bytes_in_two_outputs_are_where_they_belong(tmp_path: Path) -> None:
    same = Shard(tuple(Member(f"{number}.txt", b"same") for number in range(9)))
    write_shards(tmp_path / "in", {"in-0.tar": same, "in-1.tar": same, "in-2.tar": same})
    outputs = [{"name": "a", "when": 'shard == "in-1.tar"'}, {"name": "b", "when": True}]
    spec = dealt(outputs=outputs, duplicate_keys="ignore")
    report = run_local(tmp_path, spec)
    assert [each.records for each in report.outputs] == [9, 18]
    verified(tmp_path, report.job_id)


@pytest.mark.parametrize("how", ["key", "content", "drop"])
def test_what_is_left_out_as_a_duplicate_is_in_no_number(tmp_path: Path, how: str) -> None:
    shards = {
        f"in-{at}.tar": Shard(
            tuple(Member(f"{number:03d}.txt", b"%d" % number) for number in range(50))
        )
        for at in range(3)
    }
    write_shards(tmp_path / "in", shards)
    fields = {"duplicate_keys": "drop"} if how == "drop" else {"deduplicate": {"by": how}}
    report = run_local(tmp_path, dealt(exact=True, **fields))
    assert [each.records for each in report.outputs] == [35, 10, 5]
    verified(tmp_path, report.job_id)


@pytest.mark.parametrize("how", ["key", "drop"])
def test_a_class_that_duplicates_alone_have_is_no_class(tmp_path: Path, how: str) -> None:
    parts = [[Member(f"{at}.cls", b"%d" % shard) for at in range(20)] for shard in range(2)]
    write_shards(tmp_path / "in", {f"{at}.tar": Shard(tuple(own)) for at, own in enumerate(parts)})
    fields = {"duplicate_keys": "drop"} if how == "drop" else {"deduplicate": {"by": how}}
    report = run_local(tmp_path, dealt(exact=True, stratify="cls", **fields))
    assert [each.records for each in report.outputs] == [14, 4, 2]
    verified(tmp_path, report.job_id)


def test_steps_and_weights_come_before_the_count(data: Path) -> None:
    spec = dealt(
        exact=True, duplicate_keys="rename", transform={"steps": [{"filter": 'ext("cls") < 5'}]}
    )
    del spec["input_bck"]
    spec["inputs"] = [{"name": "in", "input_bck": "in", "records": 100}]
    report = run_local(data, spec, move="spill", workers=2)
    assert [each.records for each in report.outputs] == [70, 20, 10]
    verified(data, report.job_id)


@pytest.mark.parametrize("by", [None, "cls"])
def test_rows_of_tables_are_dealt_out_by_a_column(data: Path, by: str | None) -> None:
    fields = {"input_extension": ".tar", "output_extension": ".parquet", "output_bck": "rows"}
    run_local(data, dealt(outputs=[], output_format="all-%d", **fields))
    fields = {"input_extension": ".parquet", "output_extension": ".parquet", "input_bck": "rows"}
    report = run_local(data, dealt(exact=True, stratify=by, **fields))
    assert [each.records for each in report.outputs] == [68, 19, 10]
    verified(data, report.job_id)


def test_an_output_of_no_records_is_no_problem(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": Shard((Member("a.txt", b""),))})
    spec = dealt(exact=True, stratify="txt")
    report = run_local(tmp_path, spec)
    assert [each.records for each in report.outputs] == [1, 0, 0]
    spec["transform"] = {"steps": [{"drop_keys": {"keys": ["a"]}}]}
    report = run_local(tmp_path, spec, overwrite=True)
    assert report.records == 0
    verified(tmp_path, report.job_id)


def test_a_record_without_a_class_ends_the_job(data: Path) -> None:
    write_shards(data / "in", {"in-9.tar": Shard((Member("x.txt", b"x"),))})
    with refused(data, TransformError, "record x of shard in-9.tar has no cls", "require"):
        run_local(data, dealt(stratify="cls"))


def test_too_many_classes_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_outputs, "BORDERS_MAX", 12)
    with refused(data, TransformError, "there are more than 6 classes"):
        run_local(data, dealt(stratify="cls"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exact": True, "outputs": []}, "exact: needs outputs that have fractions"),
        ({"stratify": "cls", "outputs": [{"name": "a", "when": True}]}, "stratify: needs outputs"),
        ({"exact": True, "split_by": "shard"}, "exact: cannot be combined with split_by"),
        (
            {
                "stratify": "cls",
                "duplicate_keys": "drop",
                "algorithm": {"kind": "shuffle", "interleave": {"by": "cls"}},
            },
            "interleave: cannot be combined with exact or stratify where duplicates are left out",
        ),
        ({"stratify": 'ext("json"'}, "stratify: at character"),
        (
            {
                "stratify": "json.at",
                "input_extension": ".parquet",
                "output_extension": ".parquet",
            },
            "stratify: is more than the name of a column",
        ),
    ],
)
def test_mistakes_are_told_at_once(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        parse_spec(dealt(**fields))


def test_a_spec_says_again_what_it_said() -> None:
    spec = parse_spec(dealt(exact=True, stratify="cls")).spec
    assert parse_spec(spec.canonical()).spec == spec
    assert "exact" not in parse_spec(dealt()).spec.canonical()


def test_a_number_of_classes_and_outputs_comes_out_as_the_model_says(
    tmp_path: Path, rng: random.Random
) -> None:
    keys = [f"{number}" for number in range(60)]
    sizes = {key: rng.randrange(4) for key in keys}
    members = tuple(Member(f"{key}.txt", b"x" * sizes[key]) for key in keys)
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    parts = [{"name": name, "fraction": 0.25} for name in "abcd"]
    report = run_local(tmp_path, dealt(outputs=parts, stratify="size()", output_shard_records=99))
    for name, content in files_of(tmp_path / "out").items():
        mine = {member.name[:-4] for member in read_shard(content)}
        for size in range(4):
            own = sorted((key for key in keys if sizes[key] == size), key=lot_of)
            least, more = divmod(len(own), 4)
            shares = [least + (at < more) for at in range(4)]
            first = sum(shares[: "abcd".index(name[0])])
            wanted = own[first : first + shares["abcd".index(name[0])]]
            assert {key for key in mine if sizes[key] == size} == {*wanted}
    verified(tmp_path, report.job_id)
