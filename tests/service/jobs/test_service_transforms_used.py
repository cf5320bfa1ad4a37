"""A service's transforms as their users meet them: registered by an admin, used by a job, and by
webdataset, which reads transformed shards straight from the service."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.service_process import running_service

SHARDS = {
    f"s-{number}.tar": Shard(
        tuple(Member(f"{number}{i}.{e}", b"%d" % i) for i in range(3) for e in ("cls", "txt"))
    )
    for number in range(2)
}
CODE = """\
import os

def louder(sample):
    secrets = [name for name in os.environ if name.startswith("AWS_") or "TOKEN" in name]
    return {**sample, "txt": sample["txt"] + b"!" + ",".join(secrets).encode()}
"""


@pytest.mark.exhaustive
def test_webdataset_and_jobs_get_what_an_admin_has_registered(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import webdataset

    write_shards(tmp_path / "data" / "images", SHARDS)
    (tmp_path / "code.py").write_text(CODE)
    steps = tmp_path / "steps.yaml"
    steps.write_text(f"steps:\n- map: {{python: '{tmp_path}/code.py:louder'}}\n")
    state = ("--state-dir", str(tmp_path / "state"))
    tokens = {}
    for name, role in (("ada", "admin"), ("ann", "submitter")):
        tokens[name] = cli("token", "add", name, "--role", role, *state).out.strip()
    secret = {"DSORT_TOKEN": "not for code", "AWS_SECRET_ACCESS_KEY": "not for code"}
    arguments = ("--aistore", "--root", str(tmp_path / "data"), *state)
    with running_service(tmp_path, *arguments, env=secret) as service:
        monkeypatch.setenv("DSORT_SERVER", service.url)
        monkeypatch.setenv("DSORT_TOKEN", tokens["ann"])
        refused = cli("transforms", "add", "louder", "-f", steps)
        assert "this is for an admin" in refused.err
        monkeypatch.setenv("DSORT_TOKEN", tokens["ada"])
        assert cli("transforms", "add", "louder", "-f", steps).out == "louder@1\n"
        monkeypatch.setenv("DSORT_TOKEN", tokens["ann"])
        listed = cli("transforms", "ls").out.splitlines()
        assert listed[1].split()[::2] == ["louder@1", "ada"]
        urls = cli("urls", "images/s-{0..1}.tar", "--use", "louder", "--pipe").out.split("\n")
        read = webdataset.WebDataset(urls[:-1], shardshuffle=False, empty_check=False)
        assert {each["__key__"]: each["txt"] for each in read} == {
            f"{number}{i}": b"%d!" % i for number in range(2) for i in range(3)
        }
        done = cli("transform", "images", "loud", "--use", "louder", "--wait")
        assert done.code == 0, done.err
        refuse_all_but_admins(cli, tmp_path, monkeypatch, tokens)
        plain = cli("urls", "images/s-{0..1}.tar", "--braces").out.strip()
        assert plain == f"{service.url}/v1/objects/images/s-{{0..1}}.tar"
    for name, data in files_of(tmp_path / "data" / "loud").items():
        texts = [each.payload for each in read_shard(data) if each.name.endswith("txt")]
        assert texts == [b"0!", b"1!", b"2!"], name
    (manifest,) = (tmp_path / "data" / "loud").glob(".dsort/*/manifest.json")
    assert '"allowed_by": "ada"' in manifest.read_text()


def refuse_all_but_admins(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: dict[str, str]
) -> None:
    """An admin's job runs a program for each shard, another removes records from its result; those
    of nobody else do. The audit log says so."""
    copies = tmp_path / "copies"
    copies.mkdir()
    spec = tmp_path / "spec.json"
    fields = {"input_bck": "images", "output_bck": "plain", "output_format": "p-%d"}
    order = {"algorithm": {"kind": "none"}, "output_shard_records": 3}
    program = {"on_shard": {"exec": ["cp", "{path}", str(copies)], "allowed_by": "eve"}}
    spec.write_text(json.dumps({**fields, **order, **program}))
    refused = cli("start", "-f", spec)
    assert (refused.code, "unless an admin submits it" in refused.err) == (6, True)
    monkeypatch.setenv("DSORT_TOKEN", tokens["ada"])
    done = cli("start", "-f", spec, "--wait")
    assert done.code == 0, done.err
    shards = files_of(tmp_path / "data" / "plain")
    assert files_of(copies) == shards
    (manifest,) = (tmp_path / "data" / "plain").glob(".dsort/*/manifest.json")
    assert json.loads(manifest.read_text())["spec"]["on_shard"]["allowed_by"] == "ada"
    removal = {
        "input_bck": "plain",
        "output_bck": "plain",
        "algorithm": {"kind": "none"},
        "keep_shards": True,
        "overwrite": True,
        "duplicate_keys": "ignore",
        "stray_members": "keep",
        "transform": {"steps": [{"drop_keys": {"keys": ["00", "12"]}}]},
        "amend": {"job": manifest.parent.name, "by": "remove"},
    }
    spec.write_text(json.dumps(removal))
    monkeypatch.setenv("DSORT_TOKEN", tokens["ann"])
    assert "unless an admin submits it" in cli("start", "-f", spec).err
    monkeypatch.setenv("DSORT_TOKEN", tokens["ada"])
    done = cli("start", "-f", spec, "--wait")
    assert done.code == 0, done.err
    assert [len(read_shard(data)) for data in files_of(tmp_path / "data" / "plain").values()] == [
        4,
        4,
    ]
    headers = {"Authorization": f"Bearer {tokens['ada']}"}
    entries = httpx.get(f"{os.environ['DSORT_SERVER']}/v1/audit", headers=headers).json()
    details = [each["details"] for each in entries["entries"] if each["action"] == "job.submit"]
    assert details[0]["amends"] == f"{manifest.parent.name} (remove)"
    assert details[1]["on_shard"].startswith("cp {path} ")
    monkeypatch.setenv("DSORT_TOKEN", tokens["ann"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nothing",), "names no shards in a bucket"),
        (("images/x.tar", "--braces"), "has no range in braces"),
        (("images/x-{5..1}.tar",), "TEMPLATE"),
    ],
)
def test_templates_that_name_nothing_are_refused(
    args: tuple[str, ...], words: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSORT_SERVER", "http://127.0.0.1:9")
    ended = cli("urls", *args)
    assert ended.code == 2
    assert words in ended.err
