"""Buckets of object stores on the command line: every verb takes their URIs, settings say how they
are reached, options come before settings, and mistakes have errors of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort.errors import SpecError
from dsort.options import RunOptions
from tests.support.commands import SPEC, CommandLine, answering
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")


def settings_of(server: S3Server) -> str:
    return f'[stores.s3]\nendpoint_url = "{server.endpoint_url}"\n'


@pytest.fixture
def images(tmp_path: Path, s3: S3Server, cli: CommandLine) -> str:
    """A bucket with two shards under ``train/``, reached by a settings file."""
    (tmp_path / "dsort.toml").write_text(settings_of(s3))
    bucket = f"s3://{s3.new_bucket_name()}"
    made = cli("gen-shards", f"{bucket}/train/a-{{0..1}}.tar", "--fcount", 3, "--progress", "none")
    assert (made.code, made.err) == (0, "")
    assert f"to {bucket}/train" in made.out
    return bucket


def test_a_job_from_bucket_to_bucket_is_seen_by_every_verb(
    images: str, s3: S3Server, cli: CommandLine
) -> None:
    assert [line.split()[0] for line in cli("ls", images).out.splitlines()] == [
        "NAME", "train/a-0.tar", "train/a-1.tar",
    ]  # fmt: skip
    inspected = cli("inspect", f"{images}/train/a-0.tar", "--json")
    assert len(json.loads(inspected.out)["records"]) == 3
    target = f"s3://{s3.new_bucket_name()}/out"
    started = cli("start", f"{images}/train", target, "-f", json.dumps(SPEC), "--json",
                  "--workers", 1, "--max-bandwidth", "1GB", "--progress", "none")  # fmt: skip
    assert (started.code, started.err) == (0, "")
    job_id = json.loads(started.out)["job_id"]
    for way in (target, f"{target}/.dsort/{job_id}", f"{target}/.dsort/{job_id}/manifest.json"):
        shown = cli("show", way, "--json")
        assert json.loads(shown.out)["job_id"] == job_id, way
    for verify in ([target], [job_id, "--bucket", target]):
        verified = cli("verify", *verify, "--progress", "none")
        assert (verified.code, verified.err) == (0, ""), verify
        assert "correct" in verified.out
    assert s3.secret_key not in started.out + shown.out + verified.out


def test_a_spec_may_say_itself_where_its_bucket_is(
    images: str, s3: S3Server, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "dsort.toml").write_text('[stores.s3]\nendpoint_url = "http://127.0.0.1:1"')
    bucket = {
        "name": images.removeprefix("s3://"),
        "provider": "aws",
        "prefix": "train",
        "endpoint_url": s3.endpoint_url,
    }
    spec = json.dumps({**SPEC, "input_bck": bucket})
    assert cli("start", "-f", spec, "--workers", 1, "--progress", "none").code == 0
    shown = cli("show", "shuffled").out
    place = f"aws bucket {bucket['name']}/train at {s3.endpoint_url}"
    assert f"from       {place}\n" in shown
    assert cli("verify", "shuffled", "--progress", "none").code == 0


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("ls s3:/images", '"s3://images"?'),
        ("ls S3://Images_", '"Images_"'),
        ("ls ais://images", "AIS_ENDPOINT"),
        ("inspect s3://images", "s3://images/NAME"),
        ("gen-shards s3://a-{0..9}.tar", "s3://images/train/"),
        ("show gs:images --bucket gs:images", "gs://images"),
        ("start -f {} --max-bandwidth fast", "--max-bandwidth: 'fast'"),
        ("start -f {} --max-memory 0", "--max-memory: "),
    ],
)
def test_mistakes_are_the_users_and_name_the_remedy(
    cli: CommandLine, line: str, named: str
) -> None:
    ended = cli(*line.split())
    assert ended.code == SpecError.exit_code
    assert named in ended.err


def refused(**named: object) -> None:
    raise SpecError("not today")


def test_options_come_before_variables_and_these_before_files(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsort.toml").write_text(
        'root = "data"\nscratch = "/far"\nmemory_max = "1GB"\nworkers = 5\nbandwidth_max = "1MB"\n'
        'ray_address = "10.0.0.1:6379"\n[stores.s3]\nregion = "far"'
    )
    monkeypatch.setenv("DSORT_WORKERS", "4")
    calls = answering(monkeypatch, "plan", refused)

    def options(*args: str) -> RunOptions:
        assert "not today" in cli("plan", "-f", json.dumps(SPEC), *args).err
        found = calls[-1][1]["options"]
        assert isinstance(found, RunOptions)
        return found

    usual = options()
    assert (usual.root, usual.scratch) == (Path("data"), Path("/far"))
    assert (usual.memory_max_bytes, usual.workers) == (1 << 30, 4)
    assert (usual.runtime, usual.ray_address) == ("local", None)
    assert usual.bandwidth_max_bytes_per_s == 1 << 20
    assert usual.settings.of_store("s3").region == "far"
    given = options("--root", "here", "--workers", "2", "--max-memory", "2GB", "--scratch", "/near",
                    "--max-bandwidth", "3MB", "--ray")  # fmt: skip
    assert (given.root, given.scratch) == (Path("here"), Path("/near"))
    assert (given.memory_max_bytes, given.workers) == (2 << 30, 2)
    assert (given.runtime, given.ray_address) == ("ray", "10.0.0.1:6379")
    assert given.bandwidth_max_bytes_per_s == 3 << 20
    monkeypatch.setenv("DSORT_ROOT", "variable")
    assert options().root == Path("variable")


def test_a_settings_file_that_is_wrong_is_named_by_every_verb(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "dsort.toml").write_text('[stores.s3]\nsecret_key = "hunter2"\nregon = "x"')
    for args in (["ls", "images"], ["plan", "-f", json.dumps(SPEC)], ["show", "x"]):
        ended = cli(*args)
        assert ended.code == SpecError.exit_code
        assert "dsort.toml: stores.s3.regon: " in ended.err
        assert "dsort.toml: stores.s3.secret_key: " in ended.err
        assert "hunter2" not in ended.err
