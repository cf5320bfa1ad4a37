"""A job of code gives on Ray what it gives in processes of this machine. (What other jobs give
there: ``tests/golden/test_golden_jobs_on_ray.py``.)"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import JobStoppedError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from tests.support.datasets import (
    Member,
    Shard,
    files_of,
    read_shard,
    small_dataset,
    write_shards,
)
from tests.support.etl_server import etl_server
from tests.support.internals import JobReport, Progress, rejects_name
from tests.support.ray_here import ray_here
from tests.support.surviving import assert_kept

pytestmark = pytest.mark.ray

ray = pytest.fixture(scope="module")(ray_here)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a bucket ``in``, whose last shard repeats half the keys of its first."""
    root = tmp_path_factory.mktemp("data")
    shards = small_dataset("both runtimes", shards=5, records=20)
    again = [replace(each, payload=b"9" + each.payload) for each in shards["in-0.tar"].members[:20]]
    others = [Member("pax.jpg", b"p" * 3000, form="pax"), Member("pax.cls", b"3", form="pax")]
    write_shards(root / "in", shards | {"in-5.tar": Shard((*again, *others))})
    return root


def whole_spec(bucket: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    whole = {"input_bck": "in", "output_bck": bucket, "output_format": "out-%03d", **spec}
    if "inputs" in spec:
        del whole["input_bck"]
    if "ekm" in spec:
        del whole["output_format"]
    if "output_shard_count" not in spec:
        whole["output_shard_size"] = 16000
    return whole


def run(
    root: Path, bucket: str, runtime: str, move: str, spec: Mapping[str, Any], workers: int = 2
) -> JobReport:
    options = RunOptions(root=root, runtime=runtime, move=move, workers=workers)
    return api.run(parse_spec(whole_spec(bucket, spec)).spec, options=options)


def with_code(name: str, **options: Any) -> dict[str, Any]:
    return {"map": {"python": f"tests.support.user_functions:{name}", **options}}


CODE: Mapping[str, Any] = {
    "algorithm": {"kind": "shuffle", "seed": 7},
    "Config": {"duplicate_keys": "ignore"},
    "transform": {
        "steps": [
            with_code("drawn_beside", concurrency=[1, 2]),
            with_code("broken", args={"how": "is killed", "key": "00003"}),
        ],
        "on_error": "skip",
        "rejects": True,
    },
}


def test_code_runs_on_ray_as_it_does_in_processes(root: Path, ray: Any) -> None:
    local, on_ray = (run(root, f"code-{each}", each, "auto", CODE) for each in ("local", "ray"))
    assert len(files_of(root / "code-ray")) > 2
    assert files_of(root / "code-ray") == files_of(root / "code-local")
    assert on_ray.reactions == local.reactions
    rejects = [
        (root / bucket / rejects_name(report.job_id)).read_bytes()
        for bucket, report in (("code-local", local), ("code-ray", on_ray))
    ]
    assert rejects[0] == rejects[1] != b""


@pytest.mark.exhaustive
def test_a_job_of_code_that_was_stopped_on_ray_is_resumed_there(root: Path, ray: Any) -> None:
    local = run(root, "code-once", "local", "auto", CODE)
    options = RunOptions(root=root, runtime="ray", workers=2)
    with StopFlag() as stop:

        def stop_behind(progress: Progress) -> None:
            if progress.phase == "plan":
                stop.request(signal.SIGTERM, "a test")

        spec = parse_spec(whole_spec("code-again", CODE)).spec
        with pytest.raises(JobStoppedError):
            api.run(spec, options=options, job_id="again", stop=stop, on_progress=stop_behind)
    assert_kept(root / "code-again")
    again = api.resume("again", "code-again", options=options)
    assert files_of(root / "code-again") == files_of(root / "code-once")
    assert again.reactions == local.reactions


@pytest.mark.exhaustive
def test_programs_and_servers_are_asked_on_ray_as_in_processes(root: Path, ray: Any) -> None:
    """``flat_map``, ``exec`` and ``http``: each in a step, one behind the other."""
    with etl_server() as server:
        steps = [
            {"flat_map": {**with_code("numbered")["map"], "keys": "{key}-{i}"}},
            {"exec": {"command": ["cp", "$IN/jpg", "$OUT/copy"], "protocol": "files"}},
            {"http": {"url": server.url, "members": {"copy": "up"}}},
        ]
        spec = {**CODE, "input_format": {"template": "in-0"}, "transform": {"steps": steps}}
        for each in ("local", "ray"):
            run(root, f"asked-{each}", each, "auto", spec)
    found = files_of(root / "asked-local")
    assert files_of(root / "asked-ray") == found
    assert len(found) > 2
    assert any(each.name.endswith("-1.up") for data in found.values() for each in read_shard(data))


@pytest.mark.exhaustive
def test_workers_on_ray_ask_for_the_gpus_that_steps_want(root: Path, ray: Any) -> None:
    spec = {**CODE, "transform": {"steps": [with_code("told", resources={"num_gpus": 1})]}}
    run(root, "gpus", "ray", "auto", spec, workers=1)
    told = {
        member.payload
        for data in files_of(root / "gpus").values()
        for member in read_shard(data)
        if "cuda" in member.name
    }
    assert told <= {b"0", b"1"}
    assert told
