"""``like``: a job orders and cuts its inputs as another result is, by key."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.api import plan, run, verify
from dsort.errors import (
    ChangedInputError,
    DsortError,
    DuplicateError,
    InputError,
    KeyMapError,
    MissingShardError,
    NamesTakenError,
    SpecError,
    StorageError,
)
from dsort.loader import Loader
from dsort.options import RunOptions
from dsort.result_order import RECORDS_MAX
from dsort.storage.network_policy import FetchPolicy
from tests.support.commands import CommandLine
from tests.support.coordinators import Coordinators
from tests.support.datasets import Member, Shard, write_shards
from tests.support.fault_points import PointFault, arm
from tests.support.refusals import raises
from tests.support.surviving import job_in

pytestmark = pytest.mark.usefixtures("workers_here")

KEYS = [f"k{number:03}" for number in range(60)]
SHUFFLE = {"kind": "shuffle", "seed": 7}


def bucket(where: Path, keys: Sequence[str], *, shards: int, extension: str, seed: int) -> None:
    """Shards with a record for each of ``keys``, in an order of their own."""
    own = random.Random(seed).sample(keys, len(keys))
    parts = {
        f"{extension}-{at}.tar": Shard(
            tuple(Member(f"{key}.{extension}", f"{extension} {key}".encode()) for key in some)
        )
        for at in range(shards)
        if (some := own[at::shards])
    }
    write_shards(where, parts)


def options(root: Path, **fields: Any) -> RunOptions:
    return RunOptions(root=root, workers=2, **fields)


def shuffled(root: Path, **fields: Any) -> Any:
    """The report of the job that shuffles the pictures."""
    bucket(root / "a", KEYS, shards=4, extension="jpg", seed=1)
    spec = {
        "input_bck": "a",
        "output_bck": "a-out",
        "output_format": "new/shard-%03d",
        "output_shard_records": 7,
        "algorithm": SHUFFLE,
        **fields,
    }
    return run(spec, options=options(root))


def alike(root: Path, like: str = "a-out", *, move: str = "auto", **fields: Any) -> Any:
    """The report of a job that is like another result, which is verified."""
    spec = dsort.load_spec({"input_bck": "b", "output_bck": "b-out", "like": like, **fields})
    report = run(spec, options=options(root, move=move))
    manifest = (root / spec.output_bck.path / (report.manifest_name or "")).read_bytes()
    checked = verify(manifest, options=options(root))
    assert (checked.problems, checked.warnings) == ((), ())
    return report


def keys_of(report: Any, root: Path) -> Mapping[str, list[str]]:
    """The keys of each shard of a result, in their order."""
    data = dsort.Dataset(report, options=options(root), cache="")
    return {name: list(data.shard(at).keys) for at, name in enumerate(data.shards)}


@pytest.mark.parametrize("move", ["map", "spill", "range"])
@pytest.mark.parametrize("ours", ["shards", "view"])
@pytest.mark.parametrize("theirs", ["shards", "view"])
def test_shards_have_the_names_and_keys_of_the_other_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, move: str
) -> None:
    first = shuffled(tmp_path, output=theirs)
    bucket(tmp_path / "b", KEYS, shards=7, extension="txt", seed=2)
    second = alike(tmp_path, output=ours, move=move)
    wanted = keys_of(first, tmp_path)
    assert keys_of(second, tmp_path) == wanted
    assert [len(keys) for keys in wanted.values()] == [7] * 8 + [4]
    monkeypatch.chdir(tmp_path)
    pairs = [*Loader(["a-out", "b-out"], batch_size=None, order="sequential", cache="")]
    assert len(pairs) == len(KEYS)
    for sample in pairs:
        assert sample["txt"].decode() == f"txt {sample['__key__']}"
        assert sample["jpg"].decode() == f"jpg {sample['__key__']}"


def test_a_shard_that_is_empty_there_is_empty_here(tmp_path: Path) -> None:
    bucket(tmp_path / "a", KEYS, shards=3, extension="jpg", seed=1)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    step = {"filter": f'key < "{KEYS[50]}" && shard != "jpg-1.tar"'}
    kept = run(
        {
            "input_bck": "a",
            "output_bck": "a-out",
            "keep_shards": True,
            "transform": {"steps": [step]},
        },
        options=options(tmp_path),
    )
    report = alike(tmp_path, ekm_missing_key="ignore")
    found = keys_of(report, tmp_path)
    assert found == keys_of(kept, tmp_path)
    assert found["jpg-1.tar"] == []


def test_a_result_without_records_gives_empty_shards_and_one_without_shards_none(
    tmp_path: Path,
) -> None:
    bucket(tmp_path / "a", KEYS, shards=3, extension="jpg", seed=1)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    nothing = {"input_bck": "a", "transform": {"steps": [{"filter": 'key < "a"'}]}}
    run({**nothing, "output_bck": "empty", "keep_shards": True}, options=options(tmp_path))
    report = alike(tmp_path, "empty", ekm_missing_key="ignore")
    assert [*keys_of(report, tmp_path).values()] == [[], [], []]
    shards = {"output_format": "s-%d", "output_shard_records": 7}
    run({**nothing, "output_bck": "none", **shards}, options=options(tmp_path))
    with pytest.raises(InputError):
        alike(tmp_path, "none", ekm_missing_key="ignore")


def test_a_key_that_the_inputs_lack_is_an_error(tmp_path: Path) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS[1:], shards=2, extension="txt", seed=2)
    with raises(KeyMapError, "k000 of shard new/shard-00"):
        alike(tmp_path)
    with pytest.raises(KeyMapError, match="k000"):
        plan({"input_bck": "b", "output_bck": "c", "like": "a-out"}, options=options(tmp_path))
    assert not [*(tmp_path / "b-out").glob("**/*.tar")]


def test_a_record_of_the_result_that_deduplicate_leaves_out_is_an_error(tmp_path: Path) -> None:
    shuffled(tmp_path)
    same = {"b-0.tar": Shard(tuple(Member(f"{key}.txt", b"") for key in KEYS))}
    write_shards(tmp_path / "b", same)
    with pytest.raises(KeyMapError):
        alike(tmp_path, deduplicate={"by": "content"})


def test_a_key_that_the_inputs_have_twice_is_an_error(tmp_path: Path) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", [*KEYS, KEYS[3]], shards=2, extension="txt", seed=2)
    with pytest.raises(DuplicateError, match="k003") as caught:
        alike(tmp_path)
    assert "duplicate_keys" not in (caught.value.hint or "")  # like refuses it
    assert "deduplicate: {by: key}" in (caught.value.hint or "")
    alike(tmp_path, deduplicate={"by": "key"})


def test_a_key_that_the_result_has_twice_is_an_error(tmp_path: Path) -> None:
    bucket(tmp_path / "a", [*KEYS, KEYS[3]], shards=2, extension="jpg", seed=2)
    fields = {"output_format": "s-%d", "output_shard_records": 9, "algorithm": SHUFFLE}
    run({"input_bck": "a", "output_bck": "a-out", **fields}, options=options(tmp_path))
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    with raises(InputError, "key k003"):
        alike(tmp_path)


def test_records_that_the_result_lacks_are_refused_or_counted(tmp_path: Path) -> None:
    first = shuffled(tmp_path)
    bucket(tmp_path / "b", [*KEYS, "more"], shards=2, extension="txt", seed=2)
    with raises(KeyMapError, "record more", hint="ekm_missing_key"):
        alike(tmp_path)
    second = alike(tmp_path, ekm_missing_key="warn")
    assert keys_of(second, tmp_path) == keys_of(first, tmp_path)
    (left,) = [each for each in second.reactions if each.kind == "ekm_missing_key"]
    assert left.count == 1


def test_the_manifest_names_the_result_that_was_the_newest(tmp_path: Path) -> None:
    first = shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    report = alike(tmp_path, output_bck="a-out", output_extension=".tar.gz")
    manifest = json.loads((tmp_path / "a-out" / report.manifest_name).read_bytes())
    assert manifest["spec"]["like"].endswith(first.manifest_name)
    assert manifest["spec"]["like"] in report.order.algorithm


def test_a_summary_names_the_result_in_place_of_an_algorithm(
    tmp_path: Path, cli: CommandLine
) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    report = alike(tmp_path)
    shown = cli("show", report.job_id, "--bucket", "b-out").out
    (line,) = [line for line in shown.splitlines() if "a-out" in line]
    assert line.split()[:3] == ["algorithm", "as", "in"]


@pytest.mark.parametrize("changed", ["nothing", "the order"])
def test_a_job_is_resumed_unless_the_result_changed(
    tmp_path: Path, begun: Coordinators, changed: str
) -> None:
    shuffled(tmp_path, output_shard_records=30)
    bucket(tmp_path / "b", KEYS, shards=3, extension="txt", seed=2)
    spec = json.dumps({"input_bck": "b", "output_bck": "b-out", "like": "a-out"})
    points = arm(tmp_path / "points", PointFault("plan:start", 1, "kill"))
    assert begun.run(tmp_path, "start", "-f", spec, "--workers", "1", points=points).code == -9
    if changed == "the order":  # as long as before, and of as many records
        one, other = (tmp_path / "a-out" / "new" / f"shard-00{at}.tar" for at in range(2))
        there = one.read_bytes(), other.read_bytes()
        one.write_bytes(there[1])
        other.write_bytes(there[0])
    job_id = job_in(tmp_path / "b-out")
    if changed == "nothing":
        report = dsort.resume(job_id, "b-out", options=options(tmp_path))
        assert [len(keys) for keys in keys_of(report, tmp_path).values()] == [30, 30]
        return
    with pytest.raises(ChangedInputError):
        dsort.resume(job_id, "b-out", options=options(tmp_path))


def broken(manifest: dict[str, Any], how: str) -> bytes:
    shard = manifest["outputs"][0]
    if how == "cut":
        return json.dumps(manifest).encode()[:-40]
    if how == "of another format":
        manifest["manifest"] = 99
    elif how == "names a file outside":
        shard["name"] = "../b/txt-0.tar"
    elif how == "says less than none":
        shard["records"] = -1
    return json.dumps(manifest).encode()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("cut", InputError),
        ("of another format", InputError),
        ("names a file outside", StorageError),
        ("says less than none", InputError),
    ],
)
def test_a_manifest_that_is_damaged_or_foreign_is_refused(
    tmp_path: Path, how: str, error: type[DsortError]
) -> None:
    first = shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    path = tmp_path / "a-out" / first.manifest_name
    path.write_bytes(broken(json.loads(path.read_bytes()), how))
    with pytest.raises(error):
        alike(tmp_path)
    assert not (tmp_path / "b-out").exists()


@pytest.mark.parametrize("more", [-1, 1])
def test_a_manifest_with_another_number_of_records_is_refused(tmp_path: Path, more: int) -> None:
    first = shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    path = tmp_path / "a-out" / first.manifest_name
    manifest = json.loads(path.read_bytes())
    manifest["outputs"][0]["records"] += more
    path.write_text(json.dumps(manifest))
    with pytest.raises(ChangedInputError) as caught:
        alike(tmp_path)
    assert manifest["outputs"][0]["name"] in caught.value.message


def test_a_result_of_too_many_records_is_refused_before_it_is_read(tmp_path: Path) -> None:
    first = shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    path = tmp_path / "a-out" / first.manifest_name
    manifest = json.loads(path.read_bytes())
    manifest["outputs"][0]["records"] = RECORDS_MAX
    path.write_text(json.dumps(manifest))
    (tmp_path / "a-out" / manifest["outputs"][1]["name"]).unlink()
    with pytest.raises(InputError) as caught:
        alike(tmp_path)
    assert not isinstance(caught.value, MissingShardError)


def test_a_spec_that_came_over_the_network_names_no_result(tmp_path: Path) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    spec = {"input_bck": "b", "output_bck": "b-out", "like": "a-out"}
    with pytest.raises(InputError):
        run(spec, options=options(tmp_path, fetch=FetchPolicy()))


def test_verify_finds_that_the_other_result_has_another_order(tmp_path: Path) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=2, extension="txt", seed=2)
    report = alike(tmp_path)
    one, other = (tmp_path / "a-out" / "new" / f"shard-00{at}.tar" for at in range(2))
    there = one.read_bytes(), other.read_bytes()
    other.write_bytes(there[0])
    one.write_bytes(there[1])
    manifest = (tmp_path / "b-out" / report.manifest_name).read_bytes()
    assert [each.kind for each in verify(manifest, options=options(tmp_path)).problems] == ["order"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"algorithm": SHUFFLE}, "algorithm.kind"),
        ({"output_format": "s-%d"}, "output_format"),
        ({"output_shard_size": 100}, "output_shard_size"),
        ({"duplicate_keys": "drop"}, "duplicate_keys"),
        ({"keep_shards": True}, "keep_shards"),
    ],
)
def test_what_the_other_result_decides_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        dsort.load_spec({"input_bck": "b", "output_bck": "c", "like": "a-out", **fields})
    assert field in [problem.path for problem in caught.value.problems]


def test_the_hint_about_taken_names_has_only_fields_that_go_with_like(tmp_path: Path) -> None:
    shuffled(tmp_path)
    bucket(tmp_path / "b", KEYS, shards=7, extension="txt", seed=2)
    alike(tmp_path)
    with raises(NamesTakenError, "b-out", hint="output_bck") as caught:
        alike(tmp_path)
    assert "output_format" not in caught.value.hint
