"""The command line as a whole: help is quick and fits, mistakes are reported in a few words, and
the exit code says whose fault it is."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsort.cli import exits
from dsort.cli.main import main, whole_app
from dsort.errors import (
    DsortError,
    InvariantError,
    JobStoppedError,
    SpecError,
    SpecProblem,
)
from dsort.version import dsort_version
from tests.support.commands import ROOT, CommandLine

COMMANDS: dict[str, Any] = whole_app().commands
VERBS = [
    *COMMANDS,
    *(
        f"{name} {verb}"
        for name, group in COMMANDS.items()
        for verb in getattr(group, "commands", {})
    ),
]
HEAVY = (
    "fastapi",
    "httpx",
    "numpy",
    "pyarrow",
    "pydantic",
    "ray",
    "re2",
    "rich",
    "sqlalchemy",
    "xxhash",
    "yaml",
)
HELP_CPU_MAX_S = 0.6
"""Twice what help may take: the machine of a test may be busy with other things."""


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_eighty_columns(
    verb: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(*verb.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: dsort {verb}".rstrip())
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "..." not in ended.out.partition("Commands:")[2]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from dsort.cli.main import main\n"
        f"for verb in {['', *VERBS]}:\n"
        "    assert main([*verb.split(), '--help']) == 0\n"
        f"    loaded = [name for name in {HEAVY} if name in sys.modules]\n"
        "    assert not loaded, (verb, loaded)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["", "start", "schedule add"])
def test_help_is_quick(verb: str) -> None:
    spent_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        args = [sys.executable, "-m", "dsort", *verb.split(), "--help"]
        subprocess.run(args, cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent_s) < HELP_CPU_MAX_S


def test_version_is_reported(cli: CommandLine) -> None:
    ended = cli("--version")
    assert ended.code == 0
    assert ended.out == f"dsort {dsort_version()}\n"


def test_exit_codes_are_those_of_the_error_tree(cli: CommandLine) -> None:
    codes = [code for code, _ in exits.exit_table()]
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "129, 130, 143"]
    shown = cli("--help").out.partition("Exit codes:")[2].splitlines()
    assert [line.strip().split("  ")[0] for line in shown if line[4:5].isdigit()] == codes
    for kind in DsortError.__subclasses__():
        assert any(str(kind.exit_code) in code for code in codes)
    for number in (signal.SIGINT, signal.SIGTERM):
        code = exits.exit_code(JobStoppedError("stopped", signal_number=number))
        assert str(code) in codes[-1]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("strat", 2, ["'strat'", "Did you mean 'start'"]),
        ("shufle images x", 2, ["Did you mean 'shuffle'"]),
        ("gen-shard b/x.tar", 2, ["Did you mean 'gen-shards'"]),
        ("start", 2, ["missing option '--spec'", "`dsort start --help`"]),
        ("start spec.yaml", 2, ["dsort start -f SPEC [OPTIONS] [SRC] [DST]"]),
        ("shuffle", 2, ["dsort shuffle [OPTIONS] SRC DST"]),
        ("shuffle a.tar b.tar c.tar x", 2, ["(c.tar x)", "dsort shuffle [OPTIONS] SRC DST"]),
        ("shuffle " + "long-name.tar " * 99, 2, ["...)"]),
        ("shuffle images", 2, ["`dsort shuffle --help`"]),
        ("ls", 2, ["missing argument 'BUCKET'"]),
        ("ls images --prefx a", 2, ["--prefx", "--prefix"]),
        ("start -f {} --workers 0", 2, ["--workers", "1"]),
        ("start -f {} --move teleport", 2, ["--move", "'teleport'", "'spill'"]),
        ("start -f {} --max-memory 8gallons", 2, ["--max-memory", "8gallons"]),
        ("gen-shards b/x.tar --tform cpio", 2, ["--tform", "'cpio'", "'ustar'"]),
        ("token add q", 2, ["missing", "--role", "choose from: viewer, submitter, admin"]),
        ("start -f no-such.json", 2, ["no-such.json", "hint:"]),
        ("sort a b --move map", 2, ["--print-spec", "`dsort start -f SPEC --move`"]),
        ("show a --html", 2, ["`dsort show --help`"]),
        ("ls a --move map", 2, ["`dsort ls --help`"]),
        ("shuffle imges x", 4, ["--root"]),
        ("shuffle loose/*.tar x", 4, ["/loose;", "input_format", "--print-spec"]),
        ("shuffle loose/s-{0..3}.tar x", 4, ["/loose;", "input_format", "--print-spec"]),
        ("shuffle empty x", 3, ["`dsort ls`"]),
        ("shuffle loose x", 3, ["`dsort ingest`"]),
        ("verify nowhere", 3, ["--bucket"]),
    ],
)
def test_a_mistake_is_a_short_paragraph_with_the_next_step(
    line: str, code: int, words: list[str], cli: CommandLine, tmp_path: Path
) -> None:
    for name in ("empty", "loose"):
        (tmp_path / name).mkdir()
    (tmp_path / "loose" / "a.jpg").touch()
    ended = cli(*line.split())
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) <= 4
    assert "Traceback" not in ended.err
    assert [word for word in words if word.lower() not in ended.err.lower()] == []
    assert not (tmp_path / "x").exists()


def test_dsort_alone_shows_its_help(cli: CommandLine) -> None:
    assert cli().out == cli("--help").out == cli("-h").out


def test_a_bucket_without_credentials_names_the_variables(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ended = cli("shuffle", "s3://raw/images", "s3://train/images")
    assert (ended.code, "AWS_ACCESS_KEY_ID" in ended.err) == (4, True)


def test_json_tells_errors_on_stdout_too(cli: CommandLine) -> None:
    ended = cli("spec", "check", "-f", '{"algoritm": {}}', "--json")
    error = json.loads(ended.out)["error"]
    assert (ended.code, error["exit_code"], error["kind"]) == (2, 2, "SpecError")
    assert {"input_bck", "algoritm"} <= {each["path"] for each in error["problems"]}
    assert ended.err.startswith("error: ")
    usage = json.loads(cli("ls", "--json").out)["error"]
    assert (usage["kind"], usage["exit_code"]) == ("UsageError", 2)
    missing = json.loads(cli("ls", "nowhere", "--json").out)["error"]
    assert (missing["kind"], missing["exit_code"]) == ("ObjectNotFoundError", 4)


def test_all_problems_are_reported_with_their_hints(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [SpecProblem("a", "is wrong", "write b"), SpecProblem("c.d", "is wrong, too")]
    assert exits.report_error(SpecError(problems), as_json=False, debug=False) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: 2 problems:",
        "  a: is wrong",
        "    hint: write b",
        "  c.d: is wrong, too",
    ]


def test_a_broken_invariant_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvariantError("a worker failed:\nTraceback\n  somewhere\nValueError: odd")
    assert exits.report_error(error, as_json=False, debug=False) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: a worker failed: ValueError: odd"
    assert "please report it" in said[1]


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_exception_is_our_bug(debug: bool, tmp_path: Path) -> None:
    code = (
        "import sys, dsort.cli.find as buckets\n"
        "import dsort.storage.open as addresses\n"
        "def broken(where, **options): raise ZeroDivisionError('of all things')\n"
        "addresses.open_bucket = broken\n"
        "from dsort.cli.main import main\n"
        "sys.exit(main())\n"
    )
    args = ["ls", "images", "--json", *(["--debug"] if debug else [])]
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == debug
    assert "error: dsort failed unexpectedly: ZeroDivisionError: of all things" in done.stderr
    assert "--debug" in done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 1


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(2000):
        (tmp_path / "many" / f"{'x' * 60}-{number:04}").touch()
    listing = subprocess.Popen(
        [sys.executable, "-m", "dsort", "ls", "many"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing, listing.stdout, listing.stderr:
        assert listing.stdout.readline().startswith(b"NAME")
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 128 + signal.SIGPIPE


def test_a_full_disk_under_stdout_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "s.tar").touch()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dsort", "ls", "images"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_pipe_that_breaks_elsewhere_is_not_taken_for_that(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(argv: object) -> int:
        raise BrokenPipeError("between two workers")

    monkeypatch.setattr("dsort.cli.main._run", broken)
    with pytest.raises(BrokenPipeError, match="between two workers"):
        main(["ls", "images"])
    assert capfd.readouterr() == ("", "")


STOPPED = "error: stopped by SIGINT\nhint: no job was running here: there is nothing to resume\n"


def test_an_interrupt_before_the_work_begins_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dsort.cli.main._run", interrupted)
    assert main(["ls", "images"]) == 130
    assert capsys.readouterr().err == STOPPED


def test_ctrl_c_while_the_command_still_loads_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "dsort", "ls", "images"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, STOPPED)
