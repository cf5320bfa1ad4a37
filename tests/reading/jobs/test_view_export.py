"""The lists of a view for other programs: each range has the bytes of the member it names."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from aistore.sdk.batch.types import MossReq  # type: ignore[import-untyped]

import dsort
from dsort.errors import InputError, SpecError
from dsort.options import open_with_settings
from tests.golden.jobs import JOBS
from tests.support.commands import CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.internals import (
    MemberRange,
    ViewRecord,
    get_batch_requests,
    open_view,
    parse_manifest,
)

pytestmark = pytest.mark.usefixtures("workers_here")

VIEW: dict[str, Any] = {
    "input_bck": "in",
    "output_bck": "view",
    "output": "view",
    "output_format": "out-%03d",
    "output_shard_records": 10,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with inputs and a view of them."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    dsort.run(VIEW)
    return tmp_path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def content_of(part: dict[str, Any]) -> bytes:
    if "base64" in part:
        return base64.b64decode(part["base64"])
    path = Path(unquote(part["shard"].removeprefix("file://")))
    return path.read_bytes()[part["offset"] : part["offset"] + part["bytes"]]


def members_of(record: dict[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for part in record["ranges"]:
        found[part["member"]] = found.get(part["member"], b"") + content_of(part)
    return found


@pytest.mark.parametrize("where", ["view", "manifest"])
def test_json_lines_have_all_records_in_the_order_of_the_view(
    where: str, here: Path, cli: CommandLine
) -> None:
    (manifest,) = (here / "view").glob(".dsort/*/manifest.json")
    ended = cli("view", "export", "view" if where == "view" else manifest, "--jsonl")
    assert ended.code == 0
    records = lines(ended.out)
    assert [each["position"] for each in records] == list(range(len(records)))
    wanted = list(dsort.Dataset("view", cache=""))
    assert [each["key"] for each in records] == [each.key for each in wanted]
    for record, other in zip(records, wanted, strict=True):
        assert members_of(record) == {name: other.read(name) for name in other.sizes}


def test_shards_of_any_name_are_found_by_their_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    bucket = tmp_path / "a b#c%20?d"
    write_shards(bucket, {"s #1%20\u00fc?.tar": small_dataset(5)["in-0.tar"]})
    dsort.run({**VIEW, "input_bck": bucket.as_uri()})
    records = lines(cli("view", "export", "view", "--jsonl").out)
    wanted = list(dsort.Dataset("view", cache=""))
    assert [members_of(each) for each in records] == [
        {name: each.read(name) for name in each.sizes} for each in wanted
    ]
    assert cli("inspect", records[0]["ranges"][0]["shard"]).code == 0


@pytest.mark.parametrize("suffix", [".jsonl", ".msgpack", ".cbor", ".tfrecord", ".mds"])
def test_json_lines_of_any_container_lead_to_its_contents(
    suffix: str, tmp_path: Path, cli: CommandLine
) -> None:
    job, options = JOBS[f"{suffix} shuffle"], dsort.RunOptions(root=tmp_path, workers=1)
    job.prepare(tmp_path)
    dsort.run({**job.spec, "output": "view", "output_bck": "view"}, options=options)
    ended = cli("view", "export", "view", "--jsonl")
    assert ended.code == 0, ended.err
    wanted = list(dsort.Dataset("view", cache="", options=options))
    for record, other in zip(lines(ended.out), wanted, strict=True):
        assert record["key"] == other.key
        assert members_of(record) == {name: other.read(name) for name in other.sizes}


def test_compressed_members_have_no_ranges(tmp_path: Path, cli: CommandLine) -> None:
    job, options = JOBS[".zip shuffle"], dsort.RunOptions(root=tmp_path, workers=1)
    job.prepare(tmp_path)
    dsort.run({**job.spec, "output": "view", "output_bck": "view"}, options=options)
    assert cli("view", "export", "view", "--jsonl").code == InputError.exit_code


def test_requests_of_get_batch_are_read_by_the_sdk(here: Path) -> None:
    (path,) = (here / "view").glob(".dsort/*/manifest.json")
    options = dsort.RunOptions(root=here)
    files = open_with_settings("view", root=here, settings=options.settings)
    _, view = open_view(parse_manifest(path.read_bytes()), files, options)
    records = [
        ViewRecord(number, f"{number}", (MemberRange(b"%d.txt" % number, number % 3, 512, 7),))
        for number in range(5)
    ]
    inputs = sorted(each.name for each in (here / "in").glob("*.tar"))
    view.inputs = SimpleNamespace(uri="ais://speech/train")
    texts = [json.dumps(each) for each in get_batch_requests(view, records, 2)]
    requests = [MossReq.model_validate_json(text) for text in texts]
    assert [len(each.moss_in) for each in requests] == [2, 2, 1]
    parts = [part for each in requests for part in each.moss_in]
    for number, part in enumerate(parts):
        assert (part.bck, part.provider) == ("speech", "ais")
        assert part.obj_name == f"train/{inputs[number % 3]}"
        assert (part.start, part.length) == (512, 7)
        assert base64.b64decode(part.opaque or "") == b"%d.txt" % number
    assert all(each.output_format == ".tar" for each in requests)


def test_members_without_bytes_are_in_no_request(here: Path) -> None:
    (path,) = (here / "view").glob(".dsort/*/manifest.json")
    options = dsort.RunOptions(root=here)
    files = open_with_settings("view", root=here, settings=options.settings)
    _, view = open_view(parse_manifest(path.read_bytes()), files, options)
    record = ViewRecord(0, "a", (MemberRange(b"a.txt", -1, 0, 0),))
    assert not list(get_batch_requests(view, [record], 2))


def test_inputs_outside_aistore_have_no_requests(here: Path, cli: CommandLine) -> None:
    ended = cli("view", "export", "view", "--getbatch")
    assert ended.code == InputError.exit_code
    assert "--jsonl" in ended.err
    assert not ended.out


def test_a_view_with_fewer_records_than_none_is_refused(here: Path, cli: CommandLine) -> None:
    (path,) = (here / "view").glob(".dsort/*/manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["outputs"][0]["records"] = -3
    path.write_text(json.dumps(manifest))
    ended = cli("view", "export", "view", "--jsonl")
    assert (ended.code, ended.out) == (InputError.exit_code, "")


def test_a_view_of_no_record_has_no_line(here: Path, cli: CommandLine) -> None:
    steps = {"steps": [{"filter": "key == 'none'"}]}
    dsort.run({**VIEW, "output_bck": "empty", "transform": steps})
    ended = cli("view", "export", "empty", "--jsonl")
    assert (ended.code, ended.out) == (0, "")


@pytest.mark.parametrize("size", ["0", "-1", "9" * 30, "x"])
def test_a_batch_is_of_some_records(here: Path, cli: CommandLine, size: str) -> None:
    ended = cli("view", "export", "view", "--getbatch", "--batch", size)
    assert ended.code == SpecError.exit_code


@pytest.mark.parametrize("flags", [[], ["--jsonl", "--getbatch"], ["--jsonl", "--batch", "3"]])
def test_one_kind_of_list_is_asked_for(flags: list[str], here: Path, cli: CommandLine) -> None:
    assert cli("view", "export", "view", *flags).code == SpecError.exit_code


def test_a_result_with_shards_is_no_view(here: Path, cli: CommandLine) -> None:
    dsort.run({**VIEW, "output": "shards", "output_bck": "out"})
    assert cli("view", "export", "out", "--jsonl").code == InputError.exit_code
