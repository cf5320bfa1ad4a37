"""The law of views: a view that is materialized has the bytes that the job would have written.

Each small job is run as a view, unless it is refused, and the shards that are made of the view are
those that are pinned for the job itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from docs.generate.combinations_page import FEATURES
from dsort import api
from dsort.errors import DsortError, SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.golden.features import feature_job
from tests.golden.jobs import JOBS, GoldenJob, digest_of

pytestmark = [pytest.mark.disk, pytest.mark.usefixtures("workers_here")]

DIGESTS: Final = Path(__file__).parent / "digests.json"
PINNED: Final[dict[str, list[str] | str]] = json.loads(DIGESTS.read_text())
DIRECT: Final = [name for name in PINNED if "`output: view`" not in name]
REFUSED: Final = {
    *("`ingest`", "standard input", "a Python function", "outputs in two buckets"),
    *("Parquet outputs", "compressed tars", "standard output", "`index` for wids"),
    *("`lineage`", "`on_shard`", "`amend`"),
}
"""The features that a view cannot have."""


def job_of(name: str) -> GoldenJob:
    return JOBS[name] if name in JOBS else feature_job(name)


def is_refused(name: str) -> bool:
    try:
        parse_spec({**job_of(name).spec, "output": "view"})
    except SpecError:
        return True
    return False


def test_a_view_has_all_features_that_need_the_index_alone() -> None:
    assert {name for name in FEATURES if is_refused(name)} == REFUSED


@pytest.mark.sample(keep=16)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", DIRECT)
def test_a_materialized_view_is_what_the_job_would_have_written(
    name: str, workers: int, tmp_path: Path
) -> None:
    if is_refused(name):
        return
    job, options = job_of(name), RunOptions(root=tmp_path, workers=workers)
    job.prepare(tmp_path)
    spec, pinned = {**job.spec, "output": "view", "output_bck": "view"}, PINNED[name]
    if isinstance(pinned, str):
        with pytest.raises(DsortError) as failed:
            api.run(spec, options=options)
        assert type(failed.value).__name__ == pinned
        return
    report = api.run(spec, options=options)
    api.materialize(report, "out", options=options)
    shutil.rmtree(tmp_path / "view")
    assert digest_of(tmp_path).outputs == pinned[0]
