"""A Ray that cannot be locked is refused, before it is started or joined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dsort.errors import WorkerLostError
from tests.support.cluster_files import project
from tests.support.commands import ROOT, CommandLine
from tests.support.internals import RAY_VERSION_MIN, check_ray_version

OLD_RAY = """
import sys
import ray
from dsort.cli.main import main

def never(*given, **named):
    raise AssertionError("an old Ray was used")

ray.__version__, ray.init = sys.argv.pop(1), never
sys.exit(main())
"""


@pytest.mark.parametrize("found", ["2.40.0", "2.49.2", "2.51.2", "2.55.1", "1.99", "nightly"])
def test_a_ray_without_tokens_is_refused(found: str) -> None:
    with pytest.raises(WorkerLostError, match=f"Ray {found} is too old") as caught:
        check_ray_version(found)
    assert caught.value.hint is not None
    assert "pip install 'ray>=2.56'" in caught.value.hint


@pytest.mark.parametrize("found", ["2.56.0", "2.60.0", "2.100.1", "3.0.0.dev0", ""])
def test_a_ray_with_tokens_is_taken(found: str) -> None:
    check_ray_version(found)


def test_what_is_checked_is_what_is_required() -> None:
    required = {each.name: each for each in map(Requirement, project()["project"]["dependencies"])}
    least = ".".join(map(str, RAY_VERSION_MIN))
    assert str(required["ray"].specifier) == f">={least}"


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("options", [["--ray"], ["--ray-address", "127.0.0.1:1"]], ids=str)
def test_nothing_is_started_or_joined_before(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.tar").write_bytes(bytes(10240))
    spec = '{"input_bck": "images", "output_bck": "out", "output_format": "o-%d", ' \
        '"output_shard_size": "1MB"}'  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", OLD_RAY, "2.49.2", "start", "-f", spec, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "error: Ray 2.49.2 is too old" in ended.stderr
    assert "hint: pip install 'ray>=2.56'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.glob("dsort-ray-*")) == []


def test_a_service_does_not_begin_with_it(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.runtime.ray.cluster.version", lambda name: "2.49.2")
    state = str(tmp_path / "state")
    ended = cli("serve", "--no-auth", "--ray", "--state-dir", state, "--port", "0")
    assert ended.code == 5
    assert "Ray 2.49.2 is too old" in ended.err
