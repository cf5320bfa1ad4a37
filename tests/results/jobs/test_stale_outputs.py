"""A result that replaces one of more shards: what is left of the older one is reported before a
byte is read if that can be known, and with ``remove_stale`` it is removed once the new one is
there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import CorruptShardError
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import Event, JobWarning, PhaseDone
from tests.support.object_stores import new_s3_bucket
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

DATASET = small_dataset("stale", shards=2, records=12)
FEWER = {"overwrite": True, "output_shard_records": 10}  # three shards, instead of six
COUNTED = {"overwrite": True, "output_shard_records": None, "output_shard_count": 3}


def spec_with(**fields: Any) -> dict[str, Any]:
    spec = {"output_shard_records": 4, **fields}
    return {name: value for name, value in spec_of(**spec).items() if value is not None}


def begin(root: Path) -> None:
    """A result of six shards, and what is not of it."""
    write_shards(root / "in", DATASET)
    run_local(root, spec_with())
    write_shards(root / "out", {"out-9.tar": b"mine", "out-x.tar": b"mine"})


def warnings_of(root: Path, spec: dict[str, Any]) -> list[str]:
    """Run the job; its warnings of what is stale."""
    events: list[Event] = []
    run_local(root, spec, on_event=events.append)
    return [each.text for each in events if isinstance(each, JobWarning) and "stale" in each.kind]


@pytest.mark.parametrize("fields", [FEWER, COUNTED])
def test_what_is_left_of_an_older_result_is_reported(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    begin(tmp_path)
    (text,) = warnings_of(tmp_path, spec_with(**fields))
    assert "4 objects" in text
    assert "out-3.tar, out-4.tar, out-5.tar" in text
    assert "--remove-stale removes 3 of them" in text
    assert len(files_of(tmp_path / "out")) == 8


def test_stale_outputs_are_reported_before_a_byte_is_read_if_the_count_is_known(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    (tmp_path / "in" / "in-0.tar").write_bytes(b"this is no tar" * 1000)
    events: list[Event] = []
    with pytest.raises(CorruptShardError):
        run_local(tmp_path, spec_with(**COUNTED), on_event=events.append)
    assert any(isinstance(each, JobWarning) and each.kind == "stale_outputs" for each in events)


@pytest.mark.parametrize("fields", [FEWER, COUNTED])
def test_what_is_left_of_a_replaced_result_is_removed(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    begin(tmp_path)
    left, removed = warnings_of(tmp_path, spec_with(remove_stale=True, **fields))
    assert "1 object has a name" in left
    assert "out-9.tar" in left
    assert removed == "removed 3 objects of replaced results: out-3.tar, out-4.tar, out-5.tar"
    names = {"out-0.tar", "out-1.tar", "out-2.tar", "out-9.tar", "out-x.tar"}
    assert set(files_of(tmp_path / "out")) == names
    assert (tmp_path / "out" / "out-9.tar").read_bytes() == b"mine"


def test_nothing_is_removed_that_is_not_of_a_replaced_result(tmp_path: Path) -> None:
    """Not what was changed since, not what another result lists, and nothing by what is no
    manifest."""
    begin(tmp_path)
    (tmp_path / "out" / "out-4.tar").write_bytes(b"changed since")
    run_local(tmp_path, spec_with(output_format="out-{20..29}"))
    for number, text in enumerate(("", "[]", '{"manifest": 1}', "[" * 100_000)):
        path = tmp_path / "out" / ".dsort" / f"3{number}" / "manifest.json"
        path.parent.mkdir()
        path.write_text(text)
    before = files_of(tmp_path / "out")
    warnings_of(tmp_path, spec_with(remove_stale=True, **FEWER))
    after = files_of(tmp_path / "out")
    assert set(before) - set(after) == {"out-3.tar", "out-5.tar"}


def begin_two(root: Path) -> dict[str, bytes]:
    """A result of ten shards, five of which another job has replaced by shards of the same sizes;
    what is in the bucket then."""
    same = {f"in-{at}.tar": shard_of(*(f"{at}{n}" for n in range(3))) for at in range(10)}
    write_shards(root / "in", same)
    ten = {"output_format": "out-{0..9}", "output_shard_records": 3}
    run_local(root, spec_with(**ten))
    shuffled = {"algorithm": {"kind": "shuffle", "seed": 7}, "input_format": "in-{0..4}"}
    run_local(root, spec_with(**ten, **shuffled, overwrite=True) | {"output_format": "out-{5..9}"})
    return files_of(root / "out")


THREE = {"output_format": "out-{0..9}", "output_shard_records": 10, "overwrite": True}


def test_newer_shards_of_another_result_stay_though_an_older_one_lists_their_names(
    tmp_path: Path,
) -> None:
    before = begin_two(tmp_path)
    left, removed = warnings_of(tmp_path, spec_with(**THREE, remove_stale=True))
    after = files_of(tmp_path / "out")
    assert set(after) == {f"out-{at}.tar" for at in (0, 1, 2, 5, 6, 7, 8, 9)}
    assert {f"out-{at}.tar": before[f"out-{at}.tar"] for at in range(5, 10)} == {
        name: after[name] for name in after if name >= "out-5"
    }
    assert "5 objects" in left
    assert removed.endswith("of replaced results: out-3.tar, out-4.tar")


def test_a_manifest_of_another_version_keeps_what_it_lists(tmp_path: Path) -> None:
    begin_two(tmp_path)
    newest = max((tmp_path / "out" / ".dsort").glob("*/manifest.json"), key=mtime_ns_of)
    content = json.loads(newest.read_text())
    newest.write_text(json.dumps({**content, "manifest": 99}))
    warnings_of(tmp_path, spec_with(**THREE, remove_stale=True))
    assert set(files_of(tmp_path / "out")) == {f"out-{at}.tar" for at in (0, 1, 2, 5, 6, 7, 8, 9)}


def mtime_ns_of(path: Path) -> int:
    return path.stat().st_mtime_ns


def test_what_was_written_after_its_manifest_stays_though_its_size_is_the_same(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    mine = tmp_path / "out" / "out-4.tar"
    mine.write_bytes(b"x" * mine.stat().st_size)
    (manifest,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    os.utime(mine, ns=(0, mtime_ns_of(manifest) + 1))
    left, removed = warnings_of(tmp_path, spec_with(remove_stale=True, **FEWER))
    assert set(mine.read_bytes()) == set(b"x")
    assert "2 objects" in left
    assert "removed 2 objects" in removed


@pytest.mark.parametrize("fields", [FEWER, COUNTED])
def test_what_is_written_while_the_job_runs_stays_and_is_reported(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    begin(tmp_path)
    out, events = tmp_path / "out", list[Event]()
    data = b"y" * (out / "out-4.tar").stat().st_size

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, PhaseDone) and event.phase == "create":
            (out / "out-4.tar").write_bytes(data)
            (out / "out-5.tar").unlink()

    run_local(tmp_path, spec_with(remove_stale=True, **fields), on_event=listen)
    assert (out / "out-4.tar").read_bytes() == data
    texts = [each.text for each in events if isinstance(each, JobWarning) and "stale" in each.kind]
    assert [text for text in texts if "changed while the job ran" in text and "out-4.tar" in text]
    assert texts[-1] == "removed 1 object of replaced results: out-3.tar"


def test_in_an_object_store_what_is_written_while_the_job_runs_stays(
    s3: S3Server, tmp_path: Path
) -> None:
    bucket = new_s3_bucket(s3)
    place = {"output_bck": {"name": bucket.uri, "endpoint_url": s3.endpoint_url}}
    write_shards(tmp_path / "in", DATASET)
    run_local(tmp_path, spec_with(**place))
    data = bytes(bucket.stat("out-4.tar").size_bytes)

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            bucket.write("out-4.tar", data)

    spec = spec_with(**place, remove_stale=True, **FEWER)
    run_local(tmp_path, spec, on_event=listen)
    left = {info.name for info in bucket.list()}
    assert left == {"out-0.tar", "out-1.tar", "out-2.tar", "out-4.tar"}
    assert bucket.read("out-4.tar") == data


def test_nothing_is_removed_if_the_job_fails(tmp_path: Path) -> None:
    begin(tmp_path)
    before = files_of(tmp_path / "out")

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_local(tmp_path, spec_with(remove_stale=True, **FEWER), on_event=listen)
    assert files_of(tmp_path / "out") == before
