"""A job may use what its control groups leave it, whichever way they are set up; what its workers
may take for uploads follows from that."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from dsort.errors import StorageError
from dsort.storage.limit import StoreLimits
from tests.support.internals import (
    MemoryLimits,
    process_memory_bytes,
    usable_memory_bytes,
    with_part_sizes,
)
from tests.support.refusals import raises
from tests.support.small_places import control_group

GIB = 1 << 30
MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712
MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1048576 kB
MemAvailable:    8388608 kB
Buffers:               0 kB
Cached:          4194304 kB
HugePages_Total:       0
"""
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
HYBRID_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
OTHER_MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
"""


class Machine:
    """A tree that looks like ``/proc`` and ``/sys/fs/cgroup`` of a machine of 16 GiB."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.cgroup = directory / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(MEMINFO)

    def process(self, *, groups: str, mounts: str) -> None:
        (self.proc / "self" / "cgroup").write_text(groups)
        (self.proc / "self" / "mountinfo").write_text(OTHER_MOUNTS + mounts + "\n")

    def group(self, path: str, files: dict[str, int | str]) -> None:
        directory = self.cgroup / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_text(f"{content}\n")

    def limits(self) -> MemoryLimits:
        return usable_memory_bytes(self.proc, self.cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def v1(limit: int, usage: int = 0, *, cache: int = 0, inherited: int = UNLIMITED_V1) -> dict:
    stat = (
        f"cache 1\ninactive_file 1\nactive_file 2\nhierarchical_memory_limit {inherited}\n"
        f"total_inactive_file {cache // 2}\ntotal_active_file {cache - cache // 2}"
    )
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": usage,
        "memory.stat": stat,
    }


def v2(limit: int | str, usage: int = 0, *, cache: int = 0, high: int | str = "max") -> dict:
    return {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": usage,
        "memory.stat": f"anon 7\ninactive_file {cache}\nactive_file 0",
    }


def test_without_control_groups_the_machine_is_the_limit(machine: Machine) -> None:
    assert machine.limits() == MemoryLimits(16 * GIB, 16 * GIB, 8 * GIB)


def test_old_kernels_do_not_tell_what_is_available(machine: Machine) -> None:
    text = MEMINFO.replace("MemAvailable:    8388608 kB\n", "")
    (machine.proc / "meminfo").write_text(text)
    assert machine.limits().available_bytes == 5 * GIB


def test_no_meminfo_is_an_error(machine: Machine) -> None:
    (machine.proc / "meminfo").write_text("nothing")
    with raises(StorageError, "MemTotal"):
        machine.limits()
    (machine.proc / "meminfo").unlink()
    with raises(StorageError, str(machine.proc)):
        machine.limits()


