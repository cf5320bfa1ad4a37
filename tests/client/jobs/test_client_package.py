"""Both distributions in one environment: the wheels are installed, a service of ``dsort-shards``
runs, and ``dsort-client`` submits jobs to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.support.commands import ROOT
from tests.support.datasets import Shard, write_shards
from tests.support.engine import record
from tests.support.service_process import await_that

pytestmark = pytest.mark.slow

BOTH = """
import dsort, dsort_client, dsort.client, json
print(json.dumps({
    "files": [dsort.__file__, dsort_client.__file__],
    "own errors": not issubclass(dsort_client.DsortError, dsort.DsortError),
    "public": sorted({*dsort.client.__all__} - {*dir(dsort_client)}),
}))
"""
SUBMIT = """
import dsort_client, sys
built = dsort_client.read("in").shuffle(seed=1).write("out", names="x-{n:03d}.tar", size="1MB")
with dsort_client.Client(sys.argv[1]) as client:
    job = client.wait(built.submit(client).job_id)
    assert type(job.result) is dsort_client.JobReport
    try:
        client.get("20260101-000000-000000")
    except dsort_client.NotFoundError as error:
        print(job.state, job.result.totals.records, error.http_status, "dsort" in sys.modules)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with both wheels, which finds the libraries of this one."""
    place = tmp_path_factory.mktemp("both")
    venv = place / "venv"
    wheels = [
        built
        for source in (ROOT, ROOT / "packages/dsort-client")
        for built in WheelBuilder(str(source)).build(directory=str(place), versions=["standard"])
    ]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "--no-input"]
    wanted = ["install", "--quiet", "--no-index", "--no-deps", *wheels]
    subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    write_shards(place / "data/in", {"a.tar": Shard([*record("1", "jpg"), *record("2", "jpg")])})
    return place


def run(place: Path, command: str, *args: str) -> str:
    """What a command of the environment prints."""
    done = subprocess.run(
        [place / "venv/bin" / command, *args],
        cwd=place,
        env={name: value for name, value in os.environ.items() if "DSORT" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """A service of dsort-shards."""
    file = place / "url"
    options = ["--root", place / "data", "--state-dir", place / "state", "--no-auth"]
    service = subprocess.Popen(
        [place / "venv/bin/dsort", "serve", *options, "--port", "0", "--url-file", file],
        cwd=place,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield await_that(lambda: file.read_text().strip() if file.exists() else None)
    finally:
        service.terminate()
        service.wait()


def test_both_are_imported_from_one_environment(place: Path) -> None:
    found = json.loads(run(place, "python", "-c", BOTH))
    assert all(each.startswith(str(place)) for each in found["files"])
    assert found["own errors"]
    assert found["public"] == []


def test_the_client_submits_a_job_to_a_service_of_the_whole(place: Path, url: str) -> None:
    assert run(place, "python", "-c", SUBMIT, url) == "finished 2 404 False\n"


def test_the_command_of_the_client_submits_and_looks_at_jobs(place: Path, url: str) -> None:
    spec = {"input_bck": "in", "output_bck": "other", "output_format": "x-%03d"}
    spec["output_shard_size"] = "1MB"
    (place / "spec.json").write_text(json.dumps(spec))
    at = ["--server", url]
    job_id = run(place, "dsort-client", "start", "-f", "spec.json", *at).strip()
    assert run(place, "dsort-client", "wait", job_id, *at).startswith(f"job        {job_id}")
    shuffled = run(place, "dsort-client", "shuffle", "in", "more", "--wait", "--json", *at)
    assert json.loads(shuffled)["records"] == 2
    shown = run(place, "dsort-client", "show", "--json", *at)
    assert job_id in {each["job_id"] for each in json.loads(shown)}
    assert run(place, "dsort-client", "ls", "other", *at).count(".tar") == 1
