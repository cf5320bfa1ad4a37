"""Jobs where address space, processes and threads are scarce: fewer workers and less memory, or a
clear error; never a bug."""

from __future__ import annotations

import json
import lzma
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from dsort.errors import StorageFullError, WorkerLostError
from dsort.storage.process_limits import UNLIMITED, explain_limits, free_processes
from tests.support.commands import ROOT
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.refusals import raises
from tests.support.small_places import control_group

DATASET = small_dataset("limits", payload_bytes_max=20_000)


def start(root: Path, *options: str, before: str) -> subprocess.CompletedProcess[str]:
    """``dsort start`` in a process of its own, after the statements ``before``."""
    code = (
        f"import os, resource, sys\n{before}\nfrom dsort.cli.main import main\nsys.exit(main())\n"
    )
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 1})
    return subprocess.run(
        [sys.executable, "-c", code, "start", "-f", json.dumps(spec), "--json", *options],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("move", ["auto", "spill"])
def test_a_job_keeps_within_its_address_space(move: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    before = f"resource.setrlimit(resource.RLIMIT_AS, ({600 << 20}, {600 << 20}))"
    ended = start(tmp_path, "--workers", "2", "--move", move, before=before)
    assert ended.returncode == 0, ended.stderr
    assert len(files_of(tmp_path / "out")) == 8


def test_too_little_address_space_is_reported_before_a_byte_is_read(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    before = f"resource.setrlimit(resource.RLIMIT_AS, ({280 << 20}, {280 << 20}))"
    ended = start(tmp_path, "--workers", "1", before=before)
    assert ended.returncode == 2, ended.stderr
    assert "ulimit -v" in ended.stderr


DECODE = """
import re, resource, sys
from pathlib import Path
from dsort.containers.codecs.decoding import WINDOW_BYTES_MAX, Decoding
from dsort.containers.registry import codec_of
path = Path(sys.argv[1])
codec = codec_of(path.name)
pieces, size = iter([path.read_bytes()]), path.stat().st_size
decoding = Decoding(path.name, codec, pieces, size, window_bytes_max=WINDOW_BYTES_MAX)
now = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (now + (2 << 20), now + (2 << 20)))
try:
    sum(map(len, decoding))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("suffix", [".zst", ".lz4", ".xz"])
def test_a_shard_whose_decoder_gets_no_memory_is_no_corrupt_one(
    suffix: str, tmp_path: Path
) -> None:
    rules = zstandard.ZstdCompressionParameters.from_level(1, window_log=26)
    stream = zstandard.ZstdCompressor(compression_params=rules).compressobj()
    blocks = {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "block_linked": True}
    data = random.Random(1).randbytes(9 << 20)
    encoded = {
        ".zst": lambda: stream.compress(data) + stream.flush(),
        ".lz4": lambda: lz4.frame.compress(data, **blocks),
        ".xz": lambda: lzma.compress(data, preset=6),
    }[suffix]()
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(encoded)
    command = [sys.executable, "-c", DECODE, str(path)]
    around = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
    assert ended.stdout == "MemoryError\n"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group in which there may be few processes."""
    with control_group("pids", {"pids.max": 8}) as group:
        yield group


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(("processes", "code"), [(1, 5), (2, 5), (3, 0), (8, 0)])
def test_few_processes_are_fewer_workers_or_a_clear_error(
    processes: int, code: int, small_group: Path, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    (small_group / "pids.max").write_text(str(processes))
    before = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    ended = start(tmp_path, "--workers", "16", before=before)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    if code:
        assert "ulimit -u" in ended.stderr
        assert files_of(tmp_path / "out") == {}
    else:
        assert len(files_of(tmp_path / "out")) == 8
        assert json.loads(ended.stdout)["workers"] < 16


@pytest.mark.parametrize(
    ("text", "group"),
    [("8:pids:/a/b\n4:memory:/c\n", "pids"), ("0::/a/b\n", "."), ("3:cpu,pids:/a/b\n", "pids")],
)
def test_the_smallest_group_counts(text: str, group: str, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(text)
    top = tmp_path / "groups" / group
    for place, limit, used in (("", "max", 90), ("a", "100", 93), ("a/b", "50", 1)):
        (top / place).mkdir(parents=True, exist_ok=True)
        (top / place / "pids.max").write_text(f"{limit}\n")
        (top / place / "pids.current").write_text(f"{used}\n")
    assert free_processes(tmp_path, tmp_path / "groups") == 7
    (top / "a" / "pids.current").write_text("120\n")
    assert free_processes(tmp_path, tmp_path / "groups") == 0


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] != resource.RLIM_INFINITY and os.geteuid():
        pytest.skip("this user may have so many processes only")
    assert free_processes(tmp_path, tmp_path / "nothing") == UNLIMITED


def test_what_cannot_be_had_is_an_error_in_words() -> None:
    with raises(StorageFullError), explain_limits():
        raise MemoryError
    with raises(WorkerLostError), explain_limits():
        raise RuntimeError("can't start new thread")
    with pytest.raises(RuntimeError, match="other"), explain_limits():
        raise RuntimeError("other")
