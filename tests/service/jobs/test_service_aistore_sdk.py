"""AIStore's official Python SDK, pointed at a real ``dsort serve``, starts, watches, inspects and
aborts jobs, and gets the shards that ``dsort.run`` makes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import xxhash
import yaml
from aistore.sdk import Client
from aistore.sdk.archive_config import ArchiveConfig
from aistore.sdk.dsort import DsortAlgorithm, DsortFramework, DsortShardsGroup, ExternalKeyMap
from aistore.sdk.errors import AISError, ErrBckAlreadyExists, ErrBckNotFound, ErrObjNotFound
from aistore.sdk.multiobj import ObjectNames, ObjectRange
from aistore.sdk.types import BucketModel

from dsort.service.database.engine import open_database
from dsort.service.security.tokens import TokenStore
from tests.support.datasets import Member, Shard, files_of, read_shard, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.fault_points import PointFault, arm, disarm, points_environment
from tests.support.service_process import ServiceProcess, await_that, running_service

WAIT_SECONDS_MAX = 180
FIRST = BucketModel(name="in", provider="ais")
SHUFFLE = DsortAlgorithm(kind="shuffle", seed="5")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the bucket ``in``."""
    root = tmp_path_factory.mktemp("service")
    write_shards(root / "in", small_dataset("aistore", shards=3, records=12))
    return root


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[ServiceProcess]:
    """A service that asks for no tokens."""
    arguments = ("--root", str(place), "--state-dir", str(place / "state"), "--workers", "1")
    with running_service(
        place,
        *arguments,
        "--aistore",
        "--no-auth",
        "--max-object-size",
        "1GiB",
        env=points_environment(place / "faults"),
    ) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Client:
    """The SDK, as its documentation sets it up."""
    return Client(service.url)


def framework(output: str, format: Any = None, **named: Any) -> DsortFramework:
    """A job from the bucket ``in`` to another."""
    return DsortFramework(
        input_shards=DsortShardsGroup(
            bck=FIRST, role="input", format=ObjectRange("in-", 0, 2), extension="tar"
        ),
        output_shards=DsortShardsGroup(
            bck=BucketModel(name=output, provider="ais"),
            role="output",
            format=format or ObjectRange("out-", 0, 99, pad_width=2),
            extension="tar",
        ),
        output_shard_size="10KB",
        **named,
    )


def made_by_dsort(root: Path, spec: dict[str, Any], into: str = "expected") -> dict[str, bytes]:
    """The shards that the same spec makes without a service."""
    run_local(root, {**spec, "output_bck": into})
    return files_of(root / into)


def finished(client: Client, job_id: str) -> Any:
    """What ``wait`` says in the end; asked once it has ended, for it looks once a second."""
    job = client.dsort(job_id)
    await_that(lambda: all(each.archived for each in job.get_job_info().values()))
    return job.wait(timeout=WAIT_SECONDS_MAX, verbose=False)


def test_a_job_of_the_framework_and_what_is_reported_of_it(client: Client, place: Path) -> None:
    described = framework("shuffled", algorithm=SHUFFLE, description="for epoch 1")
    job = client.dsort()
    job_id = job.start(described)
    result = job.wait(timeout=WAIT_SECONDS_MAX, verbose=False)
    assert (result.job_id, result.success, result.error) == (job_id, True, None)
    expected = made_by_dsort(place, described.to_spec(), "expected shuffled")
    assert files_of(place / "shuffled") == expected
    (info,) = client.dsort(job_id).get_job_info().values()
    assert (info.id, info.archived, info.aborted) == (job_id, True, False)
    assert (info.src_bck.name, info.dst_bck.name) == ("in", "shuffled")
    assert (info.objects, info.metrics.description) == ("3", "for epoch 1")
    members = [member for each in expected.values() for member in read_shard(each)]
    assert info.metrics.local_extraction.extracted_record_count == str(len(members))
    assert info.bytes == str(sum(len(member.payload) for member in members))
    assert info.metrics.shard_creation.created_count == str(len(expected))
    assert info.metrics.errors == []
    assert result.end_time is not None
    assert result.end_time.isoformat() in str(info.finish_time).replace("Z", "+00:00")


