"""What a job writes, and what it refuses to write over: outputs, manifest, scratch, and the same
bytes from every number of workers and each way of moving payload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dsort.errors import DsortError, NamesTakenError, SpecError
from tests.support.datasets import files_of, small_dataset, tree_of, write_shards
from tests.support.engine import (
    keys_in,
    left_in,
    records_out,
    refused,
    run_local,
    shard_of,
    spec_of,
)
from tests.support.internals import Event, PhaseDone, Progress, commit
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 5}
DATASET = small_dataset("outputs")


def when(phase: str, action: Callable[[], object]) -> Callable[[Event], None]:
    """A listener that does ``action`` once ``phase`` is over."""

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            action()

    return listen


# --- what is reported ----------------------------------------------------------------------------


def test_records_of_inputs_that_are_read_twice_are_counted_once(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    events: list[Event] = []
    spec = spec_of(algorithm=SHUFFLE, duplicate_keys="rename")
    report = run_local(tmp_path, spec, on_event=events.append)
    read = [each for each in events if isinstance(each, PhaseDone) and each.phase == "extract"]
    assert [(each.shards, each.records) for each in read] == [(len(DATASET), report.records)]
    assert read[0].bytes == 2 * sum(map(len, files_of(tmp_path / "in").values()))
    under_way = [each for each in events if isinstance(each, Progress) and each.shards_done]
    parts = [(each.shards_done, each.shards_total) for each in under_way if each.phase == "extract"]
    assert parts == [(1, 3), (2, 3), (3, 3)] * 2


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.usefixtures("worker_processes")
def test_the_same_bytes_whatever_the_workers_and_the_movement(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    results = []
    for move, workers in (("map", 1), ("map", 3), ("spill", 1), ("spill", 3)):
        spec = spec_of(algorithm=SHUFFLE, output_shard_records=7)
        report = run_local(tmp_path, spec, move=move, workers=workers, overwrite=True)
        assert (report.run.move, report.run.workers, report.records) == (move, workers, 36)
        results.append(files_of(tmp_path / "out"))
    assert len(results[0]) == 6
    assert all(result == results[0] for result in results)


def test_a_job_without_a_seed_can_be_repeated_from_its_manifest(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    first = run_local(tmp_path, spec_of(algorithm={"kind": "shuffle"}))
    manifest = json.loads((tmp_path / "out" / str(first.manifest_name)).read_text())
    assert manifest["spec"]["algorithm"]["seed"] == first.order.seed
    again = run_local(tmp_path, manifest["spec"] | {"output_bck": "again"})
    assert again.warnings == ()
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")
    other = run_local(tmp_path, spec_of(algorithm={"kind": "shuffle"}, output_bck="other"))
    assert other.order.seed != first.order.seed
    assert files_of(tmp_path / "other") != files_of(tmp_path / "out")


@pytest.mark.parametrize("in_memory_max", [0, 1000], ids=["in a file", "in memory"])
def test_the_manifest_says_what_is_there(
    in_memory_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SHARDS_IN_MEMORY", in_memory_max)
    write_shards(tmp_path / "in", DATASET)
    report = run_local(tmp_path, spec_of(algorithm=SHUFFLE, index="wids", output_shard_records=20))
    out = tmp_path / "out"
    index = f"{report.job_id}-index.json"
    assert left_in(out) == [".dsort/JOB/manifest.json", index, "out-0.tar", "out-1.tar"]
    manifest = json.loads((out / str(report.manifest_name)).read_text())
    assert [each["name"] for each in manifest["inputs"]] == list(DATASET)
    assert [each["records"] for each in manifest["inputs"]] == [12, 12, 12]
    found = files_of(out)
    for shard in manifest["outputs"]:
        data = found[shard["name"]]
        assert shard["file_bytes"] == len(data)
        assert shard["xxh3"] == xxhash.xxh3_64_hexdigest(data)
        assert shard["members"] == len(keys_in(data))
    assert [shard["records"] for shard in manifest["outputs"]] == [20, 16]
    assert manifest["totals"]["payload_bytes"] == report.totals.payload_bytes
    wids = json.loads((out / index).read_text())
    assert [(s["url"], s["nsamples"], s["md5sum"]) for s in wids["shardlist"]] == [
        (name, records, hashlib.md5(found[name]).hexdigest())
        for name, records in (("out-0.tar", 20), ("out-1.tar", 16))
    ]


def test_names_that_are_no_unicode_do_not_spoil_the_manifest(tmp_path: Path) -> None:
    write_shards(
        tmp_path / "in", {"a\udcff.tar": shard_of("k\udcfe"), "b.tar": shard_of("k\udcfe")}
    )
    report = run_local(tmp_path, spec_of())
    manifest = json.loads((tmp_path / "out" / str(report.manifest_name)).read_bytes())
    assert [each["name"] for each in manifest["inputs"]] == ["a\udcff.tar", "b.tar"]
    assert records_out(tmp_path) == ["k\udcfe.jpg", "k\udcfe.jpg"]


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ({"template": "s-{2..10..4}::s-1"}, None),
        ({"objnames": ["s-10.tar", "s-2.tar"]}, ["s-10", "s-2"]),
        ({"prefix": "s-1"}, ["s-1", "s-10"]),
        ({"glob": "**/s-?.tar"}, ["d/s-3", "s-1", "s-2"]),
        ({}, ["d/s-3", "s-1", "s-10", "s-2"]),
    ],
    ids=["template", "list", "prefix", "glob", "all"],
)
def test_inputs_come_in_their_order(
    inputs: dict[str, Any], wanted: list[str] | None, tmp_path: Path
) -> None:
    names = ["s-1", "s-2", "s-10", "d/s-3"]
    write_shards(tmp_path / "in", {f"{name}.tar": shard_of(name) for name in names})
    if wanted is None:
        inputs, wanted = {"template": "s-{2..10..4}::s-{1..1}"}, ["s-2", "s-10", "s-1"]
    run_local(tmp_path, spec_of(input_format=inputs))
    assert records_out(tmp_path) == [f"{name}.jpg" for name in wanted]


@pytest.mark.usefixtures("worker_processes")
def test_a_spill_is_gone_once_it_is_written(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    scratch = tmp_path / "scratch"
    left: list[str] = []
    listen = when("create", lambda: left.extend(tree_of(scratch)))
    run_local(tmp_path, spec_of(), move="spill", workers=3, scratch=scratch, on_event=listen)
    assert [name for name in left if "index-" in name] != []
    assert [name for name in left if "spill-" in name] == []


def test_scratch_may_be_elsewhere_and_is_gone_afterwards(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    scratch = tmp_path / "scratch"
    seen: list[str] = []

    def look() -> None:
        seen.extend(tree_of(scratch))
        seen.extend(f"out: {name}" for name in tree_of(tmp_path / "out"))

    run_local(tmp_path, spec_of(), move="spill", scratch=scratch, on_event=when("extract", look))
    assert any("spill-" in name for name in seen)
    assert not any(name.startswith("out: ") and "spill" in name for name in seen)
    assert list(scratch.iterdir()) == []


# --- what is refused -----------------------------------------------------------------------------


def test_an_output_never_replaces_an_input(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"s-0.tar": shard_of("a"), "s-1.tar": shard_of("b")})
    spec = spec_of(output_bck="in", output_format="s-%d", overwrite=True)
    with refused(tmp_path, SpecError, "shard s-0.tar"):
        run_local(tmp_path, spec)


def test_an_output_never_replaces_an_input_by_another_path_to_it(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"d/s-0.tar": shard_of("a")})
    (tmp_path / "link").symlink_to(tmp_path / "in" / "d")
    before = tree_of(tmp_path / "in")
    with raises(SpecError, "shard d/s-0.tar", paths=["output_format"]):
        run_local(tmp_path, spec_of(output_bck="link", output_format="s-%d", overwrite=True))
    after = tree_of(tmp_path / "in")
    assert {name: after[name] for name in before} == before


def test_an_output_never_replaces_the_target_of_a_link_that_is_an_input(tmp_path: Path) -> None:
    write_shards(tmp_path / "out", {"out-0.tar": shard_of("a")})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s.tar").symlink_to(tmp_path / "out" / "out-0.tar")
    with refused(tmp_path, SpecError, "shard s.tar"):
        run_local(tmp_path, spec_of(overwrite=True))


def test_two_templates_must_not_give_one_name(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a", "b")})
    spec = spec_of(ekm={"x-%d": ["a"], "x-{0..3}": ["b"]})
    del spec["output_format"]
    with refused(tmp_path, SpecError, "x-0.tar"):
        run_local(tmp_path, spec)


def test_names_that_are_taken_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    write_shards(tmp_path / "out", {"out-3.tar": b"mine", "other.tar": b"mine, too"})
    created: list[object] = []
    listen = when("plan", lambda: created.append(1))
    with refused(tmp_path, NamesTakenError, "out-3.tar", "--overwrite"):
        run_local(tmp_path, spec_of(), on_event=listen)
    assert created == []


@pytest.mark.parametrize("where", ["spec", "options"])
def test_taken_names_may_be_replaced(where: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    write_shards(tmp_path / "out", {"out-3.tar": b"old", "other.tar": b"mine"})
    in_spec = where == "spec"
    run_local(tmp_path, spec_of(overwrite=in_spec), overwrite=None if in_spec else True)
    found = files_of(tmp_path / "out")
    assert found.pop("other.tar") == b"mine"
    assert len(keys_in(found["out-3.tar"])) == 10
    assert len(found) == 8


def test_a_template_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    write_shards(tmp_path / "in", DATASET)
    created: list[object] = []
    listen = when("plan", lambda: created.append(1))
    with refused(tmp_path, SpecError, "out-{0..6} has 7 names", "8 shards", "output_format"):
        run_local(tmp_path, spec_of(output_format="out-{0..6}"), on_event=listen)
    assert created == []


@pytest.mark.parametrize("phase", ["plan", "create"])
def test_a_name_that_is_taken_meanwhile_is_left_alone(phase: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    theirs = tmp_path / "out" / "out-5.tar"
    with raises(NamesTakenError, "out-5.tar"):
        run_local(tmp_path, spec_of(), on_event=when(phase, lambda: theirs.write_bytes(b"theirs")))
    assert left_in(tmp_path / "out") == [".dsort/JOB/report.json", "out-5.tar"]
    assert theirs.read_bytes() == b"theirs"


def test_a_file_in_the_place_of_a_directory_is_reported(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a")})
    write_shards(tmp_path / "out", {"sub": b"a file"})
    with refused(tmp_path, NamesTakenError, "sub"):
        run_local(tmp_path, spec_of(output_format="sub/out-%d"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_in_the_place_of_a_shard_is_reported_before_anything_is_written(
    overwrite: bool, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    write_shards(tmp_path / "out", {"out-5.tar/x": b"mine"})
    if overwrite:  # else it is reported even earlier that this one is taken
        write_shards(tmp_path / "out", {"out-0.tar": b"mine, too"})
    with refused(tmp_path, NamesTakenError, "out-5.tar"):
        run_local(tmp_path, spec_of(), overwrite=overwrite)


def test_an_error_of_the_listener_leaves_nothing_behind(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)

    def fail() -> None:
        raise ZeroDivisionError("the listener's own fault")

    with pytest.raises(ZeroDivisionError):
        run_local(tmp_path, spec_of(), on_event=when("create", fail))
    assert left_in(tmp_path / "out") == [".dsort/JOB/report.json"]


def test_the_report_of_an_aborted_job_says_how_far_it_came(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    with pytest.raises(DsortError) as caught:
        run_local(tmp_path, spec_of(output_format="out-{0..6}"))
    (path,) = (tmp_path / "out").glob(".dsort/*/report.json")
    report = json.loads(path.read_text())
    assert (report["state"], report["manifest_name"]) == ("aborted", None)
    assert report["error"] == caught.value.message
    assert report["input_shards"] == 3
    assert report["phase_seconds"]["extract"] > 0
