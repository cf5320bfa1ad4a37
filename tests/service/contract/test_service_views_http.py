"""The records of a view over HTTP: those of ``dsort view export``, a page at a time. A view that a
stranger wrote shows nothing from elsewhere, and takes no more than any shard."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from msgspec.structs import replace
from sqlalchemy import update

import dsort
from dsort.service.database.tables import jobs
from dsort.service.jobs.submit import Asked
from dsort.service.objects import view_looks
from dsort.service.security.tokens import VIEWER
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, small_dataset, write_shards
from tests.support.internals import manifest_name
from tests.support.seaweedfs import S3Server
from tests.support.service_here import ServiceHere, service_here

pytestmark = pytest.mark.usefixtures("workers_here")

LONG_BYTES = 80 << 20
VIEW: dict[str, Any] = {
    "input_bck": "in",
    "output_bck": "view",
    "output": "view",
    "output_format": "out-%03d",
    "output_shard_records": 10,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


def written(here: ServiceHere, spec: Mapping[str, Any], state: str = "finished") -> str:
    """A job of the service that wrote what ``spec`` says; its id."""
    root = here.service.config.run.root
    report = dsort.run(dict(spec), options=dsort.RunOptions(root=root, workers=1))
    submitter = here.service.submitter
    new = submitter.prepare(submitter.check(spec), "ann", Asked())
    here.service.store.submit(replace(new, job_id=report.job_id))
    with here.service.database.writing() as connection:
        changed = update(jobs).where(jobs.c.job_id == report.job_id)
        connection.execute(changed.values(state=state))
    return report.job_id


@pytest.fixture
def view(here: ServiceHere) -> str:
    """A view of 40 records in four shards."""
    write_shards(here.service.config.run.root / "in", small_dataset(5))
    return written(here, VIEW)


def ask(here: ServiceHere, job_id: str, **query: Any) -> Any:
    answer: Any = here.client.get(f"/v1/results/{job_id}/records", params=query)
    return answer


def pages(here: ServiceHere, job_id: str, limit: int) -> Iterator[dict[str, Any]]:
    first: int | None = 0
    while first is not None:
        answer = ask(here, job_id, limit=limit, **{"from": first})
        assert answer.status_code == 200, answer.text
        yield answer.json()
        first = answer.json()["next_position"]


def records(here: ServiceHere, job_id: str, limit: int) -> list[dict[str, Any]]:
    return [each for page in pages(here, job_id, limit) for each in page["records"]]


def exported(here: ServiceHere, cli: CommandLine) -> list[dict[str, Any]]:
    """The records as the command line writes them, and as a page has them."""
    ended = cli("view", "export", "view", "--jsonl", "--root", here.service.config.run.root)
    assert ended.code == 0, ended.err
    found = [json.loads(line) for line in ended.out.splitlines()]
    for each in found:
        each["ranges_total"] = len(each["ranges"])
        for part in each["ranges"]:
            if "base64" in part:
                part["bytes"] = len(part["base64"]) * 3 // 4 - part["base64"].count("=")
    return found


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_pages_have_the_records_of_the_view_in_its_order(
    here: ServiceHere, view: str, cli: CommandLine, limit: int
) -> None:
    wanted = exported(here, cli)
    found = [*pages(here, view, limit)]
    assert [each for page in found for each in page["records"]] == wanted
    assert {page["total"] for page in found} == {len(wanted)}
    assert all(len(page["records"]) == limit for page in found[:-1])


def test_records_of_several_inputs_have_several_ranges(here: ServiceHere, cli: CommandLine) -> None:
    names = [f"{number:03}" for number in range(12)]
    root = here.service.config.run.root
    for bucket, extension in (("one", "jpg"), ("two", "cls")):
        members = (Member(f"{name}.{extension}", name.encode()) for name in names)
        write_shards(root / bucket, {"s-0.tar": Shard(tuple(members))})
    inputs = [
        {"name": bucket, "input_bck": bucket, "input_format": {"template": "s-0"}}
        for bucket in ("one", "two")
    ]
    spec = {name: value for name, value in VIEW.items() if name != "input_bck"}
    view = written(here, {**spec, "inputs": inputs, "join": {"by": "key"}})
    found = records(here, view, 3)
    assert found == exported(here, cli)
    assert {part["shard"].rpartition("/")[0] for each in found for part in each["ranges"]} == {
        (root / bucket).as_uri() for bucket in ("one", "two")
    }


def test_a_view_in_an_object_store_is_read_there(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    bucket = f"s3://{s3.new_bucket_name()}"
    with service_here(tmp_path, allow=("s3://*",)) as here:
        root = here.service.config.run.root
        write_shards(root / "in", small_dataset(5))
        plain = {"output": "shards", "input_bck": "in", "output_bck": bucket}
        dsort.run({**VIEW, **plain}, options=dsort.RunOptions(root=root, workers=1))
        view = written(here, {**VIEW, "input_bck": bucket, "output_bck": f"{bucket}/view"})
        found = records(here, view, 500)
        assert len(found) == 36
        assert all(part["shard"].startswith(bucket) for part in found[0]["ranges"])


def test_a_page_behind_the_end_is_empty(here: ServiceHere, view: str) -> None:
    answer = ask(here, view, **{"from": 2**53})
    assert (answer.json()["records"], answer.json()["next_position"]) == ([], None)


@pytest.mark.parametrize(
    "query", [{"from": -1}, {"from": 2**60}, {"from": "x"}, {"limit": 0}, {"limit": 501}]
)
def test_numbers_out_of_range_are_refused(
    here: ServiceHere, view: str, query: dict[str, Any]
) -> None:
    assert ask(here, view, **query).status_code == 400


def test_a_result_with_shards_is_answered_with_where_its_records_are(here: ServiceHere) -> None:
    write_shards(here.service.config.run.root / "in", small_dataset(5))
    answer = ask(here, written(here, {**VIEW, "output": "shards"}))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:dsort:problem:conflict")
    listed = problem["hint"].split()[1]
    shard = here.client.get(listed).json()["shards"][0]["name"]
    assert here.client.get(f"{listed.replace('/shards/', '/records/')}/{shard}").status_code == 200


@pytest.mark.parametrize("state", ["queued", "running", "failed", "stopped"])
def test_a_job_that_did_not_finish_has_no_records(here: ServiceHere, state: str) -> None:
    write_shards(here.service.config.run.root / "in", small_dataset(5))
    assert ask(here, written(here, VIEW, state)).status_code == 404


def test_a_view_that_was_removed_is_not_found(here: ServiceHere, view: str) -> None:
    stored(here, view).unlink()
    answer = ask(here, view)
    assert answer.status_code == 404
    assert "retain" in answer.json()["hint"]
    assert ask(here, view[:-6] + "abcdef").status_code == 404


def test_requests_are_in_the_audit_trail(here: ServiceHere, view: str) -> None:
    ask(here, view)
    noted = here.service.audit.list(limit=9)[-1]
    assert (noted.action, noted.target) == ("data.list", (bucket(here, "view")).as_uri())


def test_a_token_for_other_buckets_sees_no_record(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        root = here.service.config.run.root
        write_shards(root / "in", small_dataset(5))
        view = written(here, VIEW)
        for reads, writes, status in (
            ("in", "view", 200),
            ("in", "in", 404),
            ("view", "view", 404),
        ):
            name = f"{reads}-{writes}"
            places = ([str(root / each)] for each in (reads, writes))
            token = here.service.tokens.add(name, VIEWER, *places)
            here.client.headers["Authorization"] = f"Bearer {token}"
            assert ask(here, view).status_code == status, name


@pytest.mark.parametrize("place", ["input_bck", "output_bck"])
def test_a_store_that_the_service_may_no_longer_use_is_not_read(
    here: ServiceHere, view: str, place: str
) -> None:
    row = here.service.store.get(view)
    assert row is not None
    spec = {**row.spec, place: "s3://once-allowed"}
    with here.service.database.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == view).values(spec=spec))
    answer = ask(here, view)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:dsort:problem:forbidden")
    assert "s3://once-allowed" in answer.json()["detail"]


# --- views of strangers --------------------------------------------------------------------------


def bucket(here: ServiceHere, name: str) -> Path:
    root: Path = here.service.config.run.root
    return root / name


def stored(here: ServiceHere, view: str) -> Path:
    return bucket(here, "view") / str(manifest_name(view))


def edit(here: ServiceHere, view: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest, as everyone can who may write to the bucket."""
    manifest = json.loads(stored(here, view).read_bytes())
    change(manifest)
    stored(here, view).write_text(json.dumps(manifest))


