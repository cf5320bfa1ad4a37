"""A whole job from one S3 bucket to another behind a faulty proxy: it ends with the right bytes, or
with a storage error and nothing of a result; never as a bug."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.faulty_proxy import KINDS, faulty_proxy
from tests.support.seaweedfs import S3Server
from tests.support.surviving import CASES, prepare, start_arguments, undisturbed

CASE = "renamed"
FAULTS_MAX = 10


@pytest.fixture(scope="module")
def source(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with the inputs in ``in/``."""
    root, name = tmp_path_factory.mktemp("source"), s3_server.new_bucket_name()
    prepare(root, CASES[CASE])
    client = s3_server.client()
    client.create_bucket(Bucket=name)
    for path in sorted((root / "in").iterdir()):
        client.upload_file(str(path), name, f"in/{path.name}")
    return name


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_ends_right_or_with_a_storage_error(
    kind: str, s3: S3Server, source: str, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    seed = f"job {kind}"
    print(f"seed {seed!r}")
    target = tmp_path.name
    buckets = {"input_bck": f"s3://{source}/in", "output_bck": f"s3://{source}/{target}"}
    case = replace(CASES[CASE], fields={**CASES[CASE].fields, **buckets})
    with faulty_proxy(s3.endpoint_url) as proxy:
        proxy.delay_s = 0.2
        proxy.begin(kind, seed=seed, rate=0.1, times_max=FAULTS_MAX)
        env = {**s3.environment(), "AWS_ENDPOINT_URL": proxy.endpoint_url}
        scratch = ["--scratch", str(tmp_path / "scratch")]
        ended = begun.run(tmp_path, *start_arguments(case, *scratch), env=env, flush_s=0.2)
        assert proxy.heal()
    print(ended.code, ended.err)
    assert ended.code in (0, 4)
    assert "Traceback" not in ended.err
    found = objects_of(s3, source, target)
    manifests = [name for name in found if name.endswith("manifest.json")]
    assert len(manifests) == (ended.code == 0)
    if manifests:
        expected = undisturbed(CASE, base)
        assert json.loads(found[manifests[0]])["outputs"] == expected.manifest["outputs"]
        shards = {name: data for name, data in found.items() if name.endswith(".tar")}
        assert shards == expected.shards
        assert s3.unfinished_uploads(source) == []


def objects_of(server: S3Server, bucket: str, prefix: str) -> dict[str, bytes]:
    client, found = server.client(), {}
    for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", []):
        got = client.get_object(Bucket=bucket, Key=each["Key"])
        found[each["Key"].removeprefix(f"{prefix}/")] = got["Body"].read()
    return found
