"""Jobs with several outputs: which records go where, what each output is called and cut into."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dsort import api
from dsort.cli import summary
from dsort.errors import NamesTakenError, SpecError, TransformError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import plan_local, refused, run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import manifest_name
from tests.support.refusals import raises
from tests.support.verified import assert_verified
from tests.transforms.laws.test_step_laws import mix

pytestmark = pytest.mark.usefixtures("workers_here")

HALVES = [{"name": "train", "fraction": 0.75}, {"name": "val", "fraction": 0.25}]


def divided(*outputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return spec_of(**{"output_format": "{split}-%d", **fields}, outputs=list(outputs))


@pytest.fixture
def data(tmp_path: Path, rng: random.Random) -> Path:
    """Three shards of 40 records: keys, classes, speakers, images of several sizes."""
    shards = {}
    for shard in range(3):
        members = []
        for number in range(40):
            key = f"{shard}/{number:03d}"
            said = json.dumps({"speaker": f"s{number % 7}"}).encode()
            members.append(Member(f"{key}.jpg", rng.randbytes(rng.randrange(500))))
            members.append(Member(f"{key}.cls", b"%d" % (number % 4)))
            members.append(Member(f"{key}.json", said))
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def keys_of(root: Path, prefix: str) -> list[list[str]]:
    """The keys in each shard of an output, by number."""
    found = {
        name: [m.name[:-4] for m in read_shard(data) if m.name.endswith(".jpg")]
        for name, data in files_of(root / "out").items()
        if name.startswith(prefix)
    }
    return [found[name] for name in sorted(found, key=lambda each: (len(each), each))]


def flat(shards: list[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(shards))


def lot_of(text: str) -> float:
    """Where the hash of ``text`` falls, as a fraction of all, in plain Python."""
    salt = xxhash.xxh3_64_intdigest(b"", seed=xxhash.xxh3_64_intdigest(b"outputs"))
    return mix(xxhash.xxh3_64_intdigest(text.encode()) ^ salt) / 2**64


def test_a_record_stays_in_its_output_as_the_data_grow(data: Path) -> None:
    run_local(data, divided(*HALVES))
    before = {name: {*flat(keys_of(data, name))} for name in ("train", "val")}
    more = {"in-9.tar": Shard(tuple(Member(f"9/{n:03d}.jpg", b"x") for n in range(50)))}
    write_shards(data / "in", more)
    run_local(data, divided(*HALVES), overwrite=True)
    for name, keys in before.items():
        assert keys < {*flat(keys_of(data, name))}


def test_records_of_which_one_thing_is_the_same_stay_together(data: Path) -> None:
    spec = divided(*HALVES, split_by='ext("json").speaker')
    report = run_local(data, spec)
    train = {int(key[-3:]) % 7 for key in flat(keys_of(data, "train"))}
    assert train == {number for number in range(7) if lot_of(f"s{number}") < 0.75}
    assert not train & {int(key[-3:]) % 7 for key in flat(keys_of(data, "val"))}
    assert_verified(data, report.job_id)


def test_each_output_ends_its_shards_by_itself(data: Path) -> None:
    outputs = [
        {"name": "a", "fraction": 0.5, "output_shard_count": 3},
        {"name": "b", "fraction": 0.2, "output_shard_size": 2000},
        {"name": "c", "fraction": 0.2, "output_format": "c-{0..3}"},
        {"name": "d", "fraction": 0.1},
    ]
    spec = divided(*outputs)
    spec["outputs"][2]["output_shard_records"] = 9
    report = run_local(data, spec)
    counts = {name: [len(each) for each in keys_of(data, f"{name}-")] for name in "abcd"}
    assert len(counts["a"]) == 3
    assert max(counts["a"]) - min(counts["a"]) <= 1
    assert len(counts["b"]) > 2
    assert {*counts["c"][:-1]} == {9}
    assert {*counts["d"][:-1]} <= {5}
    assert sum(map(sum, counts.values())) == report.records == 120
    assert_verified(data, report.job_id)


def test_from_tables_to_tables_no_numbers_of_records_are_asked_for() -> None:
    outputs = [{"name": "a", "when": "ordinal < 2"}, {"name": "b", "when": True}]
    with raises(SpecError, "ordinal", paths=["outputs[0].when"]):
        parse_spec(divided(*outputs, input_extension=".parquet", output_extension=".parquet"))


def test_an_output_may_be_an_input(data: Path) -> None:
    write_shards(data / "more", {"in-0.tar": Shard((Member("a.jpg", b"a"), Member("b.jpg", b"b")))})
    outputs = [{"name": "new", "when": 'input == "more"'}, {"name": "old", "when": True}]
    spec = divided(*outputs, transform={"steps": [{"filter": 'input == "in" || key != "b"'}]})
    del spec["input_bck"]
    spec["inputs"] = [{"name": name, "input_bck": name} for name in ("in", "more")]
    report = run_local(data, spec)
    assert (keys_of(data, "new"), len(flat(keys_of(data, "old")))) == ([["a"]], 120)
    assert_verified(data, report.job_id)


@pytest.mark.parametrize("reaction", ["drop", "rename", "ignore"])
def test_records_of_one_key_go_to_one_output(data: Path, reaction: str) -> None:
    shards = {
        f"more-{shard}.tar": (data / "in" / f"in-{shard}.tar").read_bytes() for shard in (0, 1)
    }
    write_shards(data / "in", shards)
    algorithm = {"kind": "shuffle", "seed": 5}
    spec = divided(*HALVES, duplicate_keys=reaction, algorithm=algorithm)
    report = run_local(data, spec, move="spill", workers=2)
    train, val = flat(keys_of(data, "train")), flat(keys_of(data, "val"))
    assert len(train) + len(val) == (120 if reaction == "drop" else 200)
    assert all(lot_of(key.partition("-")[0]) < 0.75 for key in train)
    assert not any(lot_of(key.partition("-")[0]) < 0.75 for key in val)
    assert_verified(data, report.job_id)


@pytest.mark.parametrize("by", ["key", "size"])
def test_outputs_deal_out_what_steps_on_payload_have_made(data: Path, by: str) -> None:
    steps = [
        {"map": {"python": "tests.support.user_functions:longer", "drop": ["json"]}},
        {"filter": 'ext("n.txt") == "3" && ext("cls") % 11 == 0'},  # classes twice: 0 is 00
    ]
    outputs = [{"name": "large", "when": 'size("jpg") > 500'}, {"name": "rest", "when": True}]
    spec = divided(*(HALVES if by == "key" else outputs), transform={"steps": steps})
    report = run_local(data, spec, workers=1)
    held = [
        (name[:4], member.name, len(member.payload))
        for name, shard in files_of(data / "out").items()
        for member in read_shard(shard)
        if member.name.endswith(".jpg")
    ]
    assert len(held) == report.records == 120
    if by == "key":
        assert all((lot_of(key[:-4]) < 0.75) == (name == "trai") for name, key, _ in held)
    else:
        assert all((size > 500) == (name == "larg") for name, _, size in held)


def test_conditions_number_the_records_of_a_shard_and_not_what_others_left(data: Path) -> None:
    outputs = [
        {"name": "first", "when": "ordinal < 10"},
        {"name": "second", "when": "ordinal < 20"},
        {"name": "rest", "when": True},
    ]
    report = run_local(data, divided(*outputs))
    second = [f"{shard}/{number:03d}" for shard in range(3) for number in range(10, 20)]
    assert flat(keys_of(data, "second")) == second
    assert_verified(data, report.job_id)


@pytest.mark.parametrize("partitions", [2, 3, 5])
def test_shards_without_records_stand_between_others(tmp_path: Path, partitions: int) -> None:
    members = [Member(f"{number:02d}.txt", b"%02d" % number) for number in range(40)]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(tuple(members))})
    outputs = [
        {"name": "low", "when": 'key < "03"', "output_shard_count": 1},
        {"name": "none", "when": "false", "output_shard_count": 2},
        {"name": "high", "when": True, "output_shard_count": 2},
    ]
    moved = Moved(movement="spill", workers=1, partitions=partitions)
    run_inline(divided(*outputs, output_shard_records=None), tmp_path, moved)
    found = sorted(files_of(tmp_path / "out").items())
    read = {name: [member.payload for member in read_shard(data)] for name, data in found}
    assert flat([read[name] for name in read if name.startswith("none")]) == []
    order = [name for kind in ("low", "high") for name in read if name.startswith(kind)]
    assert flat([read[name] for name in order]) == [b"%02d" % number for number in range(40)]


def test_an_output_may_get_nothing(data: Path) -> None:
    outputs = [
        {"name": "none", "when": 'has("png")', "output_shard_count": 2},
        {"name": "never", "when": "ordinal < 0"},
        {"name": "all", "when": "rest"},
    ]
    report = run_local(data, divided(*outputs))
    assert [keys_of(data, name) for name in ("none", "never")] == [[[], []], []]
    assert len(flat(keys_of(data, "all"))) == 120
    assert_verified(data, report.job_id)


def test_a_plan_says_the_shards_of_all_outputs(data: Path) -> None:
    plan = plan_local(data, divided(*HALVES))
    run_local(data, divided(*HALVES))
    assert [shard.name for shard in plan.shards] == sorted(
        files_of(data / "out"), key=lambda each: (each[0], len(each), each)
    )


def test_the_report_says_what_each_output_got(data: Path) -> None:
    report = run_local(data, divided(*HALVES, index=["huggingface", "energon", "sizes"]))
    train, val = (flat(keys_of(data, name)) for name in ("train-", "val-"))
    assert [(each.name, each.records) for each in report.outputs] == [
        ("train", len(train)),
        ("val", len(val)),
    ]
    assert sum(each.shards for each in report.outputs) == report.output_shards
    assert sum(each.file_bytes for each in report.outputs) == report.totals.file_bytes
    manifest = json.loads((data / "out" / manifest_name(report.job_id)).read_bytes())
    assert all(row["name"].startswith(row["output"]) for row in manifest["outputs"])
    assert "→ train" in summary.job(report)
    card = (data / "out" / "README.md").read_text()
    names = [name for name in files_of(data / "out") if name.startswith("val-")]
    listed = "".join(f'      - "val-{number}.tar"\n' for number in range(len(names)))
    assert f'  - split: "val"\n    path:\n{listed}---\n' in card
    assert '  "val":\n  - "val-0.tar"\n' in (data / "out/.nv-meta/split.yaml").read_text()
    assert_verified(data, report.job_id)
    plan = plan_local(data, divided(*HALVES))
    assert plan.outputs == report.outputs


def test_a_manifest_that_calls_a_shard_another_output_is_wrong(data: Path) -> None:
    report = run_local(data, divided(*HALVES))
    path = data / "out" / manifest_name(report.job_id)
    text = path.read_text().replace('"output": "val"', '"output": "train"')
    assert text != path.read_text()
    found = api.verify(text.encode(), options=RunOptions(root=data)).problems
    assert {each.kind for each in found} == {"manifest"}


def test_a_record_that_goes_nowhere_ends_the_job(data: Path) -> None:
    spec = divided({"name": "one", "when": 'ext("cls") == 1'}, {"name": "two", "when": "false"})
    with refused(data, TransformError, "30 records of shard in-0.tar", "0/000", "when"):
        run_local(data, spec)


def test_a_record_of_which_a_condition_cannot_be_said_ends_the_job(data: Path) -> None:
    spec = divided({"name": "one", "when": 'ext("json").age > 3'}, {"name": "two", "when": True})
    with refused(data, TransformError, "one", "record 0/000", "field age", "has("):
        run_local(data, spec)


def test_names_of_any_output_that_exist_are_not_replaced(data: Path) -> None:
    run_local(data, divided(*HALVES))
    with raises(NamesTakenError, str(data)):
        run_local(data, divided(*HALVES))
    assert run_local(data, divided(*HALVES), overwrite=True).state == "finished"


def test_what_is_left_of_each_output_of_an_older_result_is_removed(data: Path) -> None:
    run_local(data, divided(*HALVES))
    before = files_of(data / "out")
    spec = divided(*HALVES, output_shard_records=10, remove_stale=True, overwrite=True)
    report = run_local(data, spec)
    after = files_of(data / "out")
    assert len(after) == report.output_shards < len(before)
    counts = {name: sum(each.startswith(name) for each in after) for name in ("train", "val")}
    assert counts == {each.name: each.shards for each in report.outputs}


@pytest.mark.parametrize("reaction", ["warn", "drop", "abort"])
def test_duplicate_keys_that_are_all_left_out_already_are_no_duplicates(
    tmp_path: Path, reaction: str
) -> None:
    names = {"in-0.tar": "a", "in-1.tar": "b", "in-2.tar": "b"}
    shards = {name: Shard((Member(f"{key}.jpg", b"same"),)) for name, key in names.items()}
    write_shards(tmp_path / "in", shards)
    spec = spec_of(deduplicate={"by": "content"}, duplicate_keys=reaction)
    report = run_local(tmp_path, spec)
    assert report.records == 1
    assert_verified(tmp_path, report.job_id)


@pytest.mark.parametrize("counts", ["payload", "file"])
def test_outputs_may_differ_in_their_codecs(data: Path, counts: str) -> None:
    outputs = [
        {"name": "a", "fraction": 0.4},
        {"name": "b", "fraction": 0.3, "output_extension": ".tar.gz"},
        {
            "name": "c",
            "fraction": 0.3,
            "output_extension": ".tar.zst",
            "output_compression_level": 9,
            "output_bck": "packed",
        },
    ]
    sizes = {"output_shard_records": None, "output_shard_size": 9000}
    spec = divided(*outputs, output_shard_size_counts=counts, verify="content", **sizes)
    report = run_local(data, spec, move="spill", workers=2)
    names = [path.name for bucket in ("out", "packed") for path in (data / bucket).glob("*.tar*")]
    assert {name[0]: name.partition(".")[2] for name in names} == {
        "a": "tar",
        "b": "tar.gz",
        "c": "tar.zst",
    }
    manifest = json.loads((data / "out" / manifest_name(report.job_id)).read_bytes())
    encoded = {row["output"] for row in manifest["outputs"] if "decoded_bytes" in row}
    assert encoded == {"b", "c"}
    for row in manifest["outputs"]:
        place, _, name = row["name"].rpartition("//")
        stored = data / ("packed" if place else "out") / name
        assert stored.stat().st_size == row["file_bytes"]
        if counts == "file" and row["output"] != "a":
            assert row["file_bytes"] < 13000
    assert_verified(data, report.job_id)
    plain = [{name: each[name] for name in ("name", "fraction")} for each in outputs]
    again = run_local(data, divided(*plain, output_bck="plain", **sizes))
    assert [each.records for each in again.outputs] == [each.records for each in report.outputs]


@pytest.mark.parametrize("encoded", [False, True])
def test_what_a_size_means_is_said_for_each_output(data: Path, encoded: bool) -> None:
    limit = {"output_shard_size": 12000, "output_shard_size_is": "at_most"}
    outputs = [
        {"name": "a", "fraction": 0.4, **limit, "output_shard_size_counts": "file"},
        {"name": "b", "fraction": 0.3, **limit},
        {"name": "c", "fraction": 0.3, "output_shard_size": 3000},
    ]
    if encoded:
        packed = {"output_shard_size_counts": "file", "output_extension": ".tar.gz"}
        outputs[2] = {**outputs[2], **packed}
    report = run_local(data, divided(*outputs, algorithm={"kind": "shuffle", "seed": 5}))
    manifest = json.loads((data / "out" / manifest_name(report.job_id)).read_bytes())
    rows = {name: [] for name in "abc"}
    for row in manifest["outputs"]:
        rows[row["output"]].append(row)
    assert all(row["file_bytes"] <= 12000 for row in rows["a"])
    assert all(row["payload_bytes"] <= 12000 for row in rows["b"])
    assert max(row["file_bytes"] for row in rows["b"]) > 12000
    least = "file_bytes" if encoded else "payload_bytes"
    # What so few records come to when they are compressed is an estimate.
    assert all(2000 <= row[least] < 6000 for row in rows["c"][:-1])
    assert_verified(data, report.job_id)