def test_v1_limit_of_the_own_group(machine: Machine) -> None:
    machine.process(groups="4:memory:/job\n1:cpu:/x\n", mounts=V1_MOUNT.format(root="/"))
    machine.group("memory/job", v1(4 * GIB, 3 * GIB, cache=2 * GIB))
    machine.group("memory", v1(UNLIMITED_V1, 9 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 4 * GIB, 3 * GIB)


def test_v1_unlimited_groups_are_no_limit(machine: Machine) -> None:
    machine.process(groups="4:memory:/job\n", mounts=V1_MOUNT.format(root="/"))
    machine.group("memory/job", v1(UNLIMITED_V1, 9 * GIB))
    machine.group("memory", v1(UNLIMITED_V1, 9 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 16 * GIB, 8 * GIB)


def test_v1_a_limit_above_that_cannot_be_seen_counts(machine: Machine) -> None:
    machine.process(groups="4:memory:/\n", mounts=V1_MOUNT.format(root="/"))
    machine.group("memory", v1(UNLIMITED_V1, GIB, inherited=2 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 2 * GIB, 1 * GIB)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_the_smallest_limit_of_all_groups_above_counts(machine: Machine, kind: str) -> None:
    prefix, make = ("memory/", v1) if kind == "v1" else ("", v2)
    mount = V1_MOUNT if kind == "v1" else V2_MOUNT
    own = "4:memory:/a/b/c" if kind == "v1" else "0::/a/b/c"
    machine.process(groups=f"{own}\n", mounts=mount.format(root="/"))
    machine.group(f"{prefix}a", make(3 * GIB, 2 * GIB))  # others in it use most of it
    machine.group(f"{prefix}a/b", make(2 * GIB, 512 * MIB))
    machine.group(f"{prefix}a/b/c", make(5 * GIB, 256 * MIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 2 * GIB, 1 * GIB)


def test_v2_max_is_no_limit_and_page_cache_is_available(machine: Machine) -> None:
    machine.process(groups="0::/a/b\n", mounts=V2_MOUNT.format(root="/"))
    machine.group("a/b", v2("max", 7 * GIB))
    machine.group("a", v2(6 * GIB, 5 * GIB, cache=3 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 6 * GIB, 4 * GIB)


def test_v2_beyond_high_a_process_crawls_so_it_is_a_limit(machine: Machine) -> None:
    machine.process(groups="0::/a\n", mounts=V2_MOUNT.format(root="/"))
    machine.group("a", v2(6 * GIB, GIB, high=2 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, 2 * GIB, 1 * GIB)


def test_hybrid_mounts_are_read_side_by_side(machine: Machine) -> None:
    machine.process(
        groups="4:memory:/job\n0::/session\n",
        mounts=V1_MOUNT.format(root="/") + "\n" + HYBRID_MOUNT,
    )
    machine.group("memory/job", v1(2 * GIB, GIB))
    machine.group("unified/session", {"cgroup.procs": 1})  # no memory controller there
    assert machine.limits() == MemoryLimits(16 * GIB, 2 * GIB, 1 * GIB)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/docker/abc", "/"),  # the host's path, while the mount shows the container only
        ("/docker/abc", "/docker/abc"),  # the host's tree, mounted from the container's group on
        ("/", "/"),  # a namespace of its own
        ("/../../other", "/"),  # outside of the namespace
        ("/elsewhere", "/docker/abc"),
    ],
)
def test_a_container_that_sees_only_its_own_group(machine: Machine, path: str, root: str) -> None:
    machine.process(groups=f"0::{path}\n", mounts=V2_MOUNT.format(root=root))
    machine.group("", v2(GIB, 256 * MIB))
    machine.group("elsewhere", v2(MIB, 0))
    machine.group("..", v2(MIB, 0))
    assert machine.limits() == MemoryLimits(16 * GIB, GIB, 768 * MIB)


def test_a_group_below_a_container_s_root(machine: Machine) -> None:
    machine.process(groups="4:memory:/docker/abc/x\n", mounts=V1_MOUNT.format(root="/docker/abc"))
    machine.group("memory/x", v1(GIB, 0))
    assert machine.limits().limit_bytes == GIB


def test_more_in_use_than_the_limit_leaves_nothing(machine: Machine) -> None:
    machine.process(groups="0::/\n", mounts=V2_MOUNT.format(root="/"))
    machine.group("", v2(GIB, 2 * GIB))
    assert machine.limits() == MemoryLimits(16 * GIB, GIB, 0)


def test_mounts_elsewhere_and_with_spaces_are_found(machine: Machine, tmp_path: Path) -> None:
    point = str(tmp_path / "my groups")
    escaped = point.replace(" ", r"\040")
    machine.process(groups="0::/a\n", mounts=f"9 1 0:38 / {escaped} rw - cgroup2 none rw")
    (tmp_path / "my groups" / "a").mkdir(parents=True)
    (tmp_path / "my groups" / "a" / "memory.max").write_text(f"{GIB}\n")
    assert machine.limits().limit_bytes == GIB


def test_odd_lines_are_passed_over(machine: Machine) -> None:
    machine.process(groups="\nodd\n4:memory\n", mounts="odd line\n- -\n1 2 3 4 5 6 - cgroup2")
    assert machine.limits().limit_bytes == 16 * GIB


CHILD = """
import sys
from pathlib import Path
from dsort.job.setup.resources import usable_memory_bytes
file = Path(sys.argv[1])
file.write_bytes(bytes(48 << 20))
found = usable_memory_bytes()
print(found.limit_bytes, found.available_bytes)
"""


@pytest.mark.disk
def test_a_process_in_a_real_group_sees_its_limit(tmp_path: Path) -> None:
    limit = 100 * MIB
    with control_group("memory", {"memory.max": limit}) as group:
        enter = f"echo $$ > '{group}/cgroup.procs' && exec \"$@\""
        output = subprocess.run(
            ["sh", "-c", enter, "sh", sys.executable, "-c", CHILD, str(tmp_path / "file")],
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        ).stdout
    seen_limit, available = map(int, output.split())
    assert seen_limit == limit
    # The file's 48 MiB lie in the page cache, and are available all the same.
    assert limit - 30 * MIB < available < limit


def test_a_process_knows_what_it_holds_itself(machine: Machine) -> None:
    before = process_memory_bytes()
    # Mapped by itself: malloc may have as much left of what the process held before.
    with mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for at in range(0, 64 * MIB, mmap.PAGESIZE):
            held[at] = 1
        assert 60 * MIB < process_memory_bytes() - before < 100 * MIB
    assert process_memory_bytes(machine.proc) == 0  # not reported


@pytest.mark.parametrize(
    ("memory_mib", "workers", "part_mib", "large_mib"),
    [
        (16_384, 4, 16, 64),
        (2048, 2, 16, 0),
        (512, 2, 16, 0),
        (256, 2, 8, 0),
        (100, 2, 5, 0),
        (16_384, 64, 16, 0),
    ],
)
def test_parts_take_an_eighth_of_the_memory_and_a_sixteenth_of_that_for_small_rests(
    memory_mib: int, workers: int, part_mib: int, large_mib: int
) -> None:
    limits = with_part_sizes(StoreLimits(), memory_mib * MIB, workers_a_node=workers)
    assert limits.part_bytes == part_mib * MIB
    assert limits.part_bytes_max == large_mib * MIB
    if part_mib > 5:
        assert limits.upload_bytes * 16 // 17 * workers * 8 <= memory_mib * MIB


def test_parts_that_were_set_smaller_stay_so() -> None:
    set_small = StoreLimits(part_bytes=6 * MIB)
    assert with_part_sizes(set_small, 512 * MIB, workers_a_node=2).part_bytes == 6 * MIB
