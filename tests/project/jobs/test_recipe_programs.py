"""Recipes whose members are what programs write: on this machine alone, whole or not at all."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import ForbiddenError, InputError, JobStoppedError, SpecError
from dsort.options import RunOptions
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from tests.support.commands import CommandLine
from tests.support.engine import refused, run_local
from tests.support.internals import programs
from tests.support.loose_files import contents_out, ingest_spec, write_tree
from tests.support.refusals import raises
from tests.support.service_process import await_that

pytestmark = pytest.mark.usefixtures("workers_here")


def spec_with(root: Path, *lines: str, **fields: Any) -> dict[str, Any]:
    write_tree(root, {"in/a.jpg": b"a", "recipe.txt": "\n".join(lines).encode()})
    recipe = {"recipe": str(root / "recipe.txt"), "pipes": True}
    return ingest_spec(ingest=recipe, **fields)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_what_programs_write_is_in_the_members(tmp_path: Path) -> None:
    lines = ["1.jpg a.jpg", "1.txt pipe:printf '%s b' a", "2.jpg a.jpg", "2.txt pipe:true"]
    report = run_local(tmp_path, spec_with(tmp_path, *lines))
    found = {"1.jpg": b"a", "1.txt": b"a b", "2.jpg": b"a", "2.txt": b""}
    assert contents_out(tmp_path) == found
    (path,) = tmp_path.glob(f"out/.dsort/{report.job_id}/manifest.json")
    verified = dsort.verify(path.read_bytes(), options=RunOptions(root=tmp_path))
    assert verified.problems == ()
    assert "what programs wrote" in verified.warnings[0]


def test_no_shell_reads_a_line(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, "1.txt pipe:echo $HOME > x | cat; `id`")
    run_local(tmp_path, spec)
    assert contents_out(tmp_path) == {"1.txt": b"$HOME > x | cat; `id`\n"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("2.txt pipe:python3 -c 'print(1); raise SystemExit(\"no more\")'", "no more"),
        ("2.txt pipe:python3 -c 'import os; os.kill(os.getpid(), 9)'", "signal 9"),
        ("2.txt pipe:", "line 2"),
        ("2.txt pipe:'x", "'x"),
        ("2.txt pipe:/nowhere/program", "line 2"),
        ("2.txt pipe:head -c 2000 /dev/zero", "1000 B"),
    ],
)
def test_a_program_that_fails_ends_the_job(
    line: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "BYTES_MAX", 1000)
    spec = spec_with(tmp_path, "1.jpg a.jpg", line)
    with refused(tmp_path, InputError, named):
        run_local(tmp_path, spec)


def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    code = (
        "import os, time; pid = os.fork(); "
        f"pid and open({str(tmp_path / 'pid')!r}, 'w').write(str(pid)); pid or time.sleep(600)"
    )
    line = f'1.txt pipe:{sys.executable} -c "{code}"'
    spec = spec_with(tmp_path, line)
    with StopFlag() as stop:
        # What it left holds its standard output open, so that it never comes to an end.
        def end() -> None:
            await_that(lambda: (tmp_path / "pid").exists() or None)
            stop.request(15, "a test")

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(JobStoppedError):
            run_local(tmp_path, spec, stop=stop)
        thread.join()
    pid = int((tmp_path / "pid").read_text())
    await_that(lambda: is_gone(pid) or None)


def test_programs_are_of_specs_of_this_machine(tmp_path: Path, cli: CommandLine) -> None:
    spec = parse_spec(spec_with(tmp_path, "1.txt pipe:echo 1")).spec
    with pytest.raises(ForbiddenError, match=r"ingest\.pipes"):
        check_spec(spec, SpecPolicy(root=tmp_path))
    with raises(SpecError, paths=["ingest.pipes"]):
        parse_spec(ingest_spec(ingest={"pipes": True}))
    place = ("in", "out", "--recipe", "recipe.txt", "--shard-records", "2")
    ended = cli("ingest", *place)
    assert (ended.code, "may run no programs" in ended.err) == (3, True)
    assert cli("ingest", *place, "--pipes").code == 0
    assert contents_out(tmp_path) == {"1.txt": b"1\n"}
