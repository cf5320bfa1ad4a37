"""A fault that cannot strike fails the test that armed it, or a crash test could not fail; buckets
that fail on purpose fail as they are set, the same way every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsort.errors import (
    TransientStorageError,
)
from dsort.storage.bucket import Bucket
from tests.support import armed
from tests.support.armed import NoSuchPointError
from tests.support.commands import ROOT
from tests.support.fault_points import (
    POINTS,
    Point,
    PointFault,
    arm,
    check_point,
    points_environment,
    struck,
)
from tests.support.faulty_bucket import (
    ALWAYS,
    TRANSIENT,
    Fault,
    FaultyBucket,
    RandomFaults,
)
from tests.support.faulty_store import OPENED, StoreFaults, arm_store
from tests.support.forked_commands import run_pytest
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises

PASS = """
from pathlib import Path
from dsort.results.lease import Machine
from dsort.storage.open import LocalBucket
LocalBucket(Path("."))
Machine().pause(0)
"""


def test_every_point_is_a_function_that_there_is() -> None:
    for point in POINTS.values():
        check_point(point)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("dsort.job.gone", "commit"),
        ("dsort.job.commit", "gone"),
        ("dsort.job.commit", "Gone.commit"),
        ("dsort.results.lease", "Lease.gone"),
    ],
)
def test_a_point_at_nothing_cannot_be_armed(
    module: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POINTS, "commit:start", Point(module, function, "before"))
    with pytest.raises(NoSuchPointError, match=r"gone|Gone"):
        arm(tmp_path, PointFault("commit:start"))
    assert armed.missed() == []


def test_a_process_with_a_point_at_nothing_does_not_begin(tmp_path: Path) -> None:
    """Nor does one of a job that is begun without ``arm``."""
    program = (
        "from tests.support import fault_points as f\n"
        "f.POINTS['lease:take'] = f.Point('dsort.results.lease', 'Lease.gone', 'after')\n"
        "import dsort.results.lease"
    )
    ended = run(tmp_path, program)
    assert ended.returncode == 1
    assert "NoSuchPointError: there is no dsort.results.lease: Lease.gone" in ended.stderr


def run(points: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A process that meets the faults in ``points``."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **points_environment(points)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_has_struck_is_expected_no_more(tmp_path: Path) -> None:
    points = arm(tmp_path, PointFault("lease:pause", action="raise"))
    denied = {"operation": "exists", "kind": "denied", "times": ALWAYS}
    arm_store(points, StoreFaults([denied]))
    ended = run(points, PASS + "LocalBucket(Path('.')).exists('x')")
    assert "a bug that a test put here" in ended.stderr
    assert struck(points) == ["lease:pause"]
    (missed,) = armed.missed()
    assert "denied" in missed  # the bug came first
    assert (points / OPENED).exists()


def test_what_has_not_struck_is_reported_once(tmp_path: Path) -> None:
    fault = PointFault("commit:start", 2)
    arm(tmp_path / "a", fault, PointFault("lease:take"))
    arm(tmp_path / "b", fault, may_miss=True)
    assert armed.missed() == [
        f"{each} in {tmp_path / 'a'}" for each in (fault, PointFault("lease:take"))
    ]
    assert armed.missed() == []


ARMED_IN_VAIN = """
from pathlib import Path
from tests.support.fault_points import PointFault, arm

def test_armed_in_vain(tmp_path: Path) -> None:
    arm(tmp_path, PointFault("commit:start"))

def test_that_arms_nothing() -> None:
    pass
