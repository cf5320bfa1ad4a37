"""Small jobs give the bytes, manifests and oddities that are pinned, in whatever way they run.

``python -m tests.golden`` pins them anew. A change of a digest is a change of what users get."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Final

import pytest

from tests.golden.features import allowed_features, feature_job
from tests.golden.jobs import JOBS, GoldenJob
from tests.golden.runs import WAYS, Way, run

pytestmark = [pytest.mark.disk, pytest.mark.usefixtures("workers_here")]

DIGESTS: Final = Path(__file__).parent / "digests.json"
PINNED: Final[dict[str, list[str] | str]] = json.loads(DIGESTS.read_text())
OF_FEATURES: Final = [name for name in PINNED if name not in JOBS]
"""Read and not made from the rules of the spec, which takes each process of a run two seconds."""


def check(job: GoldenJob, way: Way, root: Path) -> None:
    pinned, made = PINNED[job.name], run(job, way, root)
    if way.move in ("map", "range") and isinstance(made, str):
        assert made == "SpecError"  # inputs that are decoded, or come by a pipe, cannot be mapped
    else:
        assert pinned == (made if isinstance(made, str) else list(astuple(made)))


@pytest.mark.sample(keep=8)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("job", JOBS.values(), ids=repr)
def test_a_job_of_any_container_gives_what_is_pinned(
    job: GoldenJob, way: Way, tmp_path: Path
) -> None:
    check(job, way, tmp_path)


@pytest.mark.sample(keep=8)
@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize("name", OF_FEATURES)
def test_a_job_of_any_two_features_gives_what_is_pinned(
    name: str, way: Way, tmp_path: Path
) -> None:
    check(feature_job(name), way, tmp_path)


def test_every_job_is_pinned() -> None:
    assert set(PINNED) == {*JOBS, *allowed_features()}
