"""Jobs that read several inputs: order, names, keys, what must not overlap, resuming, verifying."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import (
    MissingShardError,
    ObjectNotFoundError,
    ShardEndError,
    SpecError,
    TransformError,
)
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.storage.network_policy import FetchPolicy
from tests.support.datasets import Shard, files_of, write_shards
from tests.support.engine import keys_in, record, records_out, run_local, shard_of, spec_of
from tests.support.internals import manifest_name
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 1}


def several(*names: str, **fields: Any) -> dict[str, Any]:
    spec = spec_of(**fields)
    del spec["input_bck"]
    return {**spec, "inputs": [{"name": name, "input_bck": name} for name in names]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two buckets, whose shards have the same names and whose records have the same keys."""
    for place in ("web", "code"):
        shards = {
            f"s-{number}.tar": Shard(
                tuple(
                    member
                    for key in range(6)
                    for member in record(f"{number}{key}", "txt", payload=place.encode())
                )
            )
            for number in range(2)
        }
        write_shards(tmp_path / place, shards)
    return tmp_path


def verified(root: Path, job_id: str, **options: Any) -> list[str]:
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    report = api.verify(manifest, options=RunOptions(root=root, **options))
    return [str(problem) for problem in report.problems] + list(report.warnings)


@pytest.mark.parametrize("move", ["map", "spill"])
def test_the_shards_of_one_input_follow_those_of_another(root: Path, move: str) -> None:
    spec = several("code", "web", duplicate_keys="ignore")
    report = run_local(root, spec, move=move)
    keys = [f"{number}{key}.txt" for number in range(2) for key in range(6)]
    assert records_out(root) == [*keys, *keys]
    manifest = json.loads((root / "out" / manifest_name(report.job_id)).read_text())
    names = [each["name"] for each in manifest["inputs"]]
    assert names == ["code/s-0.tar", "code/s-1.tar", "web/s-0.tar", "web/s-1.tar"]
    assert verified(root, report.job_id) == []


def test_duplicate_keys_are_named_with_their_input(root: Path) -> None:
    report = run_local(root, several("web", "code", duplicate_keys="drop"))
    assert report.records == 12
    (dropped,) = [each for each in report.reactions if each.kind == "duplicate_keys_dropped"]
    assert dropped.samples[0] == "code/s-0.tar: 00"
    assert verified(root, report.job_id) == []


def test_numbered_records_have_the_input_in_their_keys(tmp_path: Path) -> None:
    for place in ("web", "code"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.jsonl").write_text(f'{{"of": "{place}"}}\n' * 2)
    spec = several("web", "code", output_extension=".tar", input_extension=".jsonl")
    report = run_local(tmp_path, spec)
    assert report.warnings == ()
    assert records_out(tmp_path) == [
        f"{place}/a-{number:09d}.json" for place in ("web", "code") for number in range(2)
    ]
    assert verified(tmp_path, report.job_id) == []


def test_outputs_may_be_beside_inputs_but_never_replace_one(root: Path) -> None:
    spec = several("web", "code", output_bck="code", duplicate_keys="ignore", overwrite=True)
    run_local(root, {**spec, "output_format": "t-%d"})
    with raises(SpecError, "shard code/s-0.tar", paths=["output_format"]):
        run_local(root, {**spec, "inputs": _only_s(spec), "output_format": "s-%d"})


def _only_s(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**each, "input_format": {"prefix": "s-"}} for each in spec["inputs"]]


def test_one_shard_is_in_the_job_once(root: Path) -> None:
    (root / "link").symlink_to(root / "web")
    with raises(SpecError, "web/s-0.tar", "link/s-0.tar", paths=["inputs"]):
        run_local(root, several("web", "link"))


def test_an_input_without_a_shard_is_named(root: Path) -> None:
    (root / "empty").mkdir()
    with raises(MissingShardError, "input empty"):
        run_local(root, several("web", "empty"))
    with raises(ObjectNotFoundError, "bucket nowhere"):
        run_local(root, several("web", "nowhere"))
    report = run_local(root, several("web", "empty", missing_shards="ignore"))
    assert report.records == 12


def test_a_missing_shard_is_named_with_its_input(root: Path) -> None:
    spec = several("web", "code", duplicate_keys="ignore")
    spec["inputs"][1]["input_format"] = {"template": "s-{0..2}"}
    report = run_local(root, spec)
    assert any("code/s-2.tar" in warning for warning in report.warnings)


def test_inputs_that_change_are_reported_one_by_one(root: Path) -> None:
    report = run_local(root, several("web", "code", duplicate_keys="ignore"))
    (root / "web" / "s-1.tar").unlink()
    assert any("web/s-1.tar" in each for each in verified(root, report.job_id))


def test_directories_and_stores_go_together(root: Path, s3: S3Server) -> None:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    source = open_with_settings("s3://several/raw", root=root, settings=settings)
    source.create()
    for name, data in files_of(root / "web").items():
        source.write(name, data)
    spec = several("code", "web", duplicate_keys="ignore", algorithm=SHUFFLE)
    run_local(root, spec, workers=2)
    spec["inputs"][1]["input_bck"] = "s3://several/raw"
    report = run_local(root, {**spec, "output_bck": "again"}, workers=2, settings=settings)
    assert files_of(root / "again") == files_of(root / "out")
    manifest = (root / "again" / manifest_name(report.job_id)).read_bytes()
    found = api.verify(manifest, options=RunOptions(root=root, settings=settings))
    assert found.problems == ()


def test_a_job_from_the_network_reads_no_input_outside_its_roots(root: Path) -> None:
    (root / "web" / "away.tar").symlink_to("/etc/hostname")
    fetch = FetchPolicy(roots=(str(root),))
    with pytest.raises(Exception, match="away"):
        run_local(root, several("code", "web"), fetch=fetch)


def test_a_shard_that_an_earlier_job_wrote_is_known_as_such(root: Path) -> None:
    write_shards(root / "raw", {"r.tar": shard_of("x", "y")})
    run_local(root, spec_of(input_bck="raw", output_bck="made", output_format="m-%d"))
    made = root / "made" / "m-0.tar"
    whole = made.read_bytes()
    made.write_bytes(whole[:-512])
    with raises(ShardEndError, "made/m-0.tar"):
        run_local(root, several("web", "made"))
    made.write_bytes(whole)
    run_local(root, several("web", "made"))
    assert keys_in(whole) == ["x.jpg", "y.jpg"]


def test_steps_and_outputs_know_the_input(root: Path) -> None:
    steps = {
        "steps": [{"filter": 'input != "web" || key != "00"'}, {"rekey": "{input}/{shard}/{key}"}]
    }
    spec = several("web", "code", transform=steps, output_format="{split}-%d")
    outputs = [{"name": "web", "when": 'input == "web"'}, {"name": "rest", "when": True}]
    report = run_local(root, {**spec, "outputs": outputs, "output_shard_records": 100})
    found = files_of(root / "out")
    names = [f"{number}/{number}{key}.txt" for number in range(2) for key in range(6)]
    assert keys_in(found["rest-0.tar"]) == [f"code/s-{name}" for name in names]
    assert keys_in(found["web-0.tar"]) == [f"web/s-{name}" for name in names[1:]]
    assert verified(root, report.job_id) == []


def test_an_input_without_a_name_is_no_part_of_a_key(root: Path) -> None:
    spec = spec_of(input_bck="web", transform={"steps": [{"rekey": "{input}/{key}"}]})
    with raises(TransformError, "{input}"):
        run_local(root, spec)
