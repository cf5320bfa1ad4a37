"""Jobs, commands and readers take datasets of the Hugging Face Hub: the bytes are those of the same
files in a directory, at one commit, and no file that a job leaves has the token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import dsort
from dsort.errors import ChangedInputError, JobStoppedError, ObjectNotFoundError, SpecError
from dsort.loader import Loader
from dsort.stop_flag import StopFlag
from tests.support.commands import CommandLine
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.hub_server import TOKEN, Hub
from tests.support.internals import Event
from tests.support.refusals import raises

SOURCE = "hf://datasets/lab/images@main/train"
SPEC: dict[str, Any] = {
    "input_bck": SOURCE,
    "output_bck": "out",
    "output_format": "out-%03d",
    "output_shard_records": 10,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root, with shards in ``in`` that are in a dataset, too."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    hub.commit("lab/images", dataset_of(tmp_path / "in"))
    hub.forget_requests()
    return tmp_path


def dataset_of(directory: Path) -> dict[str, bytes]:
    shards = {f"train/{path.name}": path.read_bytes() for path in directory.glob("*.tar")}
    return {"README.md": b"---\nlicense: mit\n---\n", **shards}


def wanted(root: Path, **fields: Any) -> dict[str, str]:
    """What the same job makes of the files."""
    dsort.run({**SPEC, "input_bck": "in", "output_bck": "near", **fields})
    return files_of(root / "near", "*.tar")


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_makes_of_a_dataset_what_it_makes_of_its_files(here: Path, hub: Hub) -> None:
    report = dsort.run(SPEC)
    assert files_of(here / "out", "*.tar") == wanted(here)
    assert dsort.verify(report).ok
    assert {each["token"] for each in hub.requests("tree")} == {TOKEN}
    assert {each["token"] for each in hub.requests("data")} == {""}


@pytest.mark.parametrize("phase", ["resolve", "extract", "create"])
def test_a_job_reads_one_commit_while_the_branch_moves(here: Path, hub: Hub, phase: str) -> None:
    moved: list[str] = []

    def move(event: Event) -> None:
        if getattr(event, "phase", "") == phase and not moved:
            others = small_dataset("others")
            moved.append(
                hub.commit("lab/images", {f"train/{n}": s.data for n, s in others.items()})
            )

    dsort.run(SPEC, on_event=move)
    assert moved
    assert files_of(here / "out", "*.tar") == wanted(here)
    assert not any(moved[0] in each["path"] for each in hub.requests())


def stopped(phase: str) -> str:
    """Run the job and stop it at its phase. Returns its id."""
    with StopFlag() as stop:

        def listen(event: Event) -> None:
            if getattr(event, "phase", "") == phase:
                stop.request(15, "a test")

        with pytest.raises(JobStoppedError) as caught:
            dsort.run(SPEC, on_event=listen, stop=stop, job_id="20260101-000000-abcdef")
    assert caught.value
    return "20260101-000000-abcdef"


def test_a_job_is_resumed_on_a_newer_commit_with_the_same_shards(here: Path, hub: Hub) -> None:
    job_id = stopped("create")
    hub.commit("lab/images", {**dataset_of(here / "in"), "README.md": b"new"})
    dsort.resume(job_id, "out")
    assert files_of(here / "out", "*.tar") == wanted(here)


def test_a_job_is_not_resumed_on_other_shards(here: Path, hub: Hub) -> None:
    job_id = stopped("create")
    files = dataset_of(here / "in")
    hub.commit("lab/images", {**files, "train/in-1.tar": files["train/in-1.tar"] + bytes(512)})
    with pytest.raises(ChangedInputError, match=r"in-1\.tar"):
        dsort.resume(job_id, "out")


@pytest.mark.usefixtures("workers_here")
def test_a_view_of_a_commit_is_read_and_materialized(here: Path, hub: Hub) -> None:
    commit = hub.commit("lab/images", dataset_of(here / "in"))
    source = f"hf://datasets/lab/images@{commit}/train"
    dsort.run({**SPEC, "input_bck": source, "output_bck": "view", "output": "view"})
    hub.commit("lab/images", {"README.md": b"all gone"})
    assert len(list(Loader("view", batch_size=None, cache=""))) == 36
    dsort.materialize("view", "out")
    assert files_of(here / "out", "*.tar") == wanted(here)


def test_no_output_goes_to_a_dataset(here: Path, hub: Hub) -> None:
    with pytest.raises(SpecError) as caught:
        dsort.run({**SPEC, "input_bck": "in", "output_bck": "hf://datasets/lab/images/new"})
    assert [each.path for each in caught.value.problems] == ["output_bck"]
    assert "https://s3.hf.co/NAMESPACE" in caught.value.problems[0].hint
    with pytest.raises(SpecError):
        dsort.run({name: each for name, each in SPEC.items() if name != "output_bck"})
    assert hub.requests() == []


def test_a_dataset_that_is_not_there_ends_the_job_before_it_begins(here: Path) -> None:
    with raises(ObjectNotFoundError, "revision v9", "bucket hf://datasets/lab/images@v9/train"):
        dsort.run({**SPEC, "input_bck": "hf://datasets/lab/images@v9/train"})
    assert not (here / "out").exists()


# --- readers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [SOURCE, "hf://datasets/lab/images/train", f"{SOURCE}/in-{{0..2}}.tar", f"{SOURCE}/in-@2.tar"],
)
def test_records_are_read_by_every_form_of_address(here: Path, where: str) -> None:
    found = {record.key: record.members for record in dsort.read_shards(where)}
    assert found == {record.key: record.members for record in dsort.read_shards("in")}


def test_one_shard_is_opened(here: Path) -> None:
    with dsort.open(f"{SOURCE}/in-0.tar") as far, dsort.open("in/in-0.tar") as near:
        assert far.uri == f"{SOURCE}/in-0.tar"
        assert [record.key for record in far] == [record.key for record in near]


def test_a_loader_gives_the_samples_of_the_files(here: Path) -> None:
    def samples(where: str) -> list[dict[str, Any]]:
        loader = Loader(where, batch_size=None, seed=3, cache="")
        return [{**each, "__url__": each["__url__"].rpartition("/")[2]} for each in loader]

    assert samples(SOURCE) == samples("in")


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def let_in(cli: CommandLine, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """``cli``, with the environment of the stand-in."""
    for name, value in hub.environment().items():
        monkeypatch.setenv(name, value)
    return cli


@pytest.mark.usefixtures("workers_here")
def test_commands_take_datasets(let_in: CommandLine, here: Path) -> None:
    listed = let_in("ls", "hf://datasets/lab/images")
    assert [line.split()[0] for line in listed.out.splitlines()] == [
        "NAME", "README.md", "train/in-0.tar", "train/in-1.tar", "train/in-2.tar",
    ]  # fmt: skip
    inspected = let_in("inspect", f"{SOURCE}/in-0.tar", "--json")
    assert len(json.loads(inspected.out)["records"]) == 12
    args = ("--shard-records", 10, "--seed", 4, "--names", "out-%03d", "--progress", "none")
    assert let_in("shuffle", SOURCE, "out", *args).code == 0
    assert files_of(here / "out", "*.tar") == wanted(here)
    assert let_in("verify", "out", "--progress", "none").code == 0
    refused = let_in("shuffle", "in", "hf://datasets/lab/images/new", *args)
    assert (refused.code, "s3.hf.co" in refused.err) == (2, True)
    unknown = let_in("ls", "hf://datasets/lab/none")
    assert (unknown.code, "HF_TOKEN" in unknown.err) == (4, True)


def test_the_token_is_in_nothing_that_a_job_leaves_or_says(
    command: Callable[..., Any], here: Path, hub: Hub
) -> None:
    args = ["shuffle", SOURCE, "out", "--seed", "4", "--shard-records", "10"]
    ended = command(*args, "--log-level", "debug", env=hub.environment())
    assert ended.code == 0, ended.err
    assert TOKEN not in ended.out + ended.err
    hub.misbehave(next_page=f"{hub.data_url}/?X-Sig=signed")
    failed = command("ls", "hf://datasets/lab/images", "--debug", env=hub.environment())
    assert failed.code == 4
    assert TOKEN not in failed.out + failed.err
    for path in (here / "out").rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path


def test_the_token_is_in_no_list_of_processes(here: Path, hub: Hub) -> None:
    seen: list[str] = []

    def look(event: Event) -> None:
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            seen.extend(process.cmdline())

    dsort.run(SPEC, on_event=look)
    assert seen
    assert not any(TOKEN in each for each in seen)
