"""The work of runtimes in tests: shards to extract, and tasks that wait, take notes or fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.ref import BucketRef
from dsort.storage.routed import BucketPlace
from tests.support.datasets import small_dataset, write_shards
from tests.support.internals import (
    WAYS,
    ExtractTask,
    Movement,
    MovementSizes,
    Runtime,
    ShardExtracted,
    Stage,
    WorkerSetup,
    compile_pipeline,
    steps_of,
)
from tests.support.traps import Trap

SHARDS = 12


@dataclass
class Work:
    """Shards to extract, and the set-up of a worker. ``directory``: for a test's own files."""

    directory: Path
    setup: WorkerSetup

    def tasks(self, count: int = SHARDS) -> list[ExtractTask]:
        """One task for each of the first ``count`` shards."""
        bucket = LocalBucket(Path(self.setup.inputs[0].ref.path))
        found = [bucket.stat(f"in-{number}.tar") for number in range(count)]
        return [
            ExtractTask(number, info.name, info.size_bytes, info.etag, Stage("index"))
            for number, info in enumerate(found)
        ]

    def trapped(self, task: ExtractTask, kind: str, *names: str) -> ExtractTask:
        """``task`` with the name of its shard made a trap that uses the files ``names``."""
        paths = [self.directory / name for name in names]
        return replace(task, name=Trap(task.name, kind, *paths))

    def pipe(self, name: str) -> Path:
        """A new named pipe."""
        path = self.directory / name
        os.mkfifo(path)
        return path

    def blocked(self, task: ExtractTask, mark: str = "") -> ExtractTask:
        """``task``, which waits in the middle of its work. From then on the pipe ``reached`` can be
        read; the task continues once the pipe ``released`` is opened to write."""
        self.pipe(f"reached{mark}")
        self.pipe(f"released{mark}")
        return self.trapped(task, "block", f"reached{mark}", f"released{mark}")

    def noted(self) -> list[int]:
        """The workers that did the tasks trapped with ``note``, by process id."""
        return [int(line) for line in (self.directory / "noted").read_text().splitlines()]


def make_work(directory: Path) -> Work:
    """Shards in ``directory``, and all else that a worker needs."""
    write_shards(directory / "in", small_dataset("runtime", shards=SHARDS, records=4))
    (directory / "out").mkdir()
    spec = parse_spec(
        {
            "input_bck": (directory / "in").as_uri(),
            "output_bck": (directory / "out").as_uri(),
            "input_extension": ".tar",
            "input_format": {"prefix": ""},
            "output_format": "out-%d",
            "output_shard_size": "1MB",
            "algorithm": {"kind": "alphanumeric"},
        }
    ).spec
    setup = WorkerSetup(
        job_id="job-1",
        inputs=(BucketPlace("", BucketRef("file", str(directory / "in"))),),
        outputs=(BucketPlace("", BucketRef("file", str(directory / "out"))),),
        output_uri=(directory / "out").as_uri(),
        root=str(directory),
        scratch=str(directory / "scratch"),
        pipeline=compile_pipeline(spec, steps=steps_of(spec)),
        movement=Movement(WAYS["map"], "", 2, 1, 1 << 20, MovementSizes(1 << 30, 1 << 30, 0)),
    )
    return Work(directory, setup)


@contextmanager
def lasting_runtime(
    make: Callable[[StopFlag], Runtime], directories: pytest.TempPathFactory
) -> Iterator[tuple[Runtime, Work]]:
    """A runtime with two workers, and its work."""
    work = make_work(directories.mktemp("lasting"))
    with StopFlag() as stop:
        runtime = make(stop)
        try:
            runtime.start(work.setup, 2)
            yield runtime, work
        finally:
            runtime.close()


def done_shards(answers: Sequence[tuple[object, object]]) -> list[int]:
    """The shards of ``answers``. Checks that each answer belongs to its task."""
    found = []
    for task, done in answers:
        assert isinstance(task, ExtractTask)
        assert isinstance(done, ShardExtracted)
        assert task.shard == done.shard
        assert done.records > 0
        found.append(done.shard)
    return sorted(found)


def release(work: Work, *marks: str) -> None:
    """Let blocked tasks continue once all of them wait."""
    for mark in marks or [""]:
        (work.directory / f"reached{mark}").read_bytes()
    for mark in marks or [""]:
        with (work.directory / f"released{mark}").open("w"):
            pass
