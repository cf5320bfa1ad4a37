"""The law of the pages of a view: one after the other, they have the records that ``dsort view
export`` lists, for each small job that may be a view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import InputError
from dsort.options import RunOptions, open_with_settings
from dsort.service.objects.view_looks import view_page
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.routed import BucketPlace, open_inputs
from tests.golden.test_golden_views import DIRECT, PINNED, is_refused, job_of
from tests.support.commands import CommandLine
from tests.support.internals import JobReport

pytestmark = pytest.mark.usefixtures("workers_here")


def pages(report: JobReport, spec: dict[str, Any], options: RunOptions) -> Iterator[dict[str, Any]]:
    def opened(where: str | BucketRef) -> Bucket:
        return open_with_settings(where, root=options.root, settings=options.settings)

    sources = [BucketPlace(each.name, each.bucket) for each in parse_spec(spec).spec.sources]
    inputs = open_inputs(sources, lambda place: opened(place.ref))
    first: int | None = 0
    while first is not None:
        order = {"job_id": report.job_id, "first": first, "limit": 4}
        page = json.loads(b"".join(view_page(opened("view"), inputs, order)))
        assert page["total"] == report.records
        yield from page["records"]
        first = page["next_position"]


def as_exported(record: dict[str, Any]) -> dict[str, Any]:
    assert record.pop("ranges_total") == len(record["ranges"])
    for part in record["ranges"]:
        if "base64" in part:
            del part["bytes"]
    return record


@pytest.mark.sample(keep=16)
@pytest.mark.parametrize("name", DIRECT)
def test_pages_have_the_records_of_the_export(name: str, tmp_path: Path, cli: CommandLine) -> None:
    if is_refused(name) or isinstance(PINNED[name], str):
        return
    job, options = job_of(name), RunOptions(root=tmp_path)
    job.prepare(tmp_path)
    spec = {**job.spec, "output": "view", "output_bck": "view"}
    report = api.run(spec, options=options)
    exported = cli("view", "export", report.job_id, "--bucket", "view", "--jsonl")
    if exported.code:  # members of a zip are compressed
        with pytest.raises(InputError):
            list(pages(report, spec, options))
        return
    found = [as_exported(each) for each in pages(report, spec, options)]
    assert found == [json.loads(line) for line in exported.out.splitlines()]
