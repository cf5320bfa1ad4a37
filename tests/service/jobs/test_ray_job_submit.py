"""``ray job submit -- dsort start -f spec.json --ray-address auto``: a job whose command runs in
the environment that Ray's job server gives it.

The server itself is not here (``ray[default]`` is no dependency of dsort): a head of ``ray start``
is, the variables and the directory that a submitted command finds, and the signal that stops it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import SPEC
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.inline_runtime import run_inline
from tests.support.ray_head import RayHead, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SECONDS_MAX = 120


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with ray_head(cpus=2) as head:
        yield head


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """What was given as ``--working-dir``: a spec whose buckets are elsewhere."""
    write_shards(tmp_path / "data" / "images", small_dataset("submitted", shards=4, records=50))
    spec = {
        **SPEC,
        "input_bck": f"file://{tmp_path}/data/images",
        "output_bck": f"file://{tmp_path}/data/shuffled",
    }
    directory = tmp_path / "submitted"
    directory.mkdir()
    (directory / "spec.json").write_text(json.dumps(spec))
    return directory


def submitted(
    head: RayHead, directory: Path, *options: str, **variables: str
) -> subprocess.Popen[str]:
    """A process as the job server starts it: a session of its own, its output in one file."""
    # The server runs the command in a copy of what was uploaded.
    here = directory.parent / "uploaded"
    shutil.copytree(directory, here, dirs_exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "dsort", "start", "-f", "spec.json", *options],
        cwd=here,
        env=head.job_environment(here, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.exhaustive
def test_a_submitted_job_runs_on_the_cluster_it_was_submitted_to(
    head: RayHead, directory: Path
) -> None:
    data = directory.parent / "data"
    scratch = str(directory.parent / "scratch")

    job = submitted(head, directory, "--ray-address", "auto", "--scratch", scratch, "--json")
    said, _ = job.communicate(timeout=SECONDS_MAX)

    assert job.returncode == 0, said
    run_inline(SPEC | {"output_bck": "expected"}, data)
    assert files_of(data / "shuffled") == files_of(data / "expected")
    assert '"workers": 2' in said  # the CPUs of the head, not of this machine


@pytest.mark.exhaustive
def test_a_job_for_a_cluster_that_is_gone_says_so(head: RayHead, directory: Path) -> None:
    job = submitted(head, directory, "--ray-address", "auto", RAY_ADDRESS="127.0.0.1:9")
    said, _ = job.communicate(timeout=SECONDS_MAX)

    assert job.returncode == 5, said
    assert "127.0.0.1:9" in said
    assert "Traceback" not in said


@pytest.mark.exhaustive
def test_ray_job_stop_ends_a_job_cleanly(head: RayHead, directory: Path) -> None:
    """Ray sends SIGTERM to all processes of the command."""
    data = directory.parent / "data"
    write_shards(data / "images", small_dataset("submitted", shards=200, records=50))

    job = submitted(head, directory, "--ray-address", "auto", "--progress", "json")
    assert job.stdout is not None
    assert any('"extract"' in line for line in job.stdout)
    os.killpg(job.pid, signal.SIGTERM)
    said, _ = job.communicate(timeout=SECONDS_MAX)

    assert job.returncode == 143, said
    assert files_of(data / "shuffled") == {}
    assert "Traceback" not in said
