"""Makes shuffled shards from small files in a tree with one directory for each class: dsort beside
webdataset's ``ShardWriter``, as whole commands."""

from __future__ import annotations

import random
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.contenders import (
    SCRIPTS,
    SHARD_BYTES,
    Contender,
    Task,
    dsort_account,
    script_account,
)
from benchmarks.measure import Bench, round_robin
from benchmarks.memory import TreeSampler
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings

__all__ = ["FilesOfClasses", "ingest", "make_files"]

FILES: Final = 100_000
FILES_QUICK: Final = 2_000
FILE_BYTES: Final = 3_000
CLASSES: Final = 100
SUITE: Final = "ingest"
SAMPLE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class FilesOfClasses:
    """The tree ``root/files/<class>/<number>.jpg``; see `benchmarks.data.Data`."""

    root: Path
    count: int
    profile: str = "3k-files"
    suffix: str = ".tar"

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return self.count * FILE_BYTES

    @property
    def member_bytes_min(self) -> int:
        """The least size of a complete result."""
        return self.total_bytes

    @property
    def template(self) -> str:
        """Empty: the spec names a directory, and no input template."""
        return "files"

    @property
    def paths(self) -> list[Path]:
        """The files, in order."""
        each = self.count // CLASSES
        tree = self.root / "files"
        return [
            tree / f"c{kind:03d}" / f"{kind:03d}-{number:05d}.jpg"
            for kind in range(CLASSES)
            for number in range(each)
        ]


def make_files(directory: Path, count: int) -> FilesOfClasses:
    """Make the tree, unless it exists."""
    data = FilesOfClasses(directory / f"files-{count}", count)
    done = data.root / "done"
    if done.exists():
        return data
    shutil.rmtree(data.root, ignore_errors=True)
    bits = random.Random(1)
    for path in data.paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bits.randbytes(FILE_BYTES))
    done.touch()
    return data


def _dsort(task: Task) -> list[str]:
    places = [str(task.data.root / "files"), f"{task.output}/out-%05d.tar"]
    how = ["--layout", "folders", "--shard-size", str(SHARD_BYTES), "--seed", str(task.seed)]
    run = ["--json", "--progress", "none", "--workers", str(task.workers)]
    return [sys.executable, "-m", "dsort", "ingest", *places, *how, *run]


def _shard_writer(task: Task) -> list[str]:
    script, size = str(SCRIPTS / "files_with_webdataset.py"), ("--shard-bytes", str(SHARD_BYTES))
    places = ["--output", str(task.output), str(task.data.root / "files")]
    return [sys.executable, script, *size, "--seed", str(task.seed), *places]


CONTENDERS: Final = (
    Contender("dsort", _dsort, dsort_account),
    Contender("webdataset", _shard_writer, script_account, is_slow=True, modules=("webdataset",)),
)


def ingest(bench: Bench, settings: Settings) -> Measured:
    """Both programs in turn, on the same files."""
    wanted = [each for each in CONTENDERS if settings.wants(SUITE, "3k-files", each.name)]
    able = [each for each in wanted if not each.missing]
    skips = [Skip(SUITE, each.name, each.missing) for each in wanted if each.missing]
    if not able:
        return Measured([], skips)
    data = make_files(settings.directory, FILES_QUICK if settings.is_quick else FILES)

    def one(contender: Contender, number: int) -> Run:
        sampler = TreeSampler(SAMPLE_SECONDS)
        run = bench.run(contender, data, suite=SUITE, number=number, sampler=sampler)
        return replace(run, profile=data.profile)

    turns = [(each, settings.slow_rounds if each.is_slow else settings.rounds) for each in able]
    return Measured(list(round_robin(turns, one, until_s=settings.until_s)), skips)
