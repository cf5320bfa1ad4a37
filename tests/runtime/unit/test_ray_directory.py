"""The directory of a Ray of one's own, who has it, and what sees to its end. No Ray is needed for
that: any process that writes to a file there is one of it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import asdict, replace

from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import ROOT
from tests.support.internals import (
    FILES_CHARACTERS_MAX,
    OWNER_BYTES_MAX,
    YOUNG_S,
    Machine,
    begin_watchdog,
    discard_ray_directory,
    end_holders,
    end_watchdog,
    find_garbage,
    holders,
    make_ray_directory,
    note_owner,
    ray_files,
    rays_left,
    remove_garbage,
    remove_ray_directory,
)

HOLD = "import sys; held = [open(p, m) for p, m in [sys.argv[1:3]]]; print(flush=True); input()"
OWN = """
import os, subprocess, sys
from pathlib import Path
from dsort.runtime.ray.watchdog import begin_watchdog
directory = Path(sys.argv[1])
watchdog = begin_watchdog(directory)
held = subprocess.Popen(
    [sys.executable, "-c", sys.argv[2], str(directory / "log"), "w"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
)
held.stdout.readline()
print(watchdog.pid, held.pid, flush=True)
if sys.argv[3] == "close":
    os.close(watchdog.stdin.fileno())
    print("closed", flush=True)
input()
"""


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as directory:  # for short paths
        yield Path(directory)


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def begin(begun: list[subprocess.Popen[str]], *arguments: object) -> subprocess.Popen[str]:
    """A Python program that reads its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    begun.append(process)
    return process


def hold(begun: list[subprocess.Popen[str]], path: Path, mode: str) -> psutil.Process:
    """A process that has ``path`` open."""
    process = begin(begun, HOLD, path, mode)
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    return psutil.Process(process.pid)


def left(base: Path, owner: int = 0) -> Path:
    """A directory whose owner is gone."""
    path = make_ray_directory(base)
    (ray_files(path) / "session").mkdir()
    (ray_files(path) / "session" / "log").write_text("said")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    note_owner(path, replace(Machine().holder(), pid=owner or ended.pid))
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- whose it is ----------------------------------------------------------------------------------


def test_a_directory_is_for_its_owner_alone_whatever_ray_does_within(base: Path) -> None:
    before = os.umask(0)
    try:
        path = make_ray_directory(base)
    finally:
        os.umask(before)
    ray_files(path).chmod(0o777)  # as Ray does
    assert mode_of(path) == 0o700
    assert path.stat().st_uid == os.geteuid()
    assert len(str(ray_files(path))) <= FILES_CHARACTERS_MAX


def test_one_whose_owner_is_there_is_left_alone(base: Path) -> None:
    path = make_ray_directory(base)
    assert list(rays_left(base)) == []
    remove_ray_directory(path)
    assert path.exists()


def test_one_whose_owner_is_gone_is_removed(base: Path) -> None:
    path = left(base)
    assert [each.path for each in rays_left(base)] == [path]
    remove_ray_directory(path)
    assert list(base.iterdir()) == []
    remove_ray_directory(path)


def test_what_still_runs_of_it_is_ended_first_and_no_reader_is(
    base: Path, begun: list[subprocess.Popen[str]]
) -> None:
    path = left(base)
    log = ray_files(path) / "session" / "log"
    reader, writer = hold(begun, log, "r"), hold(begun, log, "a")
    assert holders(path) == [writer.pid]
    assert [each.processes for each in rays_left(base)] == [1]
    remove_ray_directory(path)
    assert writer.status() == psutil.STATUS_ZOMBIE
    assert reader.status() != psutil.STATUS_ZOMBIE
    assert not path.exists()


def test_all_directories_are_found_by_one_look_at_the_processes(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(left(base) for _ in range(3))
    looks: list[object] = []
    scan = os.scandir

    def counted(path: Any) -> Any:
        looks.extend([path] * (path == "/proc"))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert [each.path for each in rays_left(base)] == paths
    assert looks == ["/proc"]


@pytest.mark.parametrize(
    "changes",
    [{"host": "another"}, {"boot_id": f"{Machine().holder().boot_id}1"}, {"pid": os.getpid()}],
    ids=["host", "boot", "pid"],
)
def test_no_process_decides_for_another_machine_or_container(
    base: Path, changes: dict[str, str]
) -> None:
    path = left(base)
    note_owner(path, replace(Machine().holder(), **{"pid": 1 << 22, **changes}))  # type: ignore[arg-type]
    assert list(rays_left(base)) == []


def test_one_of_before_the_machine_was_started_again_is_left_behind(base: Path) -> None:
    path = make_ray_directory(base)
    note_owner(path, replace(Machine().holder(), boot_id="before/1"))
    assert [each.path for each in rays_left(base)] == [path]


def test_links_are_not_followed(base: Path) -> None:
    precious = base / "precious"
    precious.mkdir()
    (precious / "file").touch()
    path = left(base)
    (path / "link").symlink_to(precious)
    (base / "dsort-ray-link").symlink_to(path)
    (base / "dsort-ray-file").touch()
    assert [each.path for each in rays_left(base)] == [path]
    remove_ray_directory(base / "dsort-ray-link")
    assert path.exists()
    remove_ray_directory(path)
    assert (precious / "file").exists()


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"pid": 1}',
        b"[" * 4000,
        json.dumps({**asdict(Machine().holder()), "pid": 1 << 80}).encode(),
        json.dumps({**asdict(Machine().holder()), "pid": -1}).encode(),
        json.dumps(asdict(Machine().holder())).encode() + b" " * OWNER_BYTES_MAX + b"1",
        "link",
        "fifo",
    ],
    ids=lambda said: str(said)[:20],
)
def test_an_owner_that_makes_no_sense_is_none(base: Path, said: bytes | str) -> None:
    path = left(base)
    (path / "owner.json").unlink()
    if said == "link":
        (path / "owner.json").symlink_to("/proc/self/stat")
    elif said == "fifo":
        os.mkfifo(path / "owner.json")
    else:
        assert isinstance(said, bytes)
        (path / "owner.json").write_bytes(said)
    assert list(rays_left(base)) == [], "a starting owner may be about to say"
    long_ago_s = Machine().now_s() - YOUNG_S - 1
    os.utime(path, (long_ago_s, long_ago_s))
    found = [each.path for each in rays_left(base)]
    assert found == [path]