def put(here: ServiceHere, view: str, data: bytes, **fields: Any) -> None:
    """Replace the first file of the view, and let the manifest say so."""
    (bucket(here, "view") / "out-000.tar.view").write_bytes(data)
    own = {"file_bytes": len(data), "xxh3": xxhash.xxh3_64_hexdigest(data), **fields}
    edit(here, view, lambda manifest: manifest["outputs"][0].update(own))


def table_of(here: ServiceHere) -> pa.Table:
    return pq.read_table(bucket(here, "view") / "out-000.tar.view")


def file_of(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def with_column(table: pa.Table, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    at, field = table.schema.get_field_index(name), table.schema.field(name)
    return table.set_column(at, field, pa.array(change(table[name].to_pylist()), field.type))


def refused(here: ServiceHere, view: str, kind: str, *words: str, status: int = 422) -> None:
    answer = ask(here, view)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"urn:dsort:problem:{kind}"), problem
    assert [word for word in words if word not in problem["detail"]] == [], problem


def test_a_damaged_file_is_named(here: ServiceHere, view: str) -> None:
    path = bucket(here, "view") / "out-000.tar.view"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    refused(here, view, "changed_input", path.name)
    path.write_bytes(data[:-9])
    refused(here, view, "changed_input", path.name)
    put(here, view, data[:-9])  # and by someone who knows what it has to be
    refused(here, view, "corrupt_shard", path.name)
    path.unlink()
    refused(here, view, "missing_shard", path.name)


def test_a_large_file_is_read_by_ranges(
    here: ServiceHere, view: str, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(view_looks, "WHOLE_BYTES", 0)
    files, inputs = (LocalBucket(bucket(here, name)) for name in ("view", "in"))
    order = {"job_id": view, "first": 8, "limit": 15}
    page = json.loads(b"".join(view_looks.view_page(files, inputs, order)))
    assert page["records"] == exported(here, cli)[8:23]


def test_documents_and_contents_without_end_are_not_read(here: ServiceHere, view: str) -> None:
    row = {"record": 0, "key": "0", "bytes": LONG_BYTES, "literal": bytes(LONG_BYTES)}
    schema = table_of(here).schema
    columns = [pa.array([row.get(name)], schema.field(name).type) for name in schema.names]
    put(here, view, file_of(pa.Table.from_arrays(columns, schema=schema), compression="zstd"))
    refused(here, view, "corrupt_shard", "out-000.tar.view")
    with stored(here, view).open("r+b") as file:
        file.truncate(1 << 40)
    refused(here, view, "storage", "manifest.json", status=502)


@pytest.mark.parametrize(
    ("column", "value"), [("offset", 2**40), ("bytes", 2**40), ("shard", 5), ("shard", 2**31 - 1)]
)
def test_ranges_outside_their_inputs_are_named(
    here: ServiceHere, view: str, column: str, value: int
) -> None:
    changed = (
        with_column(
            table_of(here), column, lambda each: [value if x and x > 600 else x for x in each]
        )
        if column != "shard"
        else with_column(
            table_of(here), column, lambda each: [None if x is None else value for x in each]
        )
    )
    put(here, view, file_of(changed))
    refused(here, view, "corrupt_shard", "out-000.tar.view", "record ")


@pytest.mark.parametrize(
    "name", ["../secret.tar", "/etc/passwd", "a/../../secret.tar", ".dsort/x", "a//b", "", "x\0y"]
)
def test_names_that_lead_out_of_the_inputs_are_refused(
    here: ServiceHere, view: str, name: str
) -> None:
    (here.service.config.run.root.parent / "secret.tar").write_bytes(b"top secret" * 1000)
    (here.service.config.run.root / "secret.tar").write_bytes(b"top secret" * 1000)
    edit(here, view, lambda manifest: [each.update(name=name) for each in manifest["inputs"]])
    refused(here, view, "unsafe_name")


def test_buckets_of_the_manifest_are_not_opened(here: ServiceHere, view: str) -> None:
    inside = bucket(here, "in")
    inside.rename(bucket(here, "other"))
    edit(here, view, lambda manifest: manifest["spec"].update(input_bck="other"))
    refused(here, view, "missing_shard")


def test_links_in_the_inputs_show_nothing_from_elsewhere(here: ServiceHere, view: str) -> None:
    for path in sorted(bucket(here, "in").glob("*.tar")):
        moved = here.service.config.run.root.parent / path.name
        path.rename(moved)
        path.symlink_to(moved)
    answer = ask(here, view)
    assert answer.status_code == 502
    assert "leads out" in answer.json()["detail"]


def test_changed_and_missing_inputs_are_named(here: ServiceHere, view: str) -> None:
    for path in bucket(here, "in").glob("*.tar"):
        path.write_bytes(b"x" + path.read_bytes())
    refused(here, view, "changed_input", ".tar")
    for path in bucket(here, "in").glob("*.tar"):
        path.unlink()
    refused(here, view, "missing_shard", ".tar")


@pytest.mark.parametrize(
    ("size", "kind"), [(1 << 63, "changed_input"), (-(1 << 65), "corrupt_shard")]
)
def test_sizes_of_inputs_that_no_file_has_are_refused(
    here: ServiceHere, size: int, kind: str
) -> None:
    root = here.service.config.run.root
    write_shards(root / "tars", small_dataset(5))
    zips = {"input_bck": "tars", "output_bck": "in", "output_extension": ".zip"}
    dsort.run({**VIEW, **zips, "output": "shards"}, options=dsort.RunOptions(root=root, workers=1))
    view = written(here, {**VIEW, "input_extension": ".zip"})
    edit(here, view, lambda manifest: [each.update(bytes=size) for each in manifest["inputs"]])
    refused(here, view, kind, ".zip")


def test_ranges_that_are_no_record_are_named_by_input_and_byte(
    here: ServiceHere, view: str
) -> None:
    changed = with_column(table_of(here), "offset", lambda each: [x and x + 3 for x in each])
    put(here, view, file_of(changed))
    refused(here, view, "corrupt_shard", (bucket(here, "in")).as_uri(), "at byte")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(job_id="20260101-000000-abcdef"),
        lambda manifest: manifest["spec"].update(output="shards"),
        lambda manifest: manifest["outputs"][0].update(records=-5),
        lambda manifest: manifest["outputs"][0].update(name="out-000.tar"),
        lambda manifest: manifest["outputs"][0].update(name="../out-000.tar.view"),
        lambda manifest: manifest["outputs"][0].update(decoded_bytes=-1),
        lambda manifest: manifest.update(outputs=7),
        lambda manifest: manifest.update(inputs=[]),
        lambda manifest: manifest.pop("manifest"),
    ],
)
def test_a_manifest_that_is_no_view_s_is_refused(
    here: ServiceHere, view: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(here, view, change)
    answer = ask(here, view)
    assert answer.status_code == 422, answer.text


def test_millions_of_rows_in_few_bytes_are_refused(here: ServiceHere, view: str) -> None:
    first = table_of(here).slice(1, 1)
    put(here, view, file_of(first.take(np.zeros(3 << 20, np.int64)), max_rows_per_page=3 << 20))
    refused(here, view, "corrupt_shard", "out-000.tar.view")


def test_a_record_of_many_ranges_does_not_make_a_long_answer(here: ServiceHere, view: str) -> None:
    literal = bytes(np.random.default_rng(1).integers(0, 256, 300_000, np.uint8))
    tar = Member("0.jpg", literal, form="ustar").raw + Member("0.cls", b"1").raw
    row = {"record": 0, "key": "0", "shard": None, "offset": None}
    whole = pa.Table.from_pylist(
        [{**row, "bytes": len(tar), "literal": tar}], schema=table_of(here).schema
    )
    put(here, view, file_of(whole), records=1, decoded_bytes=len(tar))
    answer = ask(here, view, limit=1)
    assert len(answer.content) < 2000
    (found,) = answer.json()["records"]
    assert [each["bytes"] for each in found["ranges"]] == [300_000, 1]
    assert ["base64" in each for each in found["ranges"]] == [False, True]


def test_a_page_ends_early_where_records_are_long(here: ServiceHere) -> None:
    names = [f"{number:02}" for number in range(6)]
    members = (
        Member(f"{name}.{'x' * 900}{at:04}", b"1", form="pax")
        for name in names
        for at in range(1100)
    )
    write_shards(bucket(here, "in"), {"s-0.tar": Shard(tuple(members))})
    view = written(here, {**VIEW, "output_shard_records": 20})
    found = [*pages(here, view, 500)]
    assert len(found) > 1
    assert sorted(each["key"] for page in found for each in page["records"]) == names
    every = [each for page in found for each in page["records"]]
    assert {each["ranges_total"] for each in every} == {1100}
    assert all(900 < len(each["ranges"]) < 1100 for each in every)  # the first of them
