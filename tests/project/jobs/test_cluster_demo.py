"""The commands of ``cluster/compose/ray.yaml`` work on a real S3 server: one makes the input, and
the spec of the job shuffles it. No containers and no Ray here: the endpoint alone differs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_files import CLUSTER, read_json, read_yaml
from tests.support.commands import ROOT
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.slow

SECONDS_MAX = 120


@pytest.mark.exhaustive
def test_the_demo_makes_its_input_and_shuffles_it(s3_server: S3Server, tmp_path: Path) -> None:
    services = read_yaml("compose/ray.yaml")["services"]
    spec = read_json("compose/ray-spec.json")
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DSORT_", "RAY_"))
    }

    environment = inherited | {
        **services["images"]["environment"],
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "PYTHONPATH": str(ROOT),
    }
    job = ["dsort", "start", "-f", str(CLUSTER / "compose/ray-spec.json"), "--scratch", "scratch"]
    for words in (shlex.split(services["images"]["command"]), job):
        ended = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    names = {
        bucket: [
            each["Key"] for each in s3_server.client().list_objects_v2(Bucket=bucket)["Contents"]
        ]
        for bucket in (spec[field].removeprefix("s3://") for field in ("input_bck", "output_bck"))
    }

    made, shuffled = names.values()
    assert len(made) == 19
    assert [name for name in shuffled if not name.startswith(".dsort/")][:2] == [
        "shuffled-000000.tar",
        "shuffled-000001.tar",
    ]
    assert any(name.endswith("/manifest.json") for name in shuffled)
    assert "1,900" in ended.stdout  # records
