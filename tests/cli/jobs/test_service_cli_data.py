"""Commands that look at buckets, results and tokens, through a service: the output is that of the
same command without a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort.service.database.engine import open_database
from dsort.service.security.tokens import TokenStore
from tests.support.commands import CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.service_process import running_service

pytestmark = pytest.mark.timeout(120, func_only=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """(the data root of a service, its URL)."""
    root = tmp_path_factory.mktemp("data")
    write_shards(root / "in", small_dataset("looks", shards=3, records=12))
    url = f"sqlite:///{root}/service.db"
    with open_database(url) as database:
        text = TokenStore(database).add("root", "admin", ["*"], ["*"])
    (root / "token").write_text(text, encoding="utf-8")
    arguments = ["--root", str(root), "--state-dir", str(root / "state"), "--database", url]
    with running_service(root, *arguments, "--workers", "1", "--aistore") as service:
        yield root, service.url


@pytest.fixture
def there(
    cli: CommandLine, place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    root, url = place
    monkeypatch.setenv("DSORT_SERVER", url)
    monkeypatch.setenv("DSORT_TOKEN_FILE", str(root / "token"))
    monkeypatch.setenv("DSORT_ROOT", str(root))
    return cli


def first_shard(there: CommandLine) -> str:
    name: str = json.loads(there("ls", "in", "--json").out)["objects"][0]["name"]
    return f"in/{name}"


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("args", ["ls in", "ls in --prefix s", "gc in"])
def test_a_list_of_a_service_is_the_same(args: str, there: CommandLine) -> None:
    here, asked = there(*args.split(), "--local"), there(*args.split())
    assert (asked.code, asked.out) == (0, here.out)


@pytest.mark.parametrize("part", ["", "KEY", "KEY.EXT", "--index 2"])
def test_a_service_sends_the_same_bytes(part: str, there: CommandLine, tmp_path: Path) -> None:
    shard = first_shard(there)
    record = json.loads(there("inspect", shard, "--json", "--local").out)["records"][1]
    named = part.replace("KEY", record["key"]).replace(".EXT", record["extensions"][0])
    here, asked = tmp_path / "here", tmp_path / "asked"
    assert there("cat", shard, *named.split(), "-o", str(here), "--local").code == 0
    assert there("cat", shard, *named.split(), "-o", str(asked)).code == 0
    assert here.stat().st_size > 0
    assert asked.read_bytes() == here.read_bytes()


def test_a_shard_is_inspected_through_a_service(there: CommandLine) -> None:
    shard = first_shard(there)
    here = json.loads(there("inspect", shard, "--json", "--local").out)
    asked = json.loads(there("inspect", shard, "--json").out)
    assert asked == {name: value for name, value in here.items() if name != "oddities"}
    text = there("inspect", shard, "--local").out
    assert there("inspect", shard).out == "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("odd ")
    )


def test_a_record_that_is_not_there_is_refused(there: CommandLine) -> None:
    shard = first_shard(there)
    assert there("cat", shard, "nothing").code == 3
    assert there("cat", shard, "--index", "999").code == 3
    assert there("cat", "in/nothing.tar").code != 0


def test_tokens_are_made_listed_and_removed_through_a_service(there: CommandLine) -> None:
    made = there("token", "add", "ann", "--role", "viewer", "--expires", "90d")
    assert made.code == 0
    assert made.out.startswith("dsort_")
    rows = {each["name"]: each for each in json.loads(there("token", "ls", "--json").out)}
    assert rows["ann"]["role"] == "viewer"
    assert rows["ann"]["expires_at"] is not None
    removed = there("token", "rm", "ann", "--json")
    assert json.loads(removed.out) == {"name": "ann", "removed": True}
    assert "ann" not in there("token", "ls").out


def test_a_result_is_shown_as_a_page_and_appended_to(
    there: CommandLine, place: tuple[Path, str], tmp_path: Path
) -> None:
    done = there("shuffle", "in", "out", "--shard-records", "7", "--wait", "--json")
    job_id = json.loads(done.out)["job_id"]
    log = json.loads(there("log", job_id, "--json").out)
    assert log == {"job_id": job_id, "log": there("log", job_id).out}
    page = there("show", job_id, "--html", "-")
    assert page.out.startswith("<!doctype html>")
    records = json.loads(done.out)["records"]
    write_shards(place[0] / "new", small_dataset("more", shards=1, records=5))
    appended = there("append", job_id, "new", "--wait", "--json", "--progress", "none")
    assert appended.code == 0, appended.err
    assert there("verify", "out").code == 0
    shown = json.loads(there("show", "out", "--json", "--local").out)
    assert shown["totals"]["records"] == records + 5


def test_each_change_of_a_schedule_is_json(there: CommandLine) -> None:
    spec = {
        "input_bck": "in",
        "output_bck": "nightly/{{date}}",
        "output_format": "s-%d",
        "output_shard_size": "1MB",
    }
    added = there("schedule", "add", "n", "-f", json.dumps(spec), "--every", "1d", "--paused")
    assert added.code == 0, added.err
    assert json.loads(there("schedule", "resume", "n", "--json").out)["paused"] is False
    assert json.loads(there("schedule", "pause", "n", "--json").out)["paused"] is True
    removed = json.loads(there("schedule", "rm", "n", "--json").out)
    assert removed == {"name": "n", "removed": True}


def test_named_transforms_are_json(there: CommandLine) -> None:
    there("transforms", "add", "short", "-f", '{"steps": [{"filter": "has(\\"jpg\\")"}]}')
    assert json.loads(there("transforms", "show", "short", "--json").out)["version"] == 1
    urls = json.loads(there("urls", "in/{0..1}.tar", "--use", "short", "--json").out)
    assert [url.rpartition("/")[2] for url in urls] == [
        "0.tar?transform=short@1",
        "1.tar?transform=short@1",
    ]
    removed = json.loads(there("transforms", "rm", "short", "--json").out)
    assert removed == [{"transform": "short", "removed": True}]


def test_urls_are_of_buckets_as_specs_name_them(
    there: CommandLine, place: tuple[Path, str]
) -> None:
    for template, urls in {
        "images/a b/x-{0..1}.tar": ["images/a%20b/x-0.tar", "images/a%20b/x-1.tar"],
        "s3://data/deep/x.tar": ["s3%3A%2F%2Fdata/deep/x.tar"],
        "file:///data/images/x-{8..9}": [
            "file%3A%2F%2F%2Fdata%2Fimages/x-8.tar",
            "file%3A%2F%2F%2Fdata%2Fimages/x-9.tar",
        ],
    }.items():
        found = there("urls", template).out.split()
        assert found == [f"{place[1]}/v1/objects/{each}" for each in urls]


def test_without_the_guest_commands_name_the_option_and_others_work(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, steps = tmp_path / "data", '{"steps": [{"filter": "has(\\"jpg\\")"}]}'
    write_shards(data / "in", small_dataset("alone", shards=1, records=2))
    arguments = ("--root", str(data), "--state-dir", str(tmp_path / "state"), "--no-auth")
    with running_service(tmp_path, *arguments) as service:
        monkeypatch.setenv("DSORT_SERVER", service.url)
        shard = first_shard(cli)
        for command in (
            ("urls", "in/{0..1}.tar"),
            ("urls", "in/{0..1}.tar", "--use", "short"),
            ("cat", shard),
            ("transforms", "ls"),
            ("transforms", "show", "short"),
            ("transforms", "add", "short", "-f", steps),
            ("transforms", "rm", "short"),
            ("transform", "in", "out", "--use", "short"),
        ):
            ended = cli(*command)
            assert ended.code in (2, 6), command
            assert "dsort serve --aistore" in ended.err, command
        assert cli("cat", shard, "--index", "1", "-o", str(tmp_path / "one")).code == 0
        assert json.loads(cli("inspect", shard, "--json").out)["members"] > 0


def test_the_schema_is_that_of_the_service(there: CommandLine) -> None:
    assert json.loads(there("spec", "schema").out)["properties"]["algorithm"]