def test_every_missing_shard_has_a_warning_with_its_name(client: Client) -> None:
    described = framework("some missing", algorithm=SHUFFLE)
    described.input_shards.format = ObjectRange("in-", 0, 52)
    job_id = client.dsort().start(described)
    assert finished(client, job_id).success
    (info,) = client.dsort(job_id).get_job_info().values()
    assert info.metrics.warnings == [f'"in-{number}.tar" does not exist' for number in range(3, 53)]


def test_a_shard_with_a_member_that_leads_out_of_it_ends_the_job(
    client: Client, place: Path
) -> None:
    write_shards(place / "hostile", {"in-0.tar": Shard((Member("../a.jpg", b"a"),))})
    described = framework("from hostile", algorithm=SHUFFLE)
    described.input_shards.bck = BucketModel(name="hostile", provider="ais")
    described.input_shards.format = ObjectRange("in-", 0, 1)
    result = finished(client, client.dsort().start(described))
    assert result.success is False
    assert "in-0.tar" in result.error
    assert "../a.jpg" in result.error
    assert not [each for each in files_of(place / "from hostile") if each.endswith(".tar")]


def test_a_job_of_a_json_file(client: Client, place: Path) -> None:
    spec = framework("by file", algorithm=DsortAlgorithm(decreasing=True)).to_spec()
    path = place / "spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    began = datetime.now(UTC)
    job_id = client.dsort().start(path)
    assert finished(client, job_id).success
    waited = client.job(job_id).wait(timeout=WAIT_SECONDS_MAX, verbose=False)  # as any kind of job
    assert (waited.job_id, waited.success, waited.error) == (job_id, True, "")
    assert client.job(job_id).wait_single_node(timeout=WAIT_SECONDS_MAX, verbose=False).success
    took = client.job(job_id).get_total_time()
    assert took is not None
    assert 0 < took.total_seconds() < WAIT_SECONDS_MAX
    (snap,) = client.job(job_id).get_within_timeframe(began, datetime.now(UTC))
    assert (snap.kind, snap.is_idle, snap.destination_bck.name) == ("dsort", True, "by file")
    assert files_of(place / "by file") == made_by_dsort(place, spec, "expected by file")


def test_a_key_map_of_the_framework(client: Client, place: Path) -> None:
    """The SDK puts it into the input bucket, and names its URL in the spec."""
    key_map = ExternalKeyMap()
    key_map["low-%02d.tar"] = ObjectNames(["^000[01]"])
    key_map["high-%02d.tar"] = ObjectNames(["^0002", "^0003"])
    described = framework("mapped", key_map)
    job_id = client.dsort().start(described)
    assert finished(client, job_id).success
    spec = {**described.to_spec(), "ekm": key_map.as_dict()}
    assert files_of(place / "mapped") == made_by_dsort(place, spec, "expected mapped")
    assert "ekm-file.json" not in files_of(place / "in")


def test_a_dry_run_of_a_yaml_file_is_listed_and_removed(
    client: Client, service: ServiceProcess, place: Path
) -> None:
    """The SDK has no calls for the latter two, but AIStore's REST interface has."""
    spec = framework("nowhere", description="to be listed").to_spec() | {"dry_run": True}
    path = place / "dry.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    job_id = client.dsort().start(str(path))
    assert finished(client, job_id).success
    (info,) = client.dsort(job_id).get_job_info().values()
    creation = info.metrics.shard_creation
    assert (creation.created_count, int(creation.to_create) > 0) == ("0", True)
    assert not (place / "nowhere").exists()
    url = f"{service.url}/v1/sort"
    (found,) = httpx.get(url, params={"regex": "to be l.sted$"}, timeout=60).json()
    assert found["id"] == job_id
    active = httpx.get(url, params={"only_active": "true"}, timeout=60).json()
    assert job_id not in [each["id"] for each in active]
    assert httpx.delete(url, params={"uuid": job_id}, timeout=60).status_code == 200
    with pytest.raises(AISError, match=job_id):
        client.dsort(job_id).get_job_info()


