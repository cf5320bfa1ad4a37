"""``on_shard``: a program is run for each output shard once the result is committed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash

import dsort
from dsort.errors import (
    CodeRefusedError,
    InputError,
    JobStoppedError,
    ShardCommandError,
)
from dsort.stop_flag import StopFlag
from tests.support.commands import CommandLine
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import PhaseDone
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

NAMES = ["out-0.tar", "out-1.tar", "out-2.tar", "out-3.tar"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Records for four output shards."""
    write_shards(tmp_path / "in", {"a.tar": shard_of(*"abcdefgh")})
    return tmp_path


def shell(root: Path, script: str) -> list[str]:
    """A program that is a script, with the log ``$0``, the path ``$1`` and the name ``$2``."""
    return ["sh", "-c", script, str(root / "log"), "{path}", "{shard}"]


def spec(program: list[str], **fields: Any) -> dict[str, Any]:
    return spec_of(output_shard_records=2, on_shard={"exec": program, **fields})


def log(root: Path) -> list[str]:
    path = root / "log"
    return path.read_text().splitlines() if path.exists() else []


def job_in(root: Path) -> str:
    (manifest,) = (root / "out").glob(".dsort/*/manifest.json")
    return manifest.parent.name


def test_the_program_runs_for_each_shard_in_order_once_the_result_is_there(root: Path) -> None:
    said = 'ls "${1%/*}"/.dsort/*/manifest.json >/dev/null && echo "$2 $DSORT_RECORDS" >> "$0"'
    report = run_local(root, spec(shell(root, said)))
    assert log(root) == [f"{name} 2" for name in NAMES]
    assert report.state == "finished"
    noted = root / "out" / ".dsort" / report.job_id / "on_shard.json"
    assert json.loads(noted.read_text()) == {"done": 4, "more": []}
    assert not (noted.parent / "lease.json").exists()


def test_what_the_shard_is_stands_in_variables(root: Path) -> None:
    said = 'printf "%s %s %s" "$DSORT_SHARD" "$DSORT_FILE_BYTES" "$DSORT_XXH3" > "$DSORT_PATH.say"'
    report = run_local(root, spec(shell(root, said)))
    for name in NAMES:
        data = (root / "out" / name).read_bytes()
        said_of_it = (root / "out" / f"{name}.say").read_text().split()
        assert said_of_it == [name, str(len(data)), xxhash.xxh3_64_hexdigest(data)]
    assert report.warnings == ()


def test_no_shell_reads_a_name(root: Path) -> None:
    program = shell(root, 'echo "$2" >> "$0"')
    run_local(root, {**spec(program), "output_format": "a$(id)'-%d"})
    assert log(root) == [f"a$(id)'-{n}.tar" for n in range(4)]


def test_shards_may_be_done_side_by_side(root: Path) -> None:
    """Each waits for another one: two run at once."""
    said = 'echo x >> "$0"; while [ $(wc -l < "$0") -lt 2 ]; do sleep 0.01; done'
    run_local(root, spec(shell(root, said), at_once=2, timeout="20s"))
    assert log(root) == ["x"] * 4


def test_a_failure_ends_the_command_and_resume_goes_on(root: Path, cli: CommandLine) -> None:
    said = 'echo "$2" >> "$0"; [ "$2" != out-1.tar -o -e "$0.mended" ] || { echo no >&2; exit 3; }'
    with raises(ShardCommandError, "shard out-1.tar", "with 3: no", "1 of 4"):
        run_local(root, spec(shell(root, said)))
    assert log(root) == NAMES[:2]
    job_id = job_in(root)
    unasked = cli("resume", job_id)
    assert (unasked.code, log(root)) == (0, NAMES[:2])
    assert "--run-code" in unasked.err
    (root / "log.mended").touch()
    asked = cli("resume", job_id, "--run-code")
    assert (asked.code, log(root)) == (0, [*NAMES[:2], *NAMES[1:]])
    assert "3 shards" in asked.err
    again = cli("resume", job_id, "--run-code")
    assert (again.code, len(log(root))) == (0, 5)
    assert cli("verify", "out").code == 0
    assert cli("gc", "out").out.count(job_id) == 0


def test_a_failure_may_be_a_warning(root: Path) -> None:
    program = shell(root, 'echo "$2" >> "$0"; exit 1')
    report = run_local(root, spec(program, on_error="warn"))
    assert (report.state, log(root)) == ("finished", NAMES)
    assert len(report.warnings) == 4
    assert "out-0.tar: the program sh ended with 1" in report.warnings[0]


@pytest.mark.parametrize("ends", ["sleep 600", "exit 0"])
def test_processes_that_a_shard_program_started_end_with_it(ends: str, root: Path) -> None:
    """At the timeout, and also where it goes and leaves something behind."""
    program = shell(root, f'sleep 601 & echo $! >> "$0"; {ends}')
    wanted = spec(program, on_error="warn", timeout="1s" if "600" in ends else "20s")
    report = run_local(root, {**wanted, "output_shard_records": 8})
    assert any("took longer than 1 s" in text for text in report.warnings) == ("600" in ends)
    (left,) = log(root)
    status = Path(f"/proc/{left}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_a_flood_of_messages_is_cut_to_its_end(root: Path) -> None:
    program = shell(root, "yes no | head -c 5000000; echo the end; exit 1")
    with pytest.raises(ShardCommandError, match="the end"):
        run_local(root, spec(program))


def test_no_shard_of_a_job_that_failed_is_given_to_it(root: Path) -> None:
    write_shards(root / "in", {"b.tar": b"no tar at all" * 99})
    with pytest.raises(InputError):
        run_local(root, spec(shell(root, 'echo "$2" >> "$0"')))
    assert log(root) == []


def test_a_stop_ends_the_program_and_leaves_the_result(root: Path, cli: CommandLine) -> None:
    os.mkfifo(root / "began")
    program = shell(root, 'echo $$ > "${0%log}began"; sleep 600')
    began = os.fdopen(os.open(root / "began", os.O_RDWR), "rb", buffering=0)
    with StopFlag() as stop:

        def heard(event: object) -> None:
            if isinstance(event, PhaseDone) and event.phase == "commit":
                threading.Thread(target=lambda: (began.readline(), stop.request(15))).start()

        with pytest.raises(JobStoppedError):
            run_local(root, spec(program), stop=stop, on_event=heard)
    began.close()
    assert cli("verify", "out").code == 0
    assert not list((root / "out").glob(".dsort/*/staged"))


def test_a_program_that_cannot_be_run_is_named(root: Path) -> None:
    with raises(ShardCommandError, "no-such-program"):
        run_local(root, spec(["no-such-program", "{path}"]))


def test_a_resumed_job_runs_no_program_that_no_user_asked_for(root: Path) -> None:
    write_shards(root / "in", {"b.tar": b"no tar at all" * 99})
    with pytest.raises(InputError):
        run_local(root, spec(["true"]))
    (report,) = (root / "out").glob(".dsort/*/report.json")
    options = dsort.RunOptions(root=root, workers=1, runs_code=False)
    with raises(CodeRefusedError, "on_shard"):
        dsort.resume(report.parent.name, "out", options=options)
