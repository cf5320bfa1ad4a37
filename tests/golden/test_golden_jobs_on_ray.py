"""Pinned jobs give what is pinned on Ray as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.golden.features import feature_job
from tests.golden.jobs import JOBS
from tests.golden.runs import Way
from tests.golden.test_golden_jobs import PINNED, check
from tests.support.ray_here import ray_here

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ray = pytest.fixture(scope="module")(ray_here)

ON_RAY: Final = [name for name in PINNED if " + " not in name and not name.startswith("standard")]
"""Jobs with a file as their standard input or output are run in processes of their own."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ON_RAY)
def test_a_job_on_ray_gives_what_is_pinned(name: str, ray: Any, tmp_path: Path) -> None:
    check(JOBS.get(name) or feature_job(name), Way("auto", 2, runtime="ray"), tmp_path)
