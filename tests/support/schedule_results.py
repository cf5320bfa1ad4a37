"""Results of a schedule that no job has made: outputs, a manifest, and the rows that a database
would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsort.service.schedules.due import run_id_of
from dsort.service.schedules.retention import Result, ScheduleResults
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from tests.support.internals import ManifestInput, ManifestOutput, ViewJob, manifest_name
from tests.support.manifests import manifest_bytes


class KnownResults(ScheduleResults):
    """The rows of results that a database would have, in memory."""

    def __init__(self) -> None:
        self.rows: list[Result] = []
        self.running: list[Result] = []
        self.removed: set[str] = set()
        self.made_views: list[ViewJob] = []

    def unfinished(self, schedule_id: str) -> Sequence[Result]:
        return sorted(self.running, key=lambda each: each.order, reverse=True)

    def finished(self, schedule_id: str) -> Sequence[Result]:
        left = [each for each in self.rows if each.job_id not in self.removed]
        return sorted(left, key=lambda each: each.order, reverse=True)

    def views(self) -> Sequence[ViewJob]:
        return self.made_views

    def mark_removed(self, result: Result, *, now_s: float) -> None:
        self.removed.add(result.job_id)


def make_result(
    number: int, *, retain: int | None = None, names: Sequence[str] = (), **spec: Any
) -> Result:
    """The result of the ``number``-th run of a schedule, due an hour after the run before it.
    ``names``: further names that it makes, besides those of its template."""
    due_s = 3600.0 * number
    fields = {
        "input_bck": "in",
        "output_bck": "out",
        "output_format": f"{run_id_of(due_s)}/s-%d",
        "output_shard_records": 1,
        **spec,
    }
    canonical = parse_spec(fields).spec.canonical()
    claims = [["", each] for each in (f"{fields['output_format']}.tar", *names)]
    after_commit = {
        "schedule_id": "a",
        "schedule": "nightly",
        "due_at": due_s,
        "date": "1970-01-01",
        "run_id": run_id_of(due_s),
        "epoch": number,
        "retain": retain,
        "pointer": {"bucket": "out", "name": "latest.json"},
    }
    return Result(number, f"job-{number}", "finished", due_s, canonical, after_commit, claims, 1)


def publish(
    result: Result,
    bucket: Bucket,
    outputs: Mapping[str, bytes],
    *,
    inputs: Sequence[str] = (),
    index: str | None = None,
) -> None:
    """Store the outputs, then the manifest, as a commit does."""
    for name, data in outputs.items():
        bucket.write(name, data)
    if index is not None:
        bucket.write(index, b"{}")
    content = manifest_bytes(
        job_id=result.job_id,
        spec=result.spec,
        inputs=[ManifestInput(name, 1, 0, "", 1) for name in inputs],
        outputs=[
            ManifestOutput(name, 1, 1, len(data), len(data), "0" * 16)
            for name, data in outputs.items()
        ],
        index=index,
    )
    bucket.write(manifest_name(result.job_id), content)
