"""``start``, ``plan``, ``validate`` and ``schema`` as a user sees them: where the spec comes from,
what is printed where, and how a job is stopped."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dsort.options import RunOptions
from dsort.stop_flag import StopFlag
from tests.support.commands import SPEC, CommandLine, answering
from tests.support.datasets import small_dataset, write_shards
from tests.support.internals import (
    Forecast,
    Job,
    JobReport,
    JobWarning,
    Order,
    PlannedShard,
    Progress,
    ReactionCount,
    Run,
    Totals,
    resolve,
)

pytestmark = pytest.mark.usefixtures("workers_here")

REPORT = JobReport(
    job_id="job-1",
    state="finished",
    output_uri="file:///data/out%20put",
    manifest_name=".dsort/job-1/manifest.json",
    totals=Totals(3, 4, 1500, 3000, 5 << 20, 6 << 20),
    run=Run("map", 2, phase_seconds={"extract": 1.0, "create": 2.0}),
    order=Order("7"),
    reactions=(ReactionCount("missing_shards", 5, ("a.tar", "b.tar", "c.tar", "d.tar")),),
    warnings=("5 input shards are missing: a.tar, ...",),
)
PLAN = JobReport(
    job_id="job-1",
    state="planned",
    output_uri="",
    totals=Totals(3, 20, 100, 200, 1 << 20, 2 << 20),
    run=Run("map", 2),
    order=Order("7"),
    plan=Forecast(
        shards=tuple(PlannedShard(f"s-{n}.tar", 5, 1000, 2000) for n in range(20)),
        move_reason="it fits",
        memory_bytes=1 << 30,
        scratch_bytes=0,
    ),
)


@pytest.fixture
def shards(cli: CommandLine) -> None:
    assert cli("gen-shards", "images/s-{0..2}.tar", "--fcount", 6).code == 0


def names_in(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def result(bucket: Path) -> list[list[str]]:
    return [names_in(path) for path in sorted(bucket.glob("*.tar"))]


# --- start ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shards")
def test_start_shuffles_and_says_where_the_result_is(cli: CommandLine, tmp_path: Path) -> None:
    ended = cli("start", "-f", json.dumps(SPEC))
    assert ended.code == 0
    records = [name for shard in result(tmp_path / "shuffled") for name in shard]
    assert sorted(records) == [f"{number:06}.test" for number in range(18)]
    assert records != sorted(records)
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
    assert lines["result"] == str(tmp_path / "shuffled")
    assert lines["shards"] == "3 in, 5 out"
    assert lines["records"] == "18, 18 members"
    assert lines["seed"] == "7"
    assert (tmp_path / "shuffled" / lines["manifest"]).is_file()
    assert "extract: done" in ended.err


@pytest.mark.usefixtures("shards")
def test_a_forgotten_algorithm_is_named_by_plan_start_and_show(cli: CommandLine) -> None:
    """It sorts by name: who meant to shuffle should notice."""
    forgotten = json.dumps({name: SPEC[name] for name in SPEC if name != "algorithm"})
    line = "sorted by name (the spec names none; to shuffle: algorithm: {kind: shuffle})"
    for verb in ("plan", "start"):
        said = cli(verb, "-f", forgotten).out.splitlines()
        (message,) = [each for each in said if each.startswith("algorithm")]
        assert message.endswith(f"alphanumeric: {line}")
    assert "alphanumeric: sorted by name\n" in cli("show", "shuffled").out
    named = cli("start", "images", "other", "-f", json.dumps(SPEC)).out
    assert "algorithm  shuffle\n" in named
    assert "the spec names none" not in named


@pytest.mark.usefixtures("shards")
def test_show_without_a_job_lists_those_of_the_data_root(cli: CommandLine, tmp_path: Path) -> None:
    nothing = cli("show")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err.startswith("there is no job in ")
    for bucket in ("one", "two"):
        assert cli("start", "images", bucket, "-f", json.dumps(SPEC)).code == 0
    listed = json.loads(cli("show", "--json").out)
    assert [each["state"] for each in listed] == ["finished"] * 2
    assert {each["bucket"] for each in listed} == {
        (tmp_path / name).as_uri() for name in ("one", "two")
    }
    assert listed == sorted(listed, key=lambda each: each["job_id"], reverse=True)
    assert cli("show", "--bucket", "one").out.splitlines()[1].endswith(str(tmp_path / "one"))


@pytest.mark.usefixtures("shards")
def test_the_spec_may_be_a_file_stdin_or_text_with_the_same_result(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(SPEC)
    (tmp_path / "spec.json").write_text(text)
    lines = [f"{name}: {json.dumps(value)}" for name, value in SPEC.items()]
    (tmp_path / "spec.yaml").write_text("\n".join(lines))
    results = []
    for number, source in enumerate(["spec.json", "spec.yaml", "-", text, "\n".join(lines)]):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert cli("start", "images", f"out{number}", "-f", source).code == 0
        results.append(result(tmp_path / f"out{number}"))
    assert results[0]
    assert all(each == results[0] for each in results)


@pytest.mark.usefixtures("shards")
def test_progress_in_json_is_one_object_a_line(cli: CommandLine) -> None:
    older = {**SPEC, "input_format": "s-{0..2}"}
    ended = cli("start", "-f", json.dumps(older), "--progress", "json")
    events = [json.loads(line) for line in ended.err.splitlines()]
    done = [each["phase"] for each in events if each["event"] == "PhaseDone"]
    assert done == ["resolve", "extract", "plan", "create", "commit"]
    assert [each["event"] for each in events].count("JobStarted") == 1
    assert (events[0]["event"], events[0]["kind"]) == ("JobWarning", "spec")


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize("args", [["start", "--dry-run"], ["plan"], ["start"]])
def test_a_plan_writes_nothing(args: list[str], cli: CommandLine, tmp_path: Path) -> None:
    spec = SPEC if len(args) > 1 or args == ["plan"] else {**SPEC, "dry_run": True}
    before = sorted(tmp_path.rglob("*"))
    ended = cli(*args, "-f", json.dumps(spec))
    assert ended.code == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert "nothing was written" in ended.out
    assert "shuffled-04.tar" in ended.out


@pytest.mark.usefixtures("shards")
def test_a_plan_foretells_the_result(cli: CommandLine, tmp_path: Path) -> None:
    plan = json.loads(cli("plan", "-f", json.dumps(SPEC), "--json").out)
    assert cli("start", "-f", json.dumps(SPEC)).code == 0
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "shuffled").glob("*.tar")}
    assert {each["name"]: each["file_bytes"] for each in plan["shards"]} == sizes


def test_verbose_shows_the_spec_with_its_defaults(cli: CommandLine) -> None:
    ended = cli("start", "-f", json.dumps(SPEC), "-v")
    shown, _ = json.JSONDecoder().raw_decode(ended.err[ended.err.index("{") :])
    assert shown["missing_shards"] is None
    assert shown["algorithm"] == {**shown["algorithm"], "kind": "shuffle", "seed": "7"}


# --- what the verbs hand to the library, and what they make of its answers ------------------------


def test_options_reach_the_library(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = answering(monkeypatch, "run", REPORT)
    ended = cli(
        "start", "-f", json.dumps(SPEC), "--root", "data", "--scratch", tmp_path,
        "--max-memory", "1.5GB", "--move", "spill", "--workers", 3, "--ray-address", "auto",
        "--overwrite", "--ray-resources", '{"slot": 2}', "--ray-labels", '{"zone": "a"}',
    )  # fmt: skip
    assert ended.code == 0
    assert calls[0][1]["options"] == RunOptions(
        root=Path("data"),
        scratch=tmp_path,
        memory_max_bytes=3 << 29,
        move="spill",
        workers=3,
        overwrite=True,
        runtime="ray",
        ray_address="auto",
        ray_resources={"slot": 2.0},
        ray_labels={"zone": "a"},
    )
    cli("start", "-f", json.dumps(SPEC))
    assert calls[1][1]["options"] == RunOptions(root=Path())
    cli("start", "-f", json.dumps(SPEC), "--ray")
    assert calls[2][1]["options"] == RunOptions(root=Path(), runtime="ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray-labels", '{"zone": "a"}'], "--ray-labels: "),
        (["--ray", "--ray-labels", "zone"], "--ray-labels: zone "),
        (["--ray", "--ray-labels", '{"zone": 1}'], "--ray-labels: "),
        (["--ray", "--ray-resources", '{"slot": "1"}'], "--ray-resources: "),
        (["--ray", "--ray-resources", '{"slot": true}'], "--ray-resources: "),
        (["--ray", "--ray-resources", "[1]"], "--ray-resources: [1] "),
    ],
)
def test_nodes_that_are_chosen_wrongly_are_a_mistake_of_the_command_line(
    cli: CommandLine, options: list[str], message: str
) -> None:
    ended = cli("start", "-f", json.dumps(SPEC), *options)
    assert ended.code == 2
    assert message in ended.err


def test_the_summary_fits_and_names_what_was_met(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "run", REPORT)
    out = cli("start", "-f", json.dumps(SPEC)).out
    assert out.splitlines() == [
        "job       job-1 finished in 3.00 s",
        "result    /data/out put",
        "manifest  .dsort/job-1/manifest.json",
        "shards    3 in, 4 out",
        "records   1,500, 3,000 members",
        "bytes     6 MiB, 5 MiB of them payload",
        "rate      2 MiB/s",
        "movement  map, 2 workers",
        "seed      7",
        "oddities  5 missing_shards: a.tar, b.tar, c.tar, ...",
        "warnings  1, shown above",
    ]


def test_a_plan_lists_ten_shards_or_all(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "plan", PLAN)
    out = cli("plan", "-f", json.dumps(SPEC)).out
    assert "s-9.tar" in out
    assert "s-10.tar" not in out
    assert "... and 10 more shards" in out
    assert "s-19.tar" in cli("plan", "-f", json.dumps(SPEC), "--all").out


@pytest.mark.parametrize("verb", ["run", "plan"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_the_job(
    verb: str, number: signal.Signals, code: int, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)

    def stopped(stop: StopFlag, **named: object) -> None:
        os.kill(os.getpid(), number)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)  # impatience changes nothing
        stop.raise_if_requested()

    answering(monkeypatch, verb, stopped)
    ended = cli("start" if verb == "run" else "plan", "-f", json.dumps(SPEC))
    assert ended.code == code
    assert ended.err.splitlines() == [
        "stopping: ending the workers",
        "stopping, please wait",
        f"error: the job was stopped by {number.name}",
    ]
    assert signal.getsignal(number) is before


def test_a_job_that_is_stopped_while_its_workers_start_says_how_to_begin_it_again(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "images", small_dataset("stopped early"))

    def stopped(job: Job, *, dry: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        job.stop.raise_if_requested()

    with monkeypatch.context() as patched:
        patched.setattr(resolve, "start_workers", stopped)
        ended = cli("start", "-f", json.dumps(SPEC))
    *_, error, hint = ended.err.splitlines()
    assert (ended.code, error) == (143, "error: the job was stopped by SIGTERM")
    said = re.fullmatch("hint: `dsort (resume .*)` starts the job again, .*", hint)
    assert said is not None
    assert cli(*shlex.split(said[1])).code == 0


def test_warnings_are_reported_while_the_job_runs(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warning(on_event: Callable[[object], None], **named: object) -> JobReport:
        on_event(Progress("job-1", "extract", 0, 1, 0, 0, 0, 0.0))
        on_event(JobWarning("job-1", "odd", "something is odd"))
        return REPORT

    answering(monkeypatch, "run", warning)
    ended = cli("start", "-f", json.dumps(SPEC))
    assert "warning: something is odd" in ended.err
    assert "something is odd" not in ended.out


# --- validate, schema ----------------------------------------------------------------------------


def test_validate_in_json_prints_a_spec_that_means_the_same(cli: CommandLine) -> None:
    full = cli("spec", "check", "-f", json.dumps(SPEC), "--json").out
    assert json.loads(full)["output_shard_records"] == 4
    again = cli("spec", "check", "-f", full, "--json")
    assert again.err == ""
    assert again.out == full
