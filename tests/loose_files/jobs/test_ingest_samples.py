"""``dsort.ingest``: samples of datasets and iterables, encoded in processes, once each."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset  # type: ignore[import-untyped,import-not-found,unused-ignore]

import dsort
from dsort.errors import DuplicateError, JobStoppedError, SpecError, TransformError
from dsort.options import RunOptions
from dsort.stop_flag import StopFlag
from tests.support.datasets import files_of
from tests.support.internals import Event, PhaseDone
from tests.support.loose_files import contents_out, write_tree
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

FIELDS = {"output_shard_records": 7, "algorithm": {"kind": "shuffle", "seed": "4"}}


class Dataset:
    """Items by number; each that is asked for leaves a line in a file."""

    def __init__(self, asked: Path, count: int = 20) -> None:
        self.asked = asked
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.asked.open("a") as file:
            file.write(f"{index}\n")
        return {"__key__": f"k{index:02d}", "txt": f"no. {index}", "cls": index % 3}


EXPECTED = {f"k{at:02d}.txt": f"no. {at}".encode() for at in range(20)} | {
    f"k{at:02d}.cls": b"%d" % (at % 3) for at in range(20)
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsort.staged_samples.SAMPLES_A_CHUNK", 6)


def ingested(root: Path, source: Any, **options: Any) -> dsort.JobReport:
    given = {"workers": 2, "scratch": root / "scratch", "spec": FIELDS, **options}
    where = str(given.pop("to", "out/s-%03d.tar"))
    return dsort.ingest(source, where, options=RunOptions(root=root), **given)


def asked(root: Path) -> list[int]:
    return sorted(map(int, (root / "asked").read_text().split()))


def test_the_shards_are_the_same_whatever_the_source_and_the_workers(tmp_path: Path) -> None:
    report = ingested(tmp_path, Dataset(tmp_path / "asked"))
    assert (report.records, report.output_shards) == (20, 3)
    assert contents_out(tmp_path) == EXPECTED
    assert asked(tmp_path) == [*range(20)]
    assert [*(tmp_path / "scratch").iterdir()] == []
    one_by_one = iter([Dataset(tmp_path / "more")[at] for at in range(20)])
    ingested(tmp_path, one_by_one, workers=1, to="other/s-%03d.tar")
    assert files_of(tmp_path / "other") == files_of(tmp_path / "out")


def test_what_encode_gives_is_stored_and_keys_are_numbers(tmp_path: Path) -> None:
    def encode(number: int) -> dict[str, Any] | None:
        return None if number == 3 else {"json": {"n": number}, "bin": bytes(number)}

    report = ingested(tmp_path, range(5), encode=encode)
    assert report.records == 4
    assert contents_out(tmp_path)["000000004.json"] == b'{"n": 4}'
    assert "000000003.json" not in contents_out(tmp_path)


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        (7, "int"),
        ({"__key__": "a.b", "txt": ""}, "a.b"),
        ({"__key__": "../b", "txt": ""}, "../b"),
        ({"__key__": "0", "txt": ""}, "sample 0"),
        ({"txt": object()}, ".txt"),
        ({"../x": b""}, "../x"),
        ({}, "sample 2"),
    ],
)
def test_a_sample_that_cannot_be_stored_is_named(sample: Any, named: str, tmp_path: Path) -> None:
    samples = [{"__key__": "0", "txt": "a"}, {"__key__": "1", "txt": "b"}, sample]
    with raises(TransformError, "sample 2", named):
        ingested(tmp_path, samples)
    assert contents_out(tmp_path) == {}


def test_keys_that_occur_twice_end_the_job(tmp_path: Path) -> None:
    samples = [{"__key__": f"{at % 10}", "txt": "a"} for at in range(12)]
    with raises(DuplicateError, "2 records"):
        ingested(tmp_path, samples)


def test_the_same_call_goes_on_after_a_death(tmp_path: Path) -> None:
    class Dying(Dataset):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 15 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(9)
            return super().__getitem__(index)

    with raises(TransformError, "samples 12 to 17", "code 9"):
        ingested(tmp_path, Dying(tmp_path / "asked"), workers=1)
    ingested(tmp_path, Dying(tmp_path / "asked"), workers=3)
    assert contents_out(tmp_path) == EXPECTED
    # The first chunk again, to see that samples are the same; of the others what was missing.
    assert asked(tmp_path) == sorted([*range(20), *range(6), 12, 13, 14])


def test_the_same_call_resumes_a_job_that_was_stopped(tmp_path: Path) -> None:
    with StopFlag() as stop:

        def listen(event: Event) -> None:
            if isinstance(event, PhaseDone) and event.phase == "extract":
                stop.request(15, "a test")

        with pytest.raises(JobStoppedError):
            ingested(tmp_path, Dataset(tmp_path / "asked"), on_event=listen, stop=stop)
    ingested(tmp_path, Dataset(tmp_path / "asked"))
    assert contents_out(tmp_path) == EXPECTED
    assert asked(tmp_path) == sorted([*range(20), *range(6)])


def test_the_same_call_gives_the_report_of_a_job_that_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That call died between the manifest and the end."""
    with monkeypatch.context() as patch:
        patch.setattr("dsort.job.coordinator.discard_run", lambda *args, **named: os._exit(9))
        process = multiprocessing.get_context("fork").Process(
            target=ingested, args=(tmp_path, Dataset(tmp_path / "asked"))
        )
        process.start()
        process.join()
    assert process.exitcode == 9
    (manifest,) = tmp_path.glob("out/.dsort/*/manifest.json")
    assert (manifest.parent / "lease.json").exists()
    report = ingested(tmp_path, Dataset(tmp_path / "asked"))
    assert (report.job_id, report.records) == (manifest.parent.name, 20)
    assert contents_out(tmp_path) == EXPECTED
    assert not (manifest.parent / "lease.json").exists()
    assert [*(tmp_path / "scratch").iterdir()] == []


