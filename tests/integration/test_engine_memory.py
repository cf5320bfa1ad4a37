"""A job with more data than memory: it chooses ``spill`` by itself, stays within its limit, ends,
and every record is there. Under a real limit: a control group of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from tests.support.commands import ROOT
from tests.support.datasets import END, Member, files_of, read_shard
from tests.support.engine import spec_of

LIMIT_BYTES = 200 << 20
SHARD_BYTES = 32 << 20
SHARDS = 20
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with ``LIMIT_BYTES`` of memory, of either generation."""
    first = (CGROUPS / "memory").is_dir()
    group = (CGROUPS / "memory" if first else CGROUPS) / f"dsort-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if first else "memory.max")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            limit.write_text(str(LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"no memory limit can be set here: {error}")
        yield group
    finally:
        group.rmdir()  # fails if a process of the job were left in it


def write_data(directory: Path) -> Counter[str]:
    """Shards of records of 1 KB to 400 KB, out of the page cache; how often each digest occurs."""
    rng = random.Random("memory")
    noise = rng.randbytes(1 << 20)
    digests: Counter[str] = Counter()
    directory.mkdir()
    for shard in range(SHARDS):
        with (directory / f"in-{shard:03d}.tar").open("wb") as file:
            while file.tell() < SHARD_BYTES:
                start = rng.randrange(500_000)
                size = rng.choice([1000, 20_000, 100_000, 400_000])
                key = f"{shard:03d}-{file.tell():09d}"
                made = Member(f"{key}.bin", key.encode() + noise[start : start + size])
                file.write(made.raw)
                digests[xxhash.xxh3_64_hexdigest(made.raw)] += 1
            file.write(END)
            file.flush()
            os.fdatasync(file.fileno())
            # Pages that the limit does not count would make the job's life easier.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digests


@pytest.mark.slow
def test_three_times_the_memory_is_spilled_and_nothing_is_lost(
    memory_group: Path, tmp_path: Path
) -> None:
    digests = write_data(tmp_path / "in")
    spec = spec_of(
        algorithm={"kind": "shuffle", "seed": 1},
        output_shard_records=None,
        output_shard_size="32MB",
    )
    command = [sys.executable, "-m", "dsort", "start", "-f", json.dumps(spec), "--json"]
    # The shell goes into the group, and then becomes dsort.
    enter = 'echo $$ > "$0" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, memory_group / "cgroup.procs", *command, "--progress", "none"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["move"] == "spill"
    assert report["records"] == sum(digests.values())
    found = Counter(
        xxhash.xxh3_64_hexdigest(member.raw)
        for path in sorted((tmp_path / "out").glob("*.tar"))
        for member in read_shard(path.read_bytes())
    )
    assert found == digests
    assert {path.name for path in (tmp_path / "out" / ".dsort").rglob("*") if path.is_file()} == {
        "manifest.json"
    }
    assert len(files_of(tmp_path / "in")) == SHARDS
