"""``checksums: sha256``: the manifest has the SHA-256 of each output shard, as ``sha256sum`` prints
it, and ``dsort verify`` compares it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import SpecError
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from tests.support.amending import append, made, newest, remove, verify
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import manifest_name
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")


def listed(root: Path) -> dict[str, str]:
    outputs = json.loads(newest(root))["outputs"]
    return {shard["name"]: shard["sha256"] for shard in outputs}


def sha256sum(directory: Path, *names: str) -> dict[str, str]:
    run = subprocess.run(
        ["sha256sum", *names], cwd=directory, capture_output=True, text=True, check=True
    )
    pairs = (line.split("  ") for line in run.stdout.splitlines())
    return {name: digest for digest, name in pairs}


@pytest.mark.whole
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"index": "wids"},
        {"verify": "content"},
        {"output_extension": ".tar.zst"},
        {"output_extension": ".parquet"},
        {"output_extension": ".mds"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())) or "plain",
)
def test_the_manifest_has_what_sha256sum_prints(tmp_path: Path, fields: dict[str, Any]) -> None:
    made(tmp_path, checksums="sha256", **fields)
    found = listed(tmp_path)
    assert found == sha256sum(tmp_path / "out", *found)
    assert len(found) == 3
    assert verify(tmp_path).problems == ()


def test_the_digest_of_a_shard_in_a_store_is_made_while_it_is_written(
    tmp_path: Path, s3: S3Server
) -> None:
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    write_shards(tmp_path / "in", {"a.tar": shard_of(*"abcdef")})
    place = f"s3://{s3.new_bucket_name()}/out"
    outputs = open_with_settings(place, root=tmp_path, settings=settings)
    outputs.create()
    spec = spec_of(output_bck=place, output_shard_records=4, checksums="sha256")
    report = run_local(tmp_path, spec, settings=settings)
    manifest = outputs.read(manifest_name(report.job_id))
    for shard in json.loads(manifest)["outputs"]:
        (tmp_path / shard["name"]).write_bytes(outputs.read(shard["name"]))
        assert sha256sum(tmp_path, shard["name"]) == {shard["name"]: shard["sha256"]}
    found = api.verify(manifest, options=RunOptions(root=tmp_path, settings=settings))
    assert found.problems == ()


def test_verify_compares_it(tmp_path: Path) -> None:
    report = made(tmp_path, checksums="sha256")
    path = tmp_path / "out" / str(report.manifest_name)
    manifest = json.loads(path.read_text())
    first, second = manifest["outputs"][:2]
    first["sha256"] = second["sha256"]
    path.write_text(json.dumps(manifest))
    assert [(each.kind, each.shard) for each in verify(tmp_path).problems] == [
        ("checksum", first["name"])
    ]
    del second["sha256"]
    path.write_text(json.dumps(manifest))
    kinds = [each.kind for each in verify(tmp_path).problems]
    assert kinds == ["manifest", "checksum"]


def test_an_amended_result_keeps_it(tmp_path: Path) -> None:
    made(tmp_path, checksums="sha256")
    write_shards(tmp_path / "more", {"m.tar": shard_of(*"uvwxyz")})
    append(tmp_path, "more")
    found = listed(tmp_path)
    assert found == sha256sum(tmp_path / "out", *found)
    remove(tmp_path, "c", "v")
    again = listed(tmp_path)
    assert again != found
    assert again == sha256sum(tmp_path / "out", *again)
    assert verify(tmp_path).problems == ()


def test_a_manifest_without_it_is_as_it_was(tmp_path: Path) -> None:
    made(tmp_path)
    manifest = json.loads(newest(tmp_path))
    assert "checksums" not in manifest["spec"]
    assert all("sha256" not in shard for shard in manifest["outputs"])


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        made(tmp_path, checksums="md5")