def test_other_samples_for_the_same_place_are_not_mixed_with_those_of_before(
    tmp_path: Path,
) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from ({"txt": "old"} for _ in range(12))
        raise ValueError("the source is at its end")

    with pytest.raises(ValueError, match="at its end"):
        ingested(tmp_path, failing())
    ingested(tmp_path, [{"txt": "new"}] * 20)
    assert set(contents_out(tmp_path).values()) == {b"new"}


def test_other_samples_are_not_mixed_with_those_of_a_call_whose_first_chunk_is_not_there(
    tmp_path: Path,
) -> None:
    def dies_behind_the_next_chunk(number: int) -> dict[str, Any]:
        if not number:
            while not [*(tmp_path / "scratch").glob("*/chunk-000001.tar")]:
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"txt": "old"}

    with raises(TransformError, "samples 0 to 5", "code -9"):
        ingested(tmp_path, range(12), encode=dies_behind_the_next_chunk)
    ingested(tmp_path, [{"txt": "new"}] * 20)
    assert set(contents_out(tmp_path).values()) == {b"new"}


def test_a_path_is_a_tree_of_files(tmp_path: Path) -> None:
    write_tree(tmp_path / "pets", {"cat/1.jpg": b"cat", "ant/1.jpg": b"ant"})
    report = ingested(tmp_path, tmp_path / "pets", spec={**FIELDS, "ingest": {"layout": "folders"}})
    assert (report.records, report.order.seed) == (2, "4")
    found = {}
    for sample in webdataset.WebDataset(
        sorted(map(str, (tmp_path / "out").glob("*.tar"))), shardshuffle=False
    ).decode():
        found[sample["__key__"]] = (sample["jpg"], sample["cls"])
    assert found == {"cat/1": (b"cat", 1), "ant/1": (b"ant", 0)}
    with raises(SpecError, "encode"):
        ingested(tmp_path, str(tmp_path / "pets"), encode=dict)
