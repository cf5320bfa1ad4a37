"""An input that an earlier job wrote has to be as long as that job says, unless it is newer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsort.errors import ShardEndError
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import count_of, plan_local, refused, run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SECOND_NS = 1_000_000_000


def written_by_a_job(root: Path) -> tuple[JobReport, Path]:
    """The outputs of a job as the bucket ``in``; the first of them."""
    (root / "raw").mkdir()
    write_shards(root / "raw", small_dataset("known", shards=2, records=20))
    report = run_local(root, spec_of(input_bck="raw", output_bck="in", output_format="in-%d"))
    return report, root / "in" / "in-0.tar"


def lengthen(shard: Path, *, aged_ns: int) -> None:
    """A whole tar still, but one that its job did not write; older than the manifest, or newer."""
    before = shard.stat().st_mtime_ns
    second = shard.with_name("in-1.tar").read_bytes()
    shard.write_bytes(second[: 2 * len(second)] + second)
    os.utime(shard, ns=(before + aged_ns, before + aged_ns))


CONFIG = {"duplicate_keys": "ignore"}


def test_an_input_of_another_size_than_its_job_wrote_aborts(tmp_path: Path) -> None:
    report, shard = written_by_a_job(tmp_path)
    lengthen(shard, aged_ns=0)
    words = ("in-0.tar", "may not be whole", report.job_id, "incomplete_shards: warn")
    with refused(tmp_path, ShardEndError, *words):
        run_local(tmp_path, spec_of(Config=CONFIG))
    with raises(ShardEndError, report.job_id):
        plan_local(tmp_path, spec_of(Config=CONFIG))
    taken = run_local(tmp_path, spec_of(Config={**CONFIG, "incomplete_shards": "warn"}))
    assert report.job_id in count_of(taken, "incomplete_shards")[1][0]


def test_an_input_that_was_replaced_since_is_a_warning(tmp_path: Path) -> None:
    report, shard = written_by_a_job(tmp_path)
    lengthen(shard, aged_ns=100 * SECOND_NS)
    taken = run_local(tmp_path, spec_of(Config=CONFIG))
    assert count_of(taken, "replaced_inputs")[0] == 1
    assert any(report.job_id in text and "newer" in text for text in taken.warnings)


def test_of_several_manifests_the_newest_counts(tmp_path: Path) -> None:
    written_by_a_job(tmp_path)
    spec = spec_of(input_bck="raw", output_bck="in", output_format="in-%d", overwrite=True)
    run_local(tmp_path, {**spec, "output_shard_records": 7})
    taken = run_local(tmp_path, spec_of(input_format={"template": "in-{0..5}"}))
    assert count_of(taken, "incomplete_shards")[0] == 0
    assert taken.records == 40


def test_inputs_that_a_job_read_beside_its_outputs_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_shards(tmp_path / "in", small_dataset("known", shards=2, records=20))
    first = run_local(tmp_path, spec_of(output_bck="in", output_format="new-%d"))
    assert count_of(first, "read_again")[0] == 0
    all_of_it = spec_of(input_format={"glob": "*.tar"}, Config=CONFIG)
    taken = run_local(tmp_path, all_of_it)
    count, names = count_of(taken, "read_again")
    assert count == 2
    assert names[0] == f"in-0.tar (by job {first.job_id})"
    with (tmp_path / "in" / "in-0.tar").open("r+b"):
        os.utime(tmp_path / "in" / "in-0.tar")  # another object has the name since
    assert count_of(plan_local(tmp_path, all_of_it), "read_again")[0] == 1
    only_new = spec_of(input_format={"glob": "new-*.tar"}, overwrite=True)
    assert count_of(run_local(tmp_path, only_new), "read_again")[0] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"outputs": [1, {}, {"name": 2, "file_bytes": "x"}]}).encode(),
        json.dumps({"outputs": {"name": "in-0.tar"}}).encode(),
        json.dumps(
            {
                "outputs": [{"name": "in-0.tar", "file_bytes": 16896, "xxh3": ""}],
                "inputs": [1, {"name": [], "etag": {}}],
            }
        ).encode(),
    ],
    ids=range(7),
)
def test_what_is_no_manifest_says_nothing(content: bytes, tmp_path: Path) -> None:
    report, _ = written_by_a_job(tmp_path)
    (tmp_path / "in" / ".dsort" / report.job_id / "manifest.json").write_bytes(content)
    taken = run_local(tmp_path, spec_of())
    assert taken.records == 40
    assert len(files_of(tmp_path / "out")) == 8


@pytest.mark.parametrize("moved", [Moved("map"), Moved("spill", buffer_bytes=4096, partitions=2)])
def test_an_input_whose_bytes_are_not_those_that_its_job_wrote_aborts(
    moved: Moved, tmp_path: Path
) -> None:
    report, shard = written_by_a_job(tmp_path)
    spec = spec_of(verify="content", Config=CONFIG)
    assert run_inline(spec, tmp_path, moved).records == 40
    before = shard.stat().st_mtime_ns
    data = bytearray(shard.read_bytes())
    data[600] ^= 1  # in the payload of the first member
    shard.write_bytes(data)
    os.utime(shard, ns=(before, before))
    with raises(ShardEndError, "in-0.tar", report.job_id):
        run_inline(spec, tmp_path, moved, overwrite=True)
    warned = {**spec, "Config": {**CONFIG, "incomplete_shards": "warn"}}
    taken = run_inline(warned, tmp_path, moved, overwrite=True)
    assert report.job_id in count_of(taken, "incomplete_shards")[1][0]
    os.utime(shard, ns=(before + 100 * SECOND_NS, before + 100 * SECOND_NS))
    taken = run_inline(spec, tmp_path, moved, overwrite=True)  # written since
    assert count_of(taken, "incomplete_shards")[0] == 0
