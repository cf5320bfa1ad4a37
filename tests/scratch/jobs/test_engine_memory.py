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

from dsort.errors import SpecError
from tests.support.commands import ROOT
from tests.support.datasets import END, Member, files_of, read_shard, write_shards
from tests.support.disks import really_written
from tests.support.engine import plan_local, run_local, shard_of, spec_of
from tests.support.internals import Event, JobWarning, least_memory_bytes
from tests.support.refusals import raises
from tests.support.small_places import control_group

pytestmark = pytest.mark.disk

SHARD_BYTES = 32 << 20
MEMORY_BYTES = 120 << 20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with ``MEMORY_BYTES`` of memory."""
    with control_group("memory", {"memory.max": MEMORY_BYTES}) as group:
        yield group


def write_data(directory: Path, shards: int) -> Counter[str]:
    """Shards of records of 1 KB to 400 KB, out of the page cache; how often each digest occurs."""
    rng = random.Random("memory")
    noise = rng.randbytes(1 << 20)
    digests: Counter[str] = Counter()
    directory.mkdir()
    for shard in range(shards):
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
            really_written(file.fileno())
            # Pages that the limit does not count would make the job's life easier.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digests


@pytest.mark.slow
@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(("times", "move"), [(3, "range"), (3, "spill")])
def test_three_times_the_memory_goes_through_it_and_nothing_is_lost(
    memory_group: Path, tmp_path: Path, times: int, move: str
) -> None:
    shards = -(-times * MEMORY_BYTES // SHARD_BYTES)
    digests = write_data(tmp_path / "in", shards)
    spec = spec_of(
        algorithm={"kind": "shuffle", "seed": 1},
        output_shard_records=None,
        output_shard_size="32MB",
    )
    command = [sys.executable, "-m", "dsort", "start", "-f", json.dumps(spec), "--json"]
    command += ["--move", move]
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
    assert report["move"] == move
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
    assert len(files_of(tmp_path / "in")) == shards


@pytest.mark.parametrize("asked", ["1B", "1KB"])
def test_less_memory_than_any_job_takes_means_the_least_and_through_the_disk(
    asked: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"a.tar": shard_of("1", "2"), "b.tar": shard_of("3")})
    events: list[Event] = []
    spec = spec_of(max_mem_usage=asked)
    report = run_local(tmp_path, spec, workers=4, on_event=events.append)
    assert (report.run.move, report.run.workers, report.records) == ("spill", 1, 3)
    (warning,) = [event.text for event in events if isinstance(event, JobWarning)]
    assert warning == report.warnings[0]
    least_mib = -(-least_memory_bytes() >> 20)
    assert f"max_mem_usage {asked} is less than any job needs" in warning
    assert f"uses the least memory, {least_mib} MiB" in warning


@pytest.mark.parametrize("move", ["auto", "spill", "map"])
def test_less_than_that_in_fact_is_refused_and_no_other_movement_is_advised(
    move: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"a.tar": shard_of("1", "2")})
    with raises(SpecError, "50 MiB", hint="--max-memory", paths=["max_mem_usage"]) as caught:
        run_local(tmp_path, spec_of(), move=move, memory_max_bytes=50 << 20)
    assert "--move" not in caught.value.hint


def test_a_plan_says_what_the_job_needs_and_not_what_it_may_have(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"a.tar": shard_of("1", "2")})
    planned = plan_local(tmp_path, spec_of(), memory_max_bytes=8 << 30)
    assert planned.plan.memory_bytes < 100 << 20
    assert planned.plan.memory_bytes == plan_local(tmp_path, spec_of()).plan.memory_bytes
