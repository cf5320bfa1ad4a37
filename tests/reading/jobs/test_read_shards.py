"""``dsort.read_shards``: the samples that webdataset and GNU tar find, from every kind of place."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
import webdataset

import dsort
from tests.support.datasets import small_dataset, write_shards
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "output_format": "out-%03d",
    "output_shard_records": 5,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dsort.JobReport:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    return dsort.run(SPEC)


def samples(shards: Iterable[Path]) -> list[tuple[str, dict[str, bytes]]]:
    """What webdataset reads: key, and content by extension."""
    found = []
    for sample in webdataset.WebDataset([str(each) for each in shards], shardshuffle=False):
        members = {name: data for name, data in sample.items() if not name.startswith("__")}
        found.append((sample["__key__"], members))
    return found


def as_samples(records: Iterable[dsort.ShardRecord]) -> list[tuple[str, dict[str, bytes]]]:
    """Our records in webdataset's form."""
    return [
        (
            record.key,
            {name.removeprefix(f"{record.key}.").lower(): x for name, x in record.members.items()},
        )
        for record in records
    ]


def test_a_result_is_read_as_webdataset_reads_it(report: dsort.JobReport) -> None:
    outputs = sorted(Path("out").glob("*.tar"))
    records = list(dsort.read_shards(report))
    assert len(records) == report.records > 10
    assert as_samples(records) == samples(outputs)
    assert [record.shard for record in records] == sorted(record.shard for record in records)
    assert {record.shard for record in records} == {shard.name for shard in outputs}


def test_a_result_is_found_by_report_manifest_job_bucket_template_and_list(
    report: dsort.JobReport,
) -> None:
    wanted = list(dsort.read_shards(report))
    outputs = sorted(Path("out").glob("*.tar"))
    last = len(outputs) - 1
    assert report.manifest_name is not None
    places = [
        Path("out", report.manifest_name),
        f"{Path('out').resolve().as_uri()}/{report.manifest_name}",
        "out",
        f"out/out-{{000..{last:03d}}}.tar",
        f"{Path('out').resolve().as_uri()}/out-{{000..{last:03d}}}",
        outputs,
        [each.resolve() for each in outputs],
    ]
    for where in places:
        assert list(dsort.read_shards(where)) == wanted, where
    assert list(dsort.read_shards("out", job_id=report.job_id)) == wanted


def test_a_manifest_that_was_taken_away_leads_to_its_bucket(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    assert report.manifest_name is not None
    copy = tmp_path / "mine.json"
    copy.write_bytes(Path("out", report.manifest_name).read_bytes())
    assert list(dsort.read_shards(copy)) == list(dsort.read_shards(report))


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar", "v7"])
def test_tars_of_gnu_tar_are_read(tmp_path: Path, form: str) -> None:
    files = {f"d/{n:02d}.{extension}": os.urandom(n * 700) for n in range(9) for extension in "ab"}
    (tmp_path / "d").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "d" / "README").write_bytes(b"no extension")
    os.link(tmp_path / "d/03.a", tmp_path / "d/03.linked")
    arguments = ["--sort=name", f"--format={form}", "-cf", "x.tar", "d"]
    subprocess.run(["tar", *arguments], check=True, cwd=tmp_path)
    records = list(dsort.read_shards(tmp_path / "x.tar"))
    found = {name: data for record in records for name, data in record.members.items()}
    extra = {"d/03.linked": files["d/03.a"], "d/README": b"no extension"}
    assert found == {**files, **extra}
    assert [record.key for record in records] == [*(f"d/{n:02d}" for n in range(9)), "d/README"]
    assert {record.shard for record in records} == {"x.tar"}


def test_a_name_that_comes_again_begins_another_record(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        for name in ("k.a", "k.b"):
            (tmp_path / name).write_bytes(content + name.encode())
        subprocess.run(["tar", "-rf", "x.tar", "k.a", "k.b"], check=True, cwd=tmp_path)
    first, second = dsort.read_shards(tmp_path / "x.tar")
    assert first.members == {"k.a": b"1k.a", "k.b": b"1k.b"}
    assert second.members == {"k.a": b"2k.a", "k.b": b"2k.b"}


def test_one_record_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """Of a shard that is larger than the buffer, too."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        (tmp_path / "8mib").write_bytes(bytes(8 << 20))
        for number in range(12):
            archive.add(tmp_path / "8mib", f"{number}.bin")
    assert (tmp_path / "x.tar").stat().st_size > (64 << 20)
    tracemalloc.start()
    try:
        sizes = [len(record.members[f"{record.key}.bin"]) for record in _each(tmp_path / "x.tar")]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [8 << 20] * 12
    assert peak < (64 << 20) + (40 << 20)


def _each(shard: Path) -> Iterable[dsort.ShardRecord]:
    yield from dsort.read_shards(shard)


def test_a_shard_that_is_torn_is_refused(report: dsort.JobReport) -> None:
    shard = sorted(Path("out").glob("*.tar"))[1]
    shard.write_bytes(shard.read_bytes()[:-1024])
    records = dsort.read_shards(report)
    with raises(dsort.ChangedInputError, shard.name):
        list(records)
    with raises(dsort.ShardEndError, shard.name):
        list(dsort.read_shards(shard))
    shard.write_bytes(shard.read_bytes()[:700])
    with raises(dsort.CorruptShardError, shard=shard.name):
        list(dsort.read_shards(shard))


def test_what_is_not_there_is_reported_at_once(report: dsort.JobReport) -> None:
    with raises(dsort.MissingShardError, "2 shards", "out-998.tar"):
        dsort.read_shards("out/out-{998..999}.tar")
    with raises(dsort.errors.ObjectNotFoundError, "nowhere"):
        dsort.read_shards("nowhere")
    with raises(dsort.InputError, "20200101-000000-abcdef"):
        dsort.read_shards("out", job_id="20200101-000000-abcdef")
    with pytest.raises(dsort.ObjectNotFoundError):
        list(dsort.read_shards("out/out-999.tar"))
    Path("empty").mkdir()
    with raises(dsort.MissingShardError, "empty"):
        dsort.read_shards("empty")


def test_a_pattern_is_answered_with_the_bucket(report: dsort.JobReport, tmp_path: Path) -> None:
    with raises(dsort.MissingShardError, "out/*.tar", hint='"out"'):
        dsort.read_shards("out/*.tar")
    with pytest.raises(TypeError, match="str"):
        dsort.Dataset("out")["000001"]  # type: ignore[call-overload]
    (tmp_path / "out" / "out-000.tar").rename(tmp_path / "out" / "odd-*.tar")
    assert len([*dsort.read_shards("out/odd-*.tar")]) == 5


def test_a_stop_ends_the_reading(report: dsort.JobReport) -> None:
    from dsort.stop_flag import StopFlag

    with StopFlag() as stop:
        records = dsort.read_shards(report, stop=stop)
        next(records)
        stop.request()
        with pytest.raises(dsort.JobStoppedError):
            list(records)


def test_a_result_in_an_object_store_is_read(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    local = list(dsort.read_shards(dsort.run(SPEC)))
    bucket = f"s3://{s3.new_bucket_name()}/result"
    report = dsort.run({**SPEC, "output_bck": bucket})
    names = list(dict.fromkeys(record.shard for record in local))
    for where in (
        report,
        f"{bucket}/{report.manifest_name}",
        bucket,
        f"{bucket}/out-{{000..{len(names) - 1:03d}}}.tar",
        [f"{bucket}/{name}" for name in names],
    ):
        assert list(dsort.read_shards(where)) == local, where
