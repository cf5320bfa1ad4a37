"""Named transforms of a service: admins write them, jobs and webdataset use them, versions never
change; and whose code a job may run is decided when it is submitted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsort.service.security.tokens import ADMIN, SUBMITTER, VIEWER
from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.service_here import SPEC, ServiceHere, service_here
from tests.support.service_process import running_service

HALF = {"steps": [{"sample": {"fraction": 0.5}}], "on_error": "skip"}
SLIM = {"steps": [{"fields": {"keep": ["cls"]}}]}
CODE = {"steps": [{"map": {"python": "pkg.aug:train"}}]}


class Callers:
    """A service with tokens of each role."""

    def __init__(self, here: ServiceHere) -> None:
        self.here = here
        for bucket in ("images", "shuffled"):
            (here.service.config.run.root / bucket).mkdir()
        roles = {"ada": ADMIN, "ann": SUBMITTER, "vera": VIEWER}
        self.tokens = {name: here.service.tokens.add(name, role) for name, role in roles.items()}

    def ask(self, who: str, method: str, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = self.here.client.request(method, path, headers=headers, **more)
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status_code, answer.json() if is_json else answer.text

    def put(self, name: str, fields: Any, who: str = "ada") -> tuple[int, Any]:
        return self.ask(who, "PUT", f"/v1/transforms/{name}", json=fields)

    def submit(self, who: str, transform: Any) -> tuple[int, Any]:
        return self.ask(who, "POST", "/v1/jobs", json={**SPEC, "transform": transform})


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[Callers]:
    with service_here(tmp_path, no_auth=False) as here:
        yield Callers(here)


def test_versions_are_added_listed_and_removed_in_every_database(
    tmp_path: Path, database_url: str
) -> None:
    with service_here(tmp_path, database_url=database_url, no_auth=False) as here:
        callers = Callers(here)
        assert callers.put("half", HALF)[0] == 201
        status, again = callers.put("half", {**HALF, "max_errors": None})
        assert (status, again["version"]) == (200, 1)  # it says the same
        status, second = callers.put("half", SLIM)
        assert (status, second["version"], second["versions"]) == (201, 2, [1, 2])
        assert (second["kinds"], second["runs_code"]) == (["fields"], False)
        listed = callers.ask("vera", "GET", "/v1/transforms?limit=1")[1]
        assert [each["version"] for each in listed["transforms"]] == [2]
        query = f"limit=1&cursor={listed['next_cursor']}"
        rest = callers.ask("vera", "GET", f"/v1/transforms?{query}")[1]
        assert [each["version"] for each in rest["transforms"]] == [1]
        assert rest["next_cursor"] is None
        assert callers.ask("ada", "DELETE", "/v1/transforms/half@2")[0] == 204
        assert callers.ask("vera", "GET", "/v1/transforms/half")[1]["version"] == 1
        assert callers.ask("vera", "GET", "/v1/transforms/half@2")[0] == 404
        assert callers.put("half", SLIM)[1]["version"] == 3  # no number is given again
        entries = callers.ask("ada", "GET", "/v1/audit")[1]["entries"]
        noted = [(e["who"], e["action"], e["target"]) for e in entries]
        assert noted == [
            ("ada", "transform.put", "half@3"),
            ("ada", "transform.remove", "half@2"),
            ("ada", "transform.put", "half@2"),
            ("ada", "transform.put", "half@1"),
        ]


def test_a_job_has_the_steps_of_the_version_that_it_began_with(callers: Callers) -> None:
    callers.put("half", HALF)
    status, job = callers.submit("ann", {"use": "half"})
    assert status == 201, job
    assert job["spec"]["transform"] == {
        **callers.ask("ann", "GET", "/v1/transforms/half")[1]["transform"],
        "use": "half@1",
        "digest": callers.ask("ann", "GET", "/v1/transforms/half@1")[1]["digest"],
    }
    callers.put("half", SLIM)
    path = f"/v1/jobs/{job['job_id']}"
    assert callers.ask("ann", "GET", path)[1]["spec"] == job["spec"]
    assert callers.ask("ann", "POST", f"{path}/retry")[1]["spec"] == job["spec"]
    assert callers.submit("ann", {"use": "half"})[1]["spec"]["transform"]["use"] == "half@2"
    assert callers.submit("ann", {"use": "half@1"})[1]["spec"]["transform"]["use"] == "half@1"
    callers.ask("ada", "DELETE", "/v1/transforms/half")
    status, refused = callers.submit("ann", {"use": "half@1"})
    assert (status, refused["problems"][0]["path"]) == (400, "transform.use")


@pytest.mark.parametrize("steps", [CODE, {"steps": [{"exec": {"command": ["true"]}}]}])
def test_code_is_an_admins_and_the_spec_says_whose(callers: Callers, steps: Any) -> None:
    status, refused = callers.submit("ann", steps)
    assert (status, "unless an admin submits it" in refused["detail"]) == (403, True)
    lie = {**steps, "allowed_by": "ada"}
    assert callers.submit("ann", lie)[0] == 403
    assert callers.ask("ann", "POST", "/v1/validate", json={**SPEC, "transform": steps})[0] == 403
    schedule = {"name": "x", "every": "1d", "spec": {**SPEC, "transform": steps}}
    assert callers.ask("ann", "POST", "/v1/schedules", json=schedule)[0] == 403
    assert callers.ask("ann", "POST", "/v1/sort", json={**SPEC, "transform": steps})[0] == 403
    status, job = callers.submit("ada", steps)
    assert (status, job["spec"]["transform"]["allowed_by"]) == (201, "ada")
    assert callers.ask("ada", "POST", "/v1/schedules", json=schedule)[0] == 201


@pytest.mark.parametrize(
    "fields", [{"on_shard": {"exec": ["true"]}}, {"amend": {"job": "20260101-000000-abcdef"}}]
)
def test_programs_for_shards_and_amendments_are_for_admins(callers: Callers, fields: Any) -> None:
    spec = {**SPEC, **fields}
    for path in ("/v1/jobs", "/v1/validate", "/v1/sort"):
        status, refused = callers.ask("ann", "POST", path, json=spec)
        assert (status, "unless an admin submits it" in str(refused)) == (403, True), path
    schedule = {"name": "x", "every": "1d", "spec": spec}
    assert callers.ask("ann", "POST", "/v1/schedules", json=schedule)[0] == 403
    if "on_shard" in fields:
        lie = {**SPEC, "on_shard": {"exec": ["true"], "allowed_by": "ada"}}
        assert callers.ask("ann", "POST", "/v1/jobs", json=lie)[0] == 403
    status, job = callers.ask("ada", "POST", "/v1/jobs", json=spec)
    assert status == 201, job
    path = f"/v1/jobs/{job['job_id']}"
    callers.ask("ada", "POST", f"{path}/stop")
    assert callers.ask("ann", "POST", f"{path}/retry")[0] in (403, 404)
    entries = callers.ask("ada", "GET", "/v1/audit")[1]["entries"]
    said = [each["details"] for each in entries if each["action"] == "job.submit"]
    shown = (
        {"on_shard": "true"}
        if "on_shard" in fields
        else {"amends": f"{fields['amend']['job']} (append)"}
    )
    assert said[0].items() >= shown.items()


@pytest.mark.parametrize(
    "fields",
    [
        {"output_bck": "-"},
        {"input_bck": {"pipe": ["cat", "{shard}"]}, "input_format": {"template": "in-{0..3}"}},
    ],
)
def test_streams_and_programs_as_shards_are_not_even_an_admins(
    callers: Callers, fields: Any
) -> None:
    assert callers.ask("ada", "POST", "/v1/jobs", json={**SPEC, **fields})[0] == 403


def test_code_that_an_admin_has_registered_is_for_all_who_submit_jobs(callers: Callers) -> None:
    assert callers.put("aug", CODE, who="ann")[0] == 403
    status, made = callers.put("aug", CODE)
    assert (status, made["runs_code"]) == (201, True)
    status, job = callers.submit("ann", {"use": "aug", "on_error": "skip"})
    assert status == 201, job
    transform = job["spec"]["transform"]
    assert (transform["allowed_by"], transform["use"], transform["on_error"]) == (
        "ada",
        "aug@1",
        "skip",
    )
    path = f"/v1/jobs/{job['job_id']}"
    callers.ask("ann", "POST", f"{path}/stop")
    assert callers.ask("ann", "POST", f"{path}/retry")[0] == 202
    callers.ask("ada", "DELETE", "/v1/transforms/aug")
    assert callers.ask("ann", "POST", f"{path}/resume")[0] == 403  # it is not registered any more
    assert callers.ask("ada", "POST", f"{path}/resume")[0] == 202


def test_another_steps_under_a_registered_name_are_nobodys(callers: Callers) -> None:
    callers.put("aug", CODE)
    mine = {"steps": [{"map": {"python": "os:system"}}], "use": "aug@1"}
    digest = callers.ask("ann", "GET", "/v1/transforms/aug")[1]["digest"]
    assert callers.submit("ann", {**mine, "digest": digest})[0] == 403
    assert callers.submit("ann", mine)[0] == 400
    safe = {**SLIM, "use": "aug@1", "digest": digest}
    status, job = callers.submit("ann", safe)
    assert status == 201
    assert "use" not in job["spec"]["transform"]  # for it does not use that


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("a" * 65, HALF, 400),
        ("half@3", HALF, 400),
        ("%2e%2e%2fx", HALF, 404),
        ("half", {"steps": []}, 400),
        ("half", {"steps": [{"sampel": {}}]}, 400),
        ("half", {"use": "other"}, 400),
        ("half", {"steps": [{"sample": {"fraction": 0.5}}] * 100_001}, 413),
        ("half", [1], 400),
    ],
)
def test_a_wrong_transform_is_refused(callers: Callers, name: str, body: Any, status: int) -> None:
    assert callers.put(name, body)[0] == status
    assert callers.ask("vera", "GET", "/v1/transforms")[1]["transforms"] == []


SHARDS = {
    f"s-{number}.tar": Shard(
        tuple(Member(f"{number}{i}.{e}", b"%d" % i) for i in range(3) for e in ("cls", "txt"))
    )
    for number in range(2)
}
LOUDER = """\
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
    (tmp_path / "code.py").write_text(LOUDER)
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
        assert "the request needs an admin" in refused.err
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
    """An admin's job runs a program for each shard, another removes records from its result; jobs
    of others do not. The audit log has both."""
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


def test_a_service_without_tokens_runs_nobodys_code(tmp_path: Path) -> None:
    with service_here(tmp_path) as here:
        (here.service.config.run.root / "images").mkdir()
        assert here.client.put("/v1/transforms/half", json=HALF).status_code == 201
        assert here.client.put("/v1/transforms/aug", json=CODE).status_code == 403
        answer = here.client.post("/v1/jobs", json={**SPEC, "transform": CODE})
        assert answer.status_code == 403
        answer = here.client.post("/v1/jobs", json={**SPEC, "on_shard": {"exec": ["true"]}})
        assert answer.status_code == 403
        here.submit({**SPEC, "transform": {"use": "half"}})
