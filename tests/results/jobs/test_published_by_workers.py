"""Many output shards of an object store get their names from workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.storage.small_objects import Staged
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import InlineRuntime, Moved, run_inline
from tests.support.internals import PublishTask, commit, publish_all
from tests.support.object_stores import TOKEN, new_s3_bucket, upload
from tests.support.seaweedfs import S3Server


def test_workers_publish_what_is_staged(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.setattr(commit, "PUBLISHED_BY_WORKERS_MIN", 2)
    monkeypatch.setattr(commit, "PUBLISHED_A_TASK", 3)
    asked: list[str] = []
    do_all = InlineRuntime.run

    def watched(self: InlineRuntime, tasks: object, **more: object) -> object:
        for task, done in do_all(self, tasks, **more):  # type: ignore[arg-type]
            asked.append(type(task).__name__)
            yield task, done

    monkeypatch.setattr(InlineRuntime, "run", watched)
    write_shards(tmp_path / "in", small_dataset("publish"))
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    spec = spec_of(output_bck=f"s3://{bucket}/out")
    report = run_inline(spec, tmp_path, Moved("spill", partitions=2))
    assert asked.count("PublishTask") == -(-report.output_shards // 3)
    found = client.list_objects_v2(Bucket=bucket, Prefix="out/out-")["Contents"]
    assert len(found) == report.output_shards
    assert sum(each["Size"] for each in found) == report.totals.file_bytes
    assert s3.unfinished_uploads(bucket) == []


def test_a_task_that_was_done_by_a_worker_that_died_is_done_again(s3: S3Server) -> None:
    bucket = new_s3_bucket(s3)
    receipts = {name: upload(bucket, name, name.encode()) for name in ("a", "b")}
    named = [Staged(TOKEN, name, receipt) for name, receipt in receipts.items()]
    publish_all(PublishTask(tuple(named[:1])), bucket)
    assert publish_all(PublishTask(tuple(named)), bucket).count == 2
    assert (bucket.read("a"), bucket.read("b")) == (b"a", b"b")