"""


@pytest.mark.exhaustive
def test_a_test_whose_fault_does_not_strike_fails(tmp_path: Path) -> None:
    (tmp_path / "test_vain.py").write_text(ARMED_IN_VAIN)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    ended = run_pytest(
        ["-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.code == 1
    assert "these faults have not struck: [\"PointFault(point='commit:start'" in ended.out
    assert "1 failed, 1 passed" in ended.out


def read_into(bucket: Bucket, name: str, size_bytes: int = 10) -> bytearray:
    buffer = bytearray(b"?" * size_bytes)
    with bucket.open(name) as opened:
        opened.read_into(memoryview(buffer), 0)
    return buffer


def staged(bucket: Bucket, *pieces: bytes) -> int:
    """Publishes ``pieces`` as "a"; returns how long it was said to be."""
    with bucket.stage(".dsort/j/0", name="a") as opened:
        offset = 0
        for piece in pieces:
            opened.write_at(offset, [piece])
            offset += len(piece)
        reported_bytes = opened.size_bytes()
        receipt = opened.finish()
    bucket.publish(".dsort/j/0", "a", overwrite=True, receipt=receipt)
    return reported_bytes


def outcomes(bucket: FaultyBucket, calls: int) -> list[str]:
    found = []
    for number in range(calls):
        try:
            found.append(bucket.read(f"shard-{number % 3}").decode())
        except TransientStorageError as error:
            found.append(error.message.split(": ")[-1])
    return found


def test_a_script_is_kept_to() -> None:
    """The third read of shard-2 fails twice."""
    faulty = FaultyBucket(MemoryBucket(), [Fault("read_into", "503", "shard-2", first=3, times=2)])
    for name in ("shard-1", "shard-2"):
        faulty.write(name, bytes(10))
    seen = []
    for _ in range(6):
        read_into(faulty, "shard-1")
        try:
            read_into(faulty, "shard-2")
            seen.append("")
        except TransientStorageError as error:
            seen.append(error.message)
    message = "read_into of shard-2 in memory://test: 503 SlowDown"
    assert seen == ["", "", message, message, "", ""]
    assert faulty.struck == [("read_into", "shard-2", "503")] * 2


@pytest.mark.parametrize("kind", TRANSIENT)
def test_transient_faults_strike_before_anything_is_done(kind: str) -> None:
    faulty = FaultyBucket(MemoryBucket(), [Fault("write", kind)])
    with raises(TransientStorageError, "memory://test"):
        faulty.write("a", b"x")
    assert list(faulty.inner.list()) == []


def test_a_lost_reply_is_lost_after_the_effect() -> None:
    operations = ["write", "write_new", "publish", "delete"]
    faulty = FaultyBucket(MemoryBucket(), [Fault(each, "reply lost") for each in operations])
    with pytest.raises(TransientStorageError):
        faulty.write("w", b"x")
    with pytest.raises(TransientStorageError):
        faulty.write_new("n", b"x")
    with pytest.raises(TransientStorageError):
        staged(faulty, b"x")
    with pytest.raises(TransientStorageError):
        faulty.delete("w")
    assert [info.name for info in faulty.list()] == ["a", "n"]


def test_sizes_and_etags_lie_by_every_door() -> None:
    doors = ("stat", "stat_many", "list", "open")
    for kind in ("size", "etag"):
        faulty = FaultyBucket(MemoryBucket(), [Fault(door, kind) for door in doors])
        faulty.write("a", b"x")
        true = faulty.inner.stat("a")
        seen = [faulty.stat("a"), faulty.stat_many(["a"])["a"], *faulty.list()]
        with faulty.open("a") as opened:
            seen.append(opened.info)
        for info in seen:
            assert (info.size_bytes == 2, info.etag == true.etag) == (
                kind == "size",
                kind == "size",
            )
        assert faulty.stat("a") == true


# --- by chance ---------------------------------------------------------------------------------


def test_chance_is_the_same_for_the_same_seed_only(capsys: pytest.CaptureFixture[str]) -> None:
    memory = MemoryBucket()
    for number in range(3):
        memory.write(f"shard-{number}", b"fine")
    runs = [outcomes(FaultyBucket(memory, RandomFaults(seed, rate=0.5)), 60) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert {"fine", "503 SlowDown", "the connection was reset"} <= set(runs[0])
    assert "seed=2" in capsys.readouterr().err


# --- slow --------------------------------------------------------------------------------------