def test_a_running_job_is_aborted_and_leaves_no_shards(
    client: Client, service: ServiceProcess, place: Path
) -> None:
    held = arm(place / "faults", PointFault("extract:start", action="stop"))
    job = client.dsort()
    job_id = job.start(framework("aborted", algorithm=SHUFFLE))
    await_that(lambda: service.suspended() or None, why="no worker began")
    (info,) = job.get_job_info().values()
    assert (info.aborted, info.archived) == (False, False)
    assert client.job(job_id).get_total_time() is None
    assert client.job(job_id).status().end_time == 0
    client.job(job_id).abort()  # as any kind of job
    result = job.wait(timeout=WAIT_SECONDS_MAX, verbose=False)
    assert (result.success, result.end_time) == (False, None)
    assert result.error == f"[dsort] {job_id} aborted: aborted by an AIStore client"
    assert [name for name in files_of(place / "aborted") if not name.startswith(".dsort/")] == []
    waited = client.job(job_id).wait(timeout=WAIT_SECONDS_MAX, verbose=False)
    assert (waited.success, waited.error) == (False, result.error)
    job.abort()  # of what is over: no error
    disarm(held)


def test_errors_are_words_and_come_at_once(client: Client, place: Path) -> None:
    """What the SDK takes for passing is tried again, for minutes."""
    began = time.monotonic()
    path = place / "wrong.json"
    path.write_text(json.dumps(framework("x").to_spec() | {"output_format": "out"}))
    with pytest.raises(AISError, match="template 'out'") as wrong:
        client.dsort().start(path)
    assert wrong.value.status_code == 400
    with pytest.raises(AISError, match="srt-none") as unknown:
        client.dsort("srt-none").get_job_info()
    assert unknown.value.status_code == 404
    with pytest.raises(AISError):
        client.dsort().get_job_info()
    with pytest.raises(AISError) as declined:
        client.cluster().list_etls()
    assert declined.value.status_code == 501
    assert time.monotonic() - began < 60


def test_buckets_and_objects_from_their_making_to_their_removal(
    client: Client, place: Path, tmp_path: Path
) -> None:
    bucket = client.bucket("fresh")
    with pytest.raises(ErrBckNotFound):
        bucket.list_objects()
    bucket.create()
    with pytest.raises(ErrBckAlreadyExists):
        bucket.create()
    bucket.create(exist_ok=True)
    assert "fresh" in [each.name for each in client.cluster().list_buckets()]
    assert "Ais-Bucket-Props" in bucket.head()
    large = bytes(range(256)) * 8192
    file = tmp_path / "large.bin"
    file.write_bytes(large)
    bucket.object("a/small #1.txt").get_writer().put_content(b"content")
    bucket.object("a/large.bin").get_writer().put_file(file)
    (tmp_path / "many").mkdir()
    for number in range(5):
        (tmp_path / "many" / f"{number}.txt").write_bytes(b"%d" % number)
    bucket.put_files(tmp_path / "many", prepend="many/", verbose=False)
    names = ["a/large.bin", "a/small #1.txt", *(f"many/{number}.txt" for number in range(5))]
    entries = bucket.list_all_objects(page_size=2)
    assert [each.name for each in entries] == names
    assert (entries[0].size, entries[0].is_cached(), entries[0].is_ok()) == (2 << 20, True, True)
    page = bucket.list_objects(prefix="many/", page_size=3)
    assert [each.name for each in page.entries] == names[2:5]
    assert [each.name for each in bucket.list_objects_iter(prefix="a/")] == names[:2]
    assert [each.name for each in bucket.list_all_objects(start_after="many/2.txt")] == names[5:]
    obj = bucket.object("a/large.bin")
    assert obj.get_reader().read_all() == large
    assert obj.get_reader(byte_range="bytes=10-19").read_all() == large[10:20]
    with obj.get_reader(num_workers=2, chunk_size=1 << 20).read_all() as in_parts:
        assert in_parts.buf == large
    assert b"".join(obj.get_reader(chunk_size=1000)) == large
    with obj.get_reader().as_file() as stream:
        assert stream.read() == large
    head = obj.head()
    assert (head.size, head.present, head.name) == (2 << 20, True, "a/large.bin")
    assert obj.props.size == obj.get_reader().attributes.size == 2 << 20
    assert httpx.get(obj.get_url(), timeout=60).content == large
    with pytest.raises(ErrObjNotFound):
        bucket.object("none").get_reader().read_all()
    bucket.object(names[0]).delete()
    with pytest.raises(ErrObjNotFound):
        bucket.object(names[0]).delete()
    for removed in ({"obj_names": [names[1], "none"]}, {"obj_template": "many/{1..3}.txt"}):
        job_id = bucket.objects(**removed).delete()
        assert client.job(job_id).wait(timeout=WAIT_SECONDS_MAX, verbose=False).success
    assert [each.name for each in bucket.list_all_objects()] == ["many/0.txt", "many/4.txt"]
    bucket.delete()  # with what is left in it
    bucket.delete(missing_ok=True)
    assert not (place / "fresh").exists()


