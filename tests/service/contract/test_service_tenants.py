"""Two tenants of one service: no spec, schedule, transform or link in a bucket of the one reads or
writes what is the other's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsort.service.security.tokens import ADMIN, SUBMITTER
from tests.support.service_here import SPEC, ServiceHere, service_here
from tests.support.service_process import await_that
from tests.support.tars import tar_of

LOOSE = {"input_bck": "ann/in", "output_bck": "ann/out", "output_format": "x-%d"}
SHARDS = {**LOOSE, "output_shard_size": "1KB"}


class Tenants:
    """A service with the tenants ann and bob, and an admin. Each tenant has a directory of buckets,
    under the data root: ``in`` with a shard, ``out``, and ``lists`` with texts."""

    def __init__(self, here: ServiceHere) -> None:
        self.here = here
        self.root = here.service.config.run.root
        tokens = here.service.tokens
        self.tokens = {"ada": tokens.add("ada", ADMIN)}
        for name in ("ann", "bob"):
            own = [str(self.root / name / "*")]
            self.tokens[name] = tokens.add(name, SUBMITTER, own, own)
            for bucket in ("in", "out", "lists"):
                (self.root / name / bucket).mkdir(parents=True)
            shard = tar_of({"a.txt": name.encode()})
            (self.root / name / "in" / "a.tar").write_bytes(shard)
            (self.root / name / "lists" / "keys.txt").write_text("a\n")
            (self.root / name / "lists" / "table.csv").write_text("key,secret\na,of " + name)

    def ask(self, who: str, method: str, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = self.here.client.request(method, path, headers=headers, **more)
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status_code, answer.json() if is_json else answer.text

    def job(self, spec: Mapping[str, Any], who: str = "ann") -> dict[str, Any]:
        """The job of ``who`` once it is over."""
        status, job = self.ask(who, "POST", "/v1/jobs", json=spec)
        assert status == 201, job
        path = f"/v1/jobs/{job['job_id']}"
        await_that(lambda: self.ask(who, "GET", path)[1]["state"] in ("finished", "failed"), 60)
        view: dict[str, Any] = self.ask(who, "GET", path)[1]
        return view

    def outputs(self, who: str) -> list[str]:
        """The shards that ``who`` has in ``out``."""
        return sorted(path.name for path in (self.root / who / "out").rglob("*.tar"))

    def snapshot(self, who: str) -> dict[str, bytes]:
        """All that is in the directory of ``who``."""
        files = (path for path in sorted((self.root / who).rglob("*")) if path.is_file())
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with service_here(tmp_path, no_auth=False) as here:
        yield Tenants(here)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Tenants]:
    """The same, and its jobs run."""
    with service_here(tmp_path, no_auth=False, start=True) as here:
        yield Tenants(here)


def specs_that_read(location: str) -> dict[str, dict[str, Any]]:
    """A spec for each field that names a file, by the field."""
    step = {"file": location}
    loose = {**LOOSE, "output_shard_size": "1KB"}
    return {
        "ekm_file": {
            **{key: SHARDS[key] for key in SHARDS if key != "output_format"},
            "ekm_file": location,
        },
        "ingest.table.file": {**loose, "ingest": {"table": {"file": location}}},
        "ingest.labels": {**loose, "ingest": {"labels": location}},
        "ingest.recipe": {**loose, "ingest": {"recipe": location}},
        "ingest.class_map": {**loose, "ingest": {"layout": "folders", "class_map": location}},
        "keep_keys.file": {**SHARDS, "transform": {"steps": [{"keep_keys": step}]}},
        "drop_keys.file": {
            **SHARDS,
            "transform": {"steps": [{"sample": {"fraction": 0.5}}, {"drop_keys": step}]},
        },
    }


FIELDS = tuple(specs_that_read(""))


# --- files that a spec names ---------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("field", FIELDS)
def test_a_spec_names_no_file_of_another_tenant(tenants: Tenants, field: str) -> None:
    root = tenants.root
    (root / "ann" / "lists" / "near.txt").symlink_to(root / "bob" / "lists" / "keys.txt")
    (root / "ann" / "lists" / "dir").symlink_to(root / "bob" / "lists")
    for location in (
        "bob/lists/keys.txt",
        f"{root}/bob/lists/keys.txt",
        f"file://{root}/bob/lists/keys.txt",
        f"FILE://{root}/bob/lists/keys.txt",
        f"File://localhost{root}/bob/lists/keys.txt",
        f"file://{root}/ann/%2e%2e/bob/lists/keys.txt",
        "ann/../bob/lists/keys.txt",
        "./ann/lists/../../bob//lists/keys.txt",
        "ann/lists/near.txt",
        "ann/lists/dir/keys.txt",
        "bob/lists/is-not-there.txt",
    ):
        spec = specs_that_read(location)[field]
        for path in ("/v1/jobs", "/v1/jobs?dry_run=true", "/v1/validate", "/v1/sort"):
            status, refused = tenants.ask("ann", "POST", path, json=spec)
            text = refused if isinstance(refused, str) else refused["detail"]
            assert (status, "not for" in text) == (403, True), (path, location, refused)
        definition = {"name": "n", "every": "1d", "overlap": "skip", "spec": spec}
        status, refused = tenants.ask("ann", "POST", "/v1/schedules", json=definition)
        assert (status, "not for" in refused["detail"]) == (403, True), (location, refused)
    status, job = tenants.ask(
        "ann", "POST", "/v1/jobs", json=specs_that_read("ann/lists/keys.txt")[field]
    )
    assert status == 201, job


@pytest.mark.parametrize("field", ["ekm_file", "ingest.table.file", "keep_keys.file"])
def test_a_schedule_is_changed_to_no_file_of_another_tenant_and_fires_with_none(
    tenants: Tenants, field: str
) -> None:
    made = {"name": "nightly", "every": "1d", "overlap": "skip", "paused": True}
    mine = {**made, "spec": specs_that_read("ann/lists/keys.txt")[field]}
    status, answer = tenants.ask("ann", "POST", "/v1/schedules", json=mine)
    assert status == 201, answer
    theirs = {**made, "spec": specs_that_read("bob/lists/keys.txt")[field]}
    status, refused = tenants.ask("ann", "PUT", "/v1/schedules/nightly", json=theirs)
    assert (status, "not for" in refused["detail"]) == (403, True), refused
    # By the time it is due, the file is a link.
    own = tenants.root / "ann" / "lists" / "keys.txt"
    own.unlink()
    own.symlink_to(tenants.root / "bob" / "lists" / "keys.txt")
    status, refused = tenants.ask("ann", "POST", "/v1/schedules/nightly/run-now")
    assert (status, "not for" in refused["detail"]) == (403, True), refused


def test_a_schedule_writes_no_pointer_where_its_owner_may_not_write_any_more(
    tenants: Tenants,
) -> None:
    spec = {**SHARDS, "output_bck": "ann/out/{{run_id}}"}
    made = {"name": "n", "every": "1d", "overlap": "skip", "spec": spec, "latest": True}
    assert tenants.ask("ann", "POST", "/v1/schedules", json=made)[0] == 201
    tokens = tenants.here.service.tokens
    tokens.remove("ann")
    own = [str(tenants.root / "ann" / "in")], [str(tenants.root / "ann" / "out" / "*")]
    tenants.tokens["ann"] = tokens.add("ann", SUBMITTER, *own)
    status, refused = tenants.ask("ada", "POST", "/v1/schedules/n/run-now")
    assert (status, "not for" in refused["detail"]) == (403, True), refused


@pytest.mark.parametrize("what", ["resume", "retry"])
def test_a_job_is_not_run_again_with_a_file_that_is_anothers_by_now(
    tenants: Tenants, what: str
) -> None:
    spec = specs_that_read("ann/lists/keys.txt")["ingest.labels"]
    job = tenants.ask("ann", "POST", "/v1/jobs", json=spec)[1]
    tenants.ask("ann", "POST", f"/v1/jobs/{job['job_id']}/stop")
    own = tenants.root / "ann" / "lists"
    own.rename(tenants.root / "ann" / "before")
    own.symlink_to(tenants.root / "bob" / "lists")
    status, refused = tenants.ask("ann", "POST", f"/v1/jobs/{job['job_id']}/{what}")
    assert (status, "not for" in refused["detail"]) == (403, True), refused


def test_a_named_transform_reads_no_file_of_another_tenant(running: Tenants) -> None:
    for name, file in (("theirs", "bob/lists/keys.txt"), ("mine", "ann/lists/keys.txt")):
        steps = {"steps": [{"keep_keys": {"file": file}}]}
        assert running.ask("ada", "PUT", f"/v1/transforms/{name}", json=steps)[0] == 201
    spec = {**SHARDS, "transform": {"use": "theirs"}}
    for path in ("/v1/jobs", "/v1/validate"):
        status, refused = running.ask("ann", "POST", path, json=spec)
        assert (status, "not for" in refused["detail"]) == (403, True), refused
    looks = (
        "/v1/objects/ann%2Fin/a.tar?transform={}",
        "/v1/changed/ann%2Fin/a.tar?number=0&transform={}",
    )
    for look in looks:
        status, refused = running.ask("ann", "GET", look.format("theirs"))
        assert (status, "not for" in str(refused)) == (403, True), refused
        status, shown = running.ask("ann", "GET", look.format("mine"))
        assert status == 200, shown


def test_a_file_in_a_directory_of_ones_own_bucket_is_read(running: Tenants) -> None:
    (running.root / "ann" / "lists" / "deep").mkdir()
    (running.root / "ann" / "lists" / "deep" / "keys.txt").write_text("a\n")
    own = [f"{running.root}/ann/lists", f"{running.root}/ann/in", f"{running.root}/ann/out"]
    running.tokens["amy"] = running.here.service.tokens.add("amy", SUBMITTER, own, own)
    spec = specs_that_read("ann/lists/deep/keys.txt")["keep_keys.file"]
    job = running.job(spec, "amy")
    assert (job["state"], job["result"]["records"]) == ("finished", 1), job


# --- links in buckets ----------------------------------------------------------------------------


def ways_in(root: Path) -> dict[str, dict[str, Any]]:
    """Specs that read through links in ann's input bucket into bob's, which this function makes."""
    inside, theirs = root / "ann" / "in", root / "bob" / "in"

    def link(name: str, target: Path) -> None:
        (inside / name).symlink_to(target)

    loose = {**LOOSE, "output_shard_size": "1KB"}
    link("file.tar", theirs / "a.tar")
    link("relative.tar", Path("../../bob/in/a.tar"))
    link("dir", theirs)
    (inside / "hop").symlink_to(inside / "dir")
    (inside / "loose").mkdir()
    (inside / "loose" / "b.txt").symlink_to(theirs / "a.tar")
    return {
        "a file that is listed": {**SHARDS, "input_format": {"prefix": "file"}},
        "a file that is named": {**SHARDS, "input_format": {"objnames": ["relative.tar"]}},
        "a file of a template": {**SHARDS, "input_format": {"template": "fi{l..l}e.tar"}},
        "a directory that is listed": {**SHARDS, "input_format": {"glob": "di**"}},
        "a directory that is named": {**SHARDS, "input_format": {"objnames": ["hop/a.tar"]}},
        "a loose file": {**loose, "input_format": {"prefix": "loose/"}, "ingest": {}},
        "a loose file that is named": {
            **loose,
            "input_format": {"objnames": ["loose/b.txt"]},
            "ingest": {},
        },
        "a directory of loose files": {**loose, "input_format": {"prefix": "dir"}, "ingest": {}},
    }


def test_a_job_reads_through_no_link_into_another_tenants_bucket(running: Tenants) -> None:
    for what, spec in ways_in(running.root).items():
        status, job = running.ask("ann", "POST", "/v1/jobs", json=spec)
        if status == 403:
            assert "not under a directory" in job["detail"], (what, job)
            continue
        assert status == 201, (what, job)
        path = f"/v1/jobs/{job['job_id']}"
        await_that(lambda path=path: running.ask("ann", "GET", path)[1]["state"] == "failed", 60)
        error = running.ask("ann", "GET", path)[1]["error"]
        assert error["type"] == "urn:dsort:problem:storage_access", (what, error)
        assert "leads out" in error["detail"], (what, error)
        assert "bob" not in error["detail"], (what, error)
    assert running.outputs("ann") == []


def test_a_job_writes_through_no_link_into_another_tenants_bucket(running: Tenants) -> None:
    theirs, out = running.root / "bob", running.root / "ann" / "out"
    before = running.snapshot("bob")
    (out / "sub").symlink_to(theirs / "out")
    for name in ("sub/x-%d", "sub/new/x-%d"):
        status, job = running.ask("ann", "POST", "/v1/jobs", json={**SHARDS, "output_format": name})
        assert (status, "not under a directory" in job["detail"]) == (403, True), job
    # A link at the name of an output, whose target overwrite could replace.
    (out / "x-0.tar").symlink_to(theirs / "in" / "a.tar")
    job = running.job({**SHARDS, "overwrite": True})
    assert job["state"] == "failed", job
    (out / "x-0.tar").unlink()
    shutil.rmtree(out / ".dsort", ignore_errors=True)
    (out / ".dsort").symlink_to(theirs / "out")
    assert running.job(SHARDS)["state"] == "failed"
    (out / ".dsort").unlink()
    assert running.job(SHARDS)["state"] == "finished"
    assert running.job({**SHARDS, "overwrite": True})["state"] == "finished"
    assert running.outputs("ann") == ["x-0.tar"]
    assert running.snapshot("bob") == before


def test_a_bucket_that_becomes_a_link_while_its_job_waits_is_not_followed(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        tenants = Tenants(here)
        before = tenants.snapshot("bob")
        ids = []
        for spec in (SHARDS, {**SHARDS, "output_bck": "ann/lists", "output_format": "y-%d"}):
            ids.append(tenants.ask("ann", "POST", "/v1/jobs", json=spec)[1]["job_id"])
        for bucket in ("out", "lists"):
            own = tenants.root / "ann" / bucket
            own.rename(own.with_name(f"was-{bucket}"))
            own.symlink_to(tenants.root / "bob" / bucket)
        here.service.start()
        for job_id in ids:
            await_that(
                lambda job_id=job_id: (
                    tenants.ask("ada", "GET", f"/v1/jobs/{job_id}")[1]["state"] == "failed"
                ),
                60,
            )
        assert tenants.snapshot("bob") == before


def test_a_job_reads_a_text_where_it_was_when_the_job_was_submitted(tmp_path: Path) -> None:
    with service_here(tmp_path, no_auth=False) as here:
        tenants = Tenants(here)
        spec = specs_that_read("ann/lists/table.csv")["ingest.table.file"]
        (tenants.root / "ann" / "in" / "a.tar").rename(tenants.root / "ann" / "in" / "a.jpg")
        status, job = tenants.ask("ann", "POST", "/v1/jobs", json=spec)
        assert status == 201, job
        own = tenants.root / "ann" / "lists" / "table.csv"
        own.unlink()
        own.symlink_to(tenants.root / "bob" / "lists" / "table.csv")
        here.service.start()
        path = f"/v1/jobs/{job['job_id']}"
        await_that(lambda: tenants.ask("ann", "GET", path)[1]["state"] == "failed", 60)
        assert "when the job was submitted" in tenants.ask("ann", "GET", path)[1]["error"]["detail"]
        assert tenants.outputs("ann") == []


def test_ones_own_files_become_records_as_before(running: Tenants) -> None:
    """What is refused above is refused for the link, and for nothing else."""
    inside = running.root / "ann" / "in"
    (inside / "linked.tar").symlink_to(inside / "a.tar")
    os.link(inside / "a.tar", inside / "again.tar")
    job = running.job({**SHARDS, "input_format": {"prefix": ""}, "duplicate_keys": "rename"})
    assert (job["state"], job["result"]["records"]) == ("finished", 3), job


# --- hidden names --------------------------------------------------------------------------------


def test_no_job_writes_names_that_are_hidden(running: Tenants) -> None:
    """Wherever such a name comes from: a spec, a key map in a file, the name of an input."""
    inside, out = running.root / "ann" / "in", running.root / "ann" / "out"
    (inside / ".ssh").mkdir()
    (inside / "a.tar").rename(inside / ".ssh" / "a.tar")
    (running.root / "ann" / "lists" / "map.json").write_text('{".ssh/x-%d": ["a"]}')
    mapped = {key: SHARDS[key] for key in SHARDS if key != "output_format"}
    kept = {key: LOOSE[key] for key in ("input_bck", "output_bck")} | {"keep_shards": True}
    for spec in (
        {**SHARDS, "output_format": ".ssh/x-%d"},
        {**SHARDS, "output_format": "a/.ssh/x-%d"},
        {**mapped, "input_format": {"prefix": ".ssh/"}, "ekm_file": "ann/lists/map.json"},
        {**kept, "input_format": {"objnames": [".ssh/a.tar"]}},
        {**kept, "input_format": {"template": ".ssh/{a..a}.tar"}},
        {**kept, "input_format": {"prefix": ".ssh/"}},
    ):
        status, job = running.ask("ann", "POST", "/v1/jobs", json=spec)
        if status == 201:
            path = f"/v1/jobs/{job['job_id']}"
            await_that(
                lambda path=path: running.ask("ann", "GET", path)[1]["state"] == "failed", 60
            )
        else:
            assert status == 400, job
        assert not [*out.rglob(".ssh")], spec


# --- several inputs and outputs ------------------------------------------------------------------


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def outputs_of(main: str, own: str) -> dict[str, Any]:
    outputs = [{"name": "a", "fraction": 0.5}, {"name": "b", "fraction": 0.5, "output_bck": own}]
    return {**SPEC, "output_bck": main, "outputs": outputs}


def inputs_of(*buckets: str) -> dict[str, Any]:
    inputs = [{"name": f"n{n}", "input_bck": bucket} for n, bucket in enumerate(buckets)]
    return {**{name: each for name, each in SPEC.items() if name != "input_bck"}, "inputs": inputs}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    """A service that asks for tokens, with the buckets ``one``, ``two`` and ``three``."""
    with service_here(tmp_path, no_auth=False) as opened:
        for name in ("one", "two", "three"):
            (opened.service.config.run.root / name).mkdir()
        yield opened


def test_a_token_has_to_be_for_every_input_and_every_output(here: ServiceHere) -> None:
    root, tokens = here.service.config.run.root, here.service.tokens
    few = [f"{root}/one", f"{root}/tw*"]
    every = headers(tokens.add("bob", SUBMITTER))
    some = {
        "input": headers(tokens.add("ann", SUBMITTER, few, ["*"])),
        "output": headers(tokens.add("amy", SUBMITTER, ["*"], few)),
    }
    for what, spec_of, others in (
        ("input", inputs_of, [("one", "three"), ("three", "two"), ("two", "one", "three/deep")]),
        ("output", outputs_of, [("one", "three"), ("three", "two")]),
    ):
        mine = here.client.post("/v1/jobs", json=spec_of("one", "two"), headers=some[what])
        assert mine.status_code == 201, mine.text
        refused = here.client.post("/v1/jobs", json=spec_of("one", "three"), headers=some[what])
        assert refused.status_code == 403
        assert f"{what} file://{root}/three" in refused.json()["detail"]
        theirs = [
            here.client.post("/v1/jobs", json=spec_of(*buckets), headers=every).json()["job_id"]
            for buckets in others
        ]
        listed = here.client.get("/v1/jobs", headers=some[what]).json()["jobs"]
        assert mine.json()["job_id"] in {job["job_id"] for job in listed}
        assert not {job["job_id"] for job in listed} & {*theirs}
        for job_id in theirs:
            assert here.client.get(f"/v1/jobs/{job_id}", headers=some[what]).status_code == 404
    shown = here.client.post("/v1/jobs", json=inputs_of("one", "two"), headers=every).json()
    assert shown["input_uri"] == f"file://{root}/one, file://{root}/two"


def test_every_output_is_in_a_bucket_that_is_allowed_and_schedules_have_one(
    here: ServiceHere,
) -> None:
    token = headers(here.service.tokens.add("bob", SUBMITTER))
    for own in ("file:///etc", "s3://elsewhere"):
        refused = here.client.post("/v1/jobs", json=outputs_of("one", own), headers=token)
        assert refused.status_code == 403, refused.text
        assert "outputs[1].output_bck" in refused.json()["detail"]
    body = {"name": "n", "every": "1d", "spec": outputs_of("one", "two")}
    refused = here.client.post("/v1/schedules", json=body, headers=token)
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:dsort:problem:spec")


def test_a_job_goes_on_only_while_its_key_map_is_for_the_token(asking: ServiceHere) -> None:
    spec = {key: SPEC[key] for key in SPEC if key != "output_format"} | {"ekm_file": "keys/a.json"}
    root = asking.service.config.run.root
    seen = [f"{root}/images", f"{root}/keys"]
    ann = asking.headers("ann", "submitter", input_buckets=seen)
    answer = asking.client.post("/v1/jobs", json=spec, headers=ann)
    assert answer.status_code == 201, answer.text
    job_id = asking.service.store.ask_stop(answer.json()["job_id"]).job_id
    asking.service.tokens.remove("ann")
    ann = asking.headers("ann", "submitter")
    for what in ("resume", "retry"):
        answer = asking.client.post(f"/v1/jobs/{job_id}/{what}", headers=ann)
        assert answer.status_code == 403, answer.text
        assert "keys/a.json" in answer.json()["detail"]
