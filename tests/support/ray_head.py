"""A Ray head as ``ray start --head`` makes it, and the environment in which Ray's job server runs
the command of ``ray job submit``.

The job server itself needs packages that dsort does not need (``ray[default]``), so it is left out:
for a job's command, it sets these variables and the current directory.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.commands import ROOT
from tests.support.ports import free_port

STOP_SECONDS_MAX = 120  # Ray waits up to 30 s for the end of work on a node
STARTED = "Ray runtime started."


@dataclass(frozen=True)
class RayHead:
    """A head that runs. ``address``: of its GCS; ``environment``: of nodes that may join."""

    address: str
    environment: Mapping[str, str]
    pid: int

    def job_environment(self, working_directory: Path, **more: str) -> dict[str, str]:
        """The environment of a submitted job, as the method ``_get_driver_env_vars`` in
        ``ray/dashboard/modules/job/job_supervisor.py`` makes it. (There, the directory is the URI
        of an upload; Ray also uploads a directory that is a path.)"""
        config = {
            "runtime_env": {"working_dir": str(working_directory)},
            "metadata": {"job_submission_id": "raysubmit_test", "job_name": "raysubmit_test"},
        }
        return {
            **self.environment,
            "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config),
            "RAY_ADDRESS": self.address,
            "PYTHONUNBUFFERED": "1",
            **more,
        }


@contextmanager
def ray_head(cpus: int) -> Iterator[RayHead]:
    """Run a head until the end of the block, where all of its processes and files are removed.

    As in a cluster, its ports are open to the network, and need a token.
    """
    directory = tempfile.mkdtemp(prefix="dt-", dir="/tmp")  # a short path: Ray puts sockets there
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DSORT_", "RAY_"))}
    environment = inherited | {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(24),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
         f"--port={port}", "--include-dashboard=false",
         "--no-monitor", "--include-log-monitor=false",
         f"--num-cpus={cpus}", "--num-gpus=0", f"--object-store-memory={80 << 20}",
         f"--temp-dir={directory}", "--disable-usage-stats"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said = _read_until_started(process)
        address = next(word for line in said for word in line.split("'") if f":{port}" in word)
        yield RayHead(address, environment, process.pid)
    finally:
        _stop(process)
        shutil.rmtree(directory, ignore_errors=True)


def _read_until_started(process: subprocess.Popen[str]) -> list[str]:
    """The lines that the process prints, up to the line with its address."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if "--address=" in line and any(STARTED in each for each in said):
            return said
    raise RuntimeError("ray start ended:\n" + "".join(said))


def _stop(process: subprocess.Popen[str]) -> None:
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    for each in psutil.wait_procs(below, timeout=30)[1]:
        each.kill()