def test_the_service_is_a_cluster_of_one_node(client: Client, service: ServiceProcess) -> None:
    found = client.cluster().get_info()
    assert [node.public_net.direct_url for node in found.tmap.values()] == [service.url]
    (listed,) = client.bucket("in").list_all_objects(prefix="in-1", props="name,checksum,version")
    assert listed.version == client.bucket("in").object("in-1.tar").props.obj_version
    direct = client.bucket("in").object("in-1.tar").get_reader(direct=True)
    assert xxhash.xxh64(direct.read_all()).hexdigest() == listed.checksum


def test_what_the_sdk_means_by_more_than_a_plain_write_is_declined(client: Client) -> None:
    bucket = client.bucket("in")
    before = [(each.name, each.size) for each in bucket.list_all_objects()]
    shard = bucket.object("in-0.tar")
    for write in (
        lambda: shard.get_writer().append_content(b"more"),
        lambda: shard.copy(bucket.object("in-1.tar")),
        lambda: shard.get_writer().set_custom_props({"a": "b"}),
        lambda: shard.multipart_upload().create(),
        lambda: shard.promote("/etc"),
        lambda: bucket.rename("other"),
        lambda: bucket.copy(client.bucket("other")),
        lambda: bucket.summary(),
    ):
        with pytest.raises(AISError) as declined:
            write()
        assert declined.value.status_code in (400, 501)
    assert [(each.name, each.size) for each in bucket.list_all_objects()] == before


def test_shards_are_put_sorted_listed_and_read_with_the_sdk_alone(
    client: Client, place: Path
) -> None:
    source, target = client.bucket("put here"), client.bucket("sorted there")
    source.create()
    for name, data in files_of(place / "in").items():
        source.object(name).get_writer().put_content(data)
    described = framework("sorted there", algorithm=SHUFFLE)
    spec = {**described.to_spec(), "input_bck": {"name": "put here", "provider": "ais"}}
    path = place / "all.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    assert finished(client, client.dsort().start(path)).success
    listed = {each.name: each for each in target.list_all_objects()}
    expected = made_by_dsort(place, spec, "expected of all")
    assert [*listed] == sorted(expected)
    first, data = next(iter(expected.items()))
    files = {each.name: each.payload for each in read_shard(data)}
    inside = target.list_archive(first)
    assert [each.name for each in inside] == [f"{first}/{name}" for name in files]
    name, content = next(iter(files.items()))
    one = target.object(first).get_reader(archive_config=ArchiveConfig(archpath=name))
    assert one.read_all() == content
    for name, data in expected.items():
        assert (listed[name].size, target.object(name).get_reader().read_all()) == (len(data), data)


@pytest.mark.exhaustive
def test_tokens_are_asked_for_and_heeded(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("aistore", shards=3, records=12))
    database_url = f"sqlite:///{tmp_path}/service.db"
    with open_database(database_url) as database:
        tokens = TokenStore(database)
        submitter, viewer = (
            tokens.add(role, role, ("*",), ("*",)) for role in ("submitter", "viewer")
        )
    arguments = ["--root", str(tmp_path), "--database", database_url, "--workers", "1"]
    arguments += ["--aistore", "--state-dir", str(tmp_path / "state")]
    with running_service(tmp_path, *arguments) as service:
        with pytest.raises(AISError) as nobody:
            Client(service.url).dsort().start(framework("out"))
        assert nobody.value.status_code == 401
        ann, eve = Client(service.url, token=submitter), Client(service.url, token=viewer)
        job_id = ann.dsort().start(framework("out"))
        with pytest.raises(AISError) as refused:
            eve.dsort(job_id).abort()
        assert refused.value.status_code == 403
        assert finished(eve, job_id).success
        log = service.log_text()
    assert submitter not in log
    assert viewer not in log
    assert len(files_of(tmp_path / "out")) > 1
