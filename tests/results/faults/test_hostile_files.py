"""Files that dsort reads back, as a stranger may have left them: every verb ends with a code and
words, never with a traceback, and touches nothing but the bucket."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import StorageError
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import CommandLine
from tests.support.coordinators import Coordinators
from tests.support.datasets import tree_of
from tests.support.fault_points import PointFault, arm
from tests.support.internals import attempt_name, lease_name, manifest_name
from tests.support.surviving import CASES, job_in, prepare, start_arguments

CODES = {0, 2, 3, 4, 5}
"""What these verbs may end with: 1 is a bug."""
JSON_ROUNDS = (8, 30)
RESUMES = (4, 8)
"""Usually, and with ``--all``."""
ENDS = {"died": "kill parent", "aborted": "raise"}
VICTIM = "victim"
OUR_DATA = ("index-", "ordered-", "spill-", "survey-")
"""No stranger can write to scratch, and the content of these is checked by what a plan has to add
up to: that it does not is a bug."""
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 40,
    1 << 70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "\ud800",
    "\x1b[2J",
    "../../victim/precious",
    "/etc/passwd",
    ".dsort/other/manifest.json",
    "in-0.tar",
    [],
    {},
    [[]],
    {"all": 7},
    {"of": [], "at": [1]},
)


@pytest.fixture(scope="module")
def remains(
    begun: Coordinators, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Path], None]:
    """Makes what is left of a job that died, was aborted, or has finished, in a directory."""
    known: dict[str, Path] = {}

    def make(how: str) -> Path:
        root, case = tmp_path_factory.mktemp(how), CASES["renamed"]
        prepare(root, case)
        faults = [PointFault("create:finish", 3, ENDS[how])] if how in ENDS else []
        points = arm(root / "points", *faults)
        ended = begun.run(root, *start_arguments(case), points=points, flush_s=0)
        assert (ended.code == 0) is (how == "finished"), ended.err
        return root

    def copy(how: str, to: Path) -> None:
        if how not in known:
            known[how] = make(how)
        shutil.copytree(known[how] / "out", to / "out", symlinks=True)
        (to / "in").symlink_to(known[how] / "in")  # a copy would be another input
        (to / VICTIM).mkdir()
        (to / VICTIM / "precious").write_bytes(b"years of work")

    return copy


def mutated(rng: random.Random, content: Any) -> Any:
    """``content`` with one of its values replaced, wherever it is."""
    if isinstance(content, dict) and content and rng.random() < 0.9:
        name = rng.choice(list(content))
        if rng.random() < 0.1:
            return {key: value for key, value in content.items() if key != name}
        return {**content, name: mutated(rng, content[name])}
    if isinstance(content, list) and content and rng.random() < 0.9:
        at = rng.randrange(len(content))
        return [*content[:at], mutated(rng, content[at]), *content[at + 1 :]]
    return rng.choice(HOSTILE_VALUES)


def strike(rng: random.Random, path: Path) -> str:
    """Do something to a file; what."""
    data = path.read_bytes()
    way = rng.choice(["json", "json", "json", "json", "bytes", "cut", "whole"])
    if way == "json" and path.suffix in (".json", ""):
        try:
            document = json.dumps(mutated(rng, json.loads(data)))
        except ValueError:
            document = "[" * 100_000
        path.write_text(document, encoding="utf-8")
        return f"{path.name}: {document[:3000]}"
    if way == "cut":
        path.write_bytes(data[: rng.randrange(len(data) + 1)])
    elif way == "whole":
        made = rng.choice([b"", b"[" * 100_000, b"{}", b"null", b"\0" * 4096, b"\xff\xfe"])
        path.write_bytes(made)
    else:
        broken = bytearray(data or b"x")
        for _ in range(rng.randint(1, 8)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken)
    return f"{path.name}: {way}"


def hostile_files(root: Path, *, scratch: bool) -> list[Path]:
    """What dsort reads back of the one job."""
    below = root / "out" / ".dsort" / job_in(root / "out")
    found = [path for path in sorted(below.rglob("*")) if path.is_file()]
    index = sorted((root / "out").glob("*-index.json"))
    return [
        *(
            path
            for path in found
            if "staged" not in path.parts
            and ("scratch" not in path.parts or (scratch and not path.name.startswith(OUR_DATA)))
        ),
        *index,
    ]


def untouched(root: Path) -> dict[str, bytes]:
    return {**tree_of(root / VICTIM), **tree_of(root / "in")}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("how", ["died", "aborted", "finished"])
def test_looking_at_a_job_whose_files_were_changed(
    how: str,
    remains: Callable[[str, Path], None],
    cli: CommandLine,
    tmp_path: Path,
    rounds: Callable[[int, int], int],
    rng: random.Random,
) -> None:
    remains(how, tmp_path)
    job, before = job_in(tmp_path / "out"), untouched(tmp_path)
    codes: set[int] = set()
    for turn in range(100):
        if turn >= rounds(*JSON_ROUNDS) and codes & {3, 4}:
            break
        path = rng.choice(hostile_files(tmp_path, scratch=False))
        data = path.read_bytes()
        what = strike(rng, path)
        verbs = [["show", job], ["show", job, "--json"], ["verify", job], ["gc", "out"]]
        if how == "finished":
            verbs += [["show", job, "--html", str(tmp_path / "page.html"), "--overwrite"]]
        for verb in verbs:
            ended = cli(*verb, "--bucket", "out") if verb[0] in ("show", "verify") else cli(*verb)
            codes.add(ended.code)
            assert ended.code in CODES, (verb, what, ended.err)
            assert "Traceback" not in ended.err
            assert "\x1b[2J" not in ended.out + ended.err, (verb, what)
        path.write_bytes(data)
    assert untouched(tmp_path) == before
    assert codes & {3, 4}


@pytest.mark.parametrize("how", ["died", "aborted"])
def test_resuming_a_job_whose_files_were_changed(
    how: str,
    remains: Callable[[str, Path], None],
    cli: CommandLine,
    tmp_path: Path,
    rounds: Callable[[int, int], int],
    rng: random.Random,
) -> None:
    remains(how, tmp_path)
    job, before = job_in(tmp_path / "out"), untouched(tmp_path)
    shutil.copytree(tmp_path / "out", tmp_path / "kept", symlinks=True)
    for turn in range(rounds(*RESUMES)):
        what = strike(rng, rng.choice(hostile_files(tmp_path, scratch=True)))
        verb = ["stop", job, "--bucket", "out"] if turn % 4 == 3 else None
        ended = cli(
            *(verb or ["resume", job, "--bucket", "out", "--workers", "1", "--progress", "none"])
        )
        assert ended.code in CODES, (what, ended.err)
        gone = cli("gc", "out", "--remove", "--older-than", "0s")
        assert gone.code in CODES, (what, gone.err)
        assert untouched(tmp_path) == before
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(tmp_path / "kept", tmp_path / "out", symlinks=True)


def test_splitters_that_were_changed_are_refused(
    remains: Callable[[str, Path], None], cli: CommandLine, tmp_path: Path
) -> None:
    remains("died", tmp_path)
    job = job_in(tmp_path / "out")
    (path,) = (tmp_path / "out").glob(".dsort/*/journal/shared-splitters.col")
    path.write_bytes(path.read_bytes()[:-1] + b"\1")  # padding, which no reader looks at
    ended = cli("resume", job, "--bucket", "out", "--workers", "1", "--progress", "none")
    assert ended.code == StorageError.exit_code, ended.err
    assert f"splitters.col of job {job} was changed since the job wrote it" in ended.err
    assert "start it again" in ended.err


@pytest.mark.parametrize("count", ["records", "stored_bytes"])
def test_a_journal_whose_counts_were_changed_is_refused(
    count: str, remains: Callable[[str, Path], None], cli: CommandLine, tmp_path: Path
) -> None:
    remains("died", tmp_path)
    job = job_in(tmp_path / "out")
    changed = 0
    for path in (tmp_path / "out").glob(".dsort/*/journal/*.json"):
        entry = json.loads(path.read_bytes())
        for event in entry.get("events", ()):
            if event["kind"] == "ShardExtracted":
                event[count][0] = 1 << 40
                changed += 1
        path.write_text(json.dumps(entry))
    assert changed
    ended = cli("resume", job, "--bucket", "out", "--workers", "1", "--progress", "none")
    assert ended.code == StorageError.exit_code, ended.err
    assert f"journal of job {job} does not match its scratch" in " ".join(ended.err.split())


def _terabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("strange", [_terabytes, _pipe, _link], ids=lambda each: each.__name__)
def test_what_is_no_small_file_is_not_read(
    strange: Callable[[Path], None],
    remains: Callable[[str, Path], None],
    cli: CommandLine,
    tmp_path: Path,
) -> None:
    remains("died", tmp_path)
    job = job_in(tmp_path / "out")
    segment = sorted((tmp_path / "out" / ".dsort" / job / "journal").glob("0001-*"))[0]
    for path in (segment, tmp_path / "out" / lease_name(job)):
        strange(path)
        assert cli("show", job, "--bucket", "out").code in CODES
        assert cli("resume", job, "--bucket", "out", "--progress", "none").code in {3, 4}


def test_a_manifest_or_an_index_of_terabytes_is_not_read(
    remains: Callable[[str, Path], None], cli: CommandLine, tmp_path: Path
) -> None:
    remains("finished", tmp_path)
    job = job_in(tmp_path / "out")
    _terabytes(tmp_path / "out" / f"{job}-index.json")
    assert cli("verify", job, "--bucket", "out").code == 4
    _terabytes(tmp_path / "out" / manifest_name(job))
    for verb in (["show"], ["verify"], ["resume"], ["show", "--html", "page.html"]):
        ended = cli(*verb[:1], job, "--bucket", "out", *verb[1:])
        assert ended.code == 4, (verb, ended.err)
        assert "1,099,511,627,776" in ended.err


def _of_another_place(accepted: dict[str, Any]) -> None:
    accepted["spec"]["output_bck"] = "victim"
    accepted["spec"]["overwrite"] = True


def test_a_job_that_writes_somewhere_else_is_not_resumed(
    remains: Callable[[str, Path], None], cli: CommandLine, tmp_path: Path
) -> None:
    remains("aborted", tmp_path)
    job, before = job_in(tmp_path / "out"), untouched(tmp_path)
    path = tmp_path / "out" / ".dsort" / job / "report.json"
    document = json.loads(path.read_bytes())
    _of_another_place(document["resume"]["accepted"])
    path.write_text(json.dumps(document))
    ended = cli("resume", job, "--bucket", "out", "--progress", "none")
    assert ended.code == 2
    assert "victim" in ended.err
    assert untouched(tmp_path) == before


@pytest.mark.parametrize("number", ["9" * 9, "٣٣٣٣", "9" * 200, "-001"])
def test_attempts_with_strange_numbers(
    number: str, remains: Callable[[str, Path], None], cli: CommandLine, tmp_path: Path
) -> None:
    remains("died", tmp_path)
    job = job_in(tmp_path / "out")
    before, _, behind = attempt_name(job, 0).rpartition("0000")  # a job's id may have that, too
    LocalBucket(tmp_path / "out").write(f"{before}{number}{behind}", b"{}")
    ended = cli("resume", job, "--bucket", "out", "--progress", "none", "--workers", "1")
    assert ended.code == (4 if number == "9" * 9 else 0), ended.err