def test_what_runs_has_an_owner_even_if_that_is_not_noted(
    base: Path, begun: list[subprocess.Popen[str]]
) -> None:
    path = left(base)
    (path / "owner.json").unlink()
    hold(begun, ray_files(path) / "session" / "log", "a")
    os.utime(path, (0, 0))
    assert list(rays_left(base)) == []


def test_garbage_is_what_is_left_of_rays_and_says_so(
    base: Path, begun: list[subprocess.Popen[str]]
) -> None:
    bucket = LocalBucket(base / "out")
    bucket.create()
    live, dead = make_ray_directory(base), left(base)
    hold(begun, ray_files(dead) / "session" / "log", "a")
    (found,) = find_garbage(bucket, ray_bases=[base, base])
    assert (found.kind, found.where, found.objects, found.size_bytes >= 4) == (
        "ray", str(dead), 2, True
    )  # fmt: skip
    assert "1 process" in found.what
    remove_garbage(bucket, found)
    assert not dead.exists()
    assert live.exists()


# --- the watchdog ---------------------------------------------------------------------------------


def gone(*pids: int) -> bool:
    """Whether all of them end within ten seconds."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_ray_ends_with_its_owner_whatever_that_died_of(
    base: Path, begun: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    path = make_ray_directory(base)
    owner = begin(begun, OWN, path, HOLD, "session")
    assert owner.stdout is not None
    watchdog, held = map(int, owner.stdout.readline().split())
    assert holders(path) == [held]
    owner.send_signal(number)
    owner.wait()
    assert gone(watchdog, held)
    assert not path.exists()


@pytest.mark.exhaustive
def test_an_owner_that_closes_all_it_has_open_keeps_its_ray(
    base: Path, begun: list[subprocess.Popen[str]]
) -> None:
    path = make_ray_directory(base)
    owner = begin(begun, OWN, path, HOLD, "close")
    assert owner.stdout is not None
    watchdog, held = map(int, owner.stdout.readline().split())
    assert owner.stdout.readline() == "closed\n"
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(watchdog).wait(1.5)  # more than one look
    assert holders(path) == [held]
    owner.kill()
    owner.wait()
    assert gone(watchdog, held)
    assert not path.exists()


def test_a_watchdog_that_is_not_needed_touches_nothing(
    base: Path, begun: list[subprocess.Popen[str]]
) -> None:
    path = make_ray_directory(base)
    held = hold(begun, path / "log", "w")
    watchdog = begin_watchdog(path)
    end_watchdog(watchdog)
    end_watchdog(watchdog)
    assert watchdog.returncode == 0
    assert holders(path) == [held.pid]
    end_holders(path, spare=held.pid)
    assert holders(path) == [held.pid]
    discard_ray_directory(path)
    assert held.status() == psutil.STATUS_ZOMBIE
    assert list(base.iterdir()) == []
