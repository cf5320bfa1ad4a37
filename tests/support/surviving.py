"""Jobs that tests let die, and checks of their results: the same bytes as without a fault, and no
other files beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dsort
import dsort.api
from dsort.errors import DsortError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import Ended
from tests.support.coordinators import Coordinators, Running
from tests.support.datasets import Member, Shard, files_of, small_dataset, tree_of, write_shards
from tests.support.engine import spec_of
from tests.support.fault_points import PointFault, arm, points_environment
from tests.support.internals import (
    CreateTask,
    ExtractTask,
    JobReport,
    JournalState,
    LocalRuntime,
    Task,
    TaskDone,
    read_journal,
)

WORKERS = 2


@dataclass(frozen=True)
class Case:
    """A job over the inputs that :func:`prepare` makes. ``old``: objects that it replaces."""

    move: str
    fields: Mapping[str, Any]
    old: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def spec(self) -> dict[str, Any]:
        # in-4 is missing. This is counted once, even if the job is begun several times.
        fields = {"input_format": {"template": "in-{0..4}"}, "output_shard_records": 7}
        merged = {**fields, **self.fields}
        return {name: value for name, value in spec_of(**merged).items() if value is not None}


SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 5}}
BY_CLASS = {
    "algorithm": {
        "kind": "content",
        "extension": ".cls",
        "content_key_type": "int",
        "decreasing": True,
    }
}
KEY_MAP = {
    "ekm": {"low-%02d": ["^0000"], "high-%02d": ["^0001"]},
    "ekm_default": "rest-%02d",
    "output_format": None,
    "algorithm": {"kind": "md5"},
}
CASES = {
    "shuffle": Case("map", {**SHUFFLE, "Config": {"duplicate_keys": "drop"}}),
    "spilled": Case("spill", {**SHUFFLE, "Config": {"duplicate_keys": "drop"}}),
    "by range": Case("range", SHUFFLE),
    "verified": Case("spill", {**SHUFFLE, "verify": "content"}),
    "surveyed": Case("spill", BY_CLASS),
    "renamed": Case(
        "spill",
        {
            "algorithm": {"kind": "alphanumeric"},
            "Config": {"duplicate_keys": "rename"},
            "index": "wids",
        },
    ),
    "compressed": Case(
        "map", {**SHUFFLE, "duplicate_keys": "drop", "output_extension": ".tar.zst"}
    ),
    "rows": Case("spill", {**SHUFFLE, "output_extension": ".parquet", "verify": "content"}),
    "key map": Case("spill", {**KEY_MAP, "Config": {"ekm_missing_key": "ignore"}}),
    "replacing": Case(
        "map",
        {
            **SHUFFLE,
            "overwrite": True,
            "index": "wids",
            "duplicate_keys": "drop",
            "lineage": "parquet",
        },
        {"out-0.tar": b"an old shard", "out-3.tar": b"another"},
    ),
}


@cache
def _inputs() -> dict[str, Shard]:
    """Four shards, the last of which repeats some keys of the first."""
    shards = small_dataset("surviving", shards=3, records=12, payload_bytes_max=4000)
    again = [replace(each, payload=b"7" + each.payload) for each in shards["in-0.tar"].members[:8]]
    others = [Member("pax.jpg", b"p" * 3000, form="pax"), Member("pax.cls", b"3", form="pax")]
    return shards | {"in-3.tar": Shard((*again, *others))}


def prepare(root: Path, case: Case) -> None:
    """Make the buckets ``in`` and ``out`` as they are before the job."""
    if not (root / "in").exists():
        write_shards(root / "in", _inputs())
    (root / "out").mkdir(exist_ok=True)
    write_shards(root / "out", case.old)


def start_arguments(case: Case, *more: str) -> list[str]:
    """The command line that begins the job."""
    given = ["start", "-f", json.dumps(case.spec), "--workers", str(WORKERS), "--move", case.move]
    return [*given, "--progress", "none", "--json", *more]


@dataclass(frozen=True)
class Facts:
    """The parts of a result that are the same for every run of a job. ``manifest``: fields of its
    manifest; ``names``: its file of the names that policies concerned ("" if there is none);
    ``lineage``: its lineage (b"" if there is none)."""

    shards: Mapping[str, bytes]
    index: Mapping[str, Any]
    manifest: Mapping[str, Any]
    names: str
    lineage: bytes


def facts_of(bucket: Path) -> Facts:
    """The facts of the only job in ``bucket``, which has finished."""
    (path,) = bucket.glob(".dsort/*/manifest.json")
    manifest = json.loads(path.read_bytes())
    same = {name: manifest[name] for name in ("outputs", "totals", "reactions", "mixing")}
    same["inputs"] = [(each["name"], each["records"]) for each in manifest["inputs"]]
    index = json.loads((bucket / manifest["index"]).read_bytes()) if manifest["index"] else {}
    names = manifest["reactions_file"]
    lines = (bucket / names).read_text() if names else ""
    shards = files_of(bucket, "**/*.tar*") | files_of(bucket, "**/*.parquet")
    lineage = b""
    if manifest["lineage"]:
        lineage = (bucket / manifest["lineage"]["name"]).read_bytes()
    return Facts(shards, {**index, "name": ""}, same, lines, lineage)


@cache
def undisturbed(name: str, base: Path) -> Facts:
    """The result of the case ``name`` without faults. ``base``: a directory for the job, which the
    whole test session uses."""
    case, root = CASES[name], base / f"undisturbed {name}"
    prepare(root, case)
    options = RunOptions(root=root, workers=WORKERS, move=case.move)
    dsort.run(parse_spec(case.spec).spec, options=options)
    return facts_of(root / "out")


def job_in(bucket: Path) -> str:
    """The id of the only job in ``bucket``."""
    (directory,) = (bucket / ".dsort").iterdir()
    return directory.name


def known_of(bucket: Path) -> JournalState:
    """The state in the journal of the only job in ``bucket``."""
    return read_journal(LocalBucket(bucket), job_in(bucket))


def assert_whole(bucket: Path, expected: Facts, *, report: bool = False) -> None:
    """Check that ``bucket`` has the expected result of its only job, and no other files."""
    assert facts_of(bucket) == expected
    job = f".dsort/{job_in(bucket)}"
    index = {f"{job_in(bucket)}-index.json"} if len(expected.index) > 1 else set()
    names = {f"{job}/reactions.jsonl"} if expected.names else set()
    names |= {f"{job}/lineage.parquet"} if expected.lineage else set()
    allowed = {".dsort/", f"{job}/", f"{job}/manifest.json", *expected.shards, *index, *names}
    assert set(tree_of(bucket)) == allowed | ({f"{job}/report.json"} if report else set())


def only_a_report(bucket: Path, before: Iterable[str] = ()) -> None:
    """Check that only the report of the only job in ``bucket`` is left."""
    job = f".dsort/{job_in(bucket)}"
    assert set(tree_of(bucket)) == {".dsort/", f"{job}/", f"{job}/report.json", *before}


def assert_kept(bucket: Path, before: Mapping[str, bytes] | None = None) -> set[int]:
    """Check that the work of the only job in ``bucket`` is kept for another attempt: its journal
    and its staged output shards. No shard has its public name yet, and the objects ``before`` are
    unchanged. Returns the ordinals of the staged shards."""
    state = known_of(bucket)
    assert state.accepted is not None
    own = bucket / ".dsort" / job_in(bucket)
    assert not (own / "manifest.json").exists()
    assert not (own / "report.json").exists()
    assert files_of(bucket, "*") == dict(before or {})
    assert set(state.created) <= {
        int(path.name) for path in own.glob("staged/*") if path.name.isdecimal()
    }
    return set(state.created)


@dataclass
class Resumed:
    """The tasks of a job that was resumed in this process, and its report or its error."""

    tasks: list[Task]
    report: JobReport | None = None
    error: DsortError | None = None

    @property
    def extracted(self) -> set[int]:
        """The ordinals of input shards whose index was made."""
        return {
            task.shard
            for task in self.tasks
            if isinstance(task, ExtractTask) and task.stage.name == "index"
        }

    @property
    def created(self) -> set[int]:
        """The ordinals of output shards that were written."""
        found = [task.pieces for task in self.tasks if isinstance(task, CreateTask)]
        return {piece.ordinal for pieces in found for piece in pieces}


@dataclass
class Trial:
    """A job in the directory ``root``, whose coordinators may die. ``base``: the directory with the
    results of jobs without faults."""

    root: Path
    begun: Coordinators
    base: Path
    monkeypatch: pytest.MonkeyPatch
    case: str = ""

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def known(self) -> JournalState:
        """The state in the journal of the job."""
        return known_of(self.out)

    def prepare(self, case: str) -> list[str]:
        """Make the inputs of the job. Returns the command line that begins the job."""
        self.case = case
        prepare(self.root, CASES[case])
        return start_arguments(CASES[case])

    def run(self, *args: str, **named: Any) -> Ended:
        """Run ``dsort ARGS`` to its end."""
        return self.begun.run(self.root, *args, **named)

    def done(self, *args: str, **named: Any) -> None:
        """Run ``dsort ARGS`` to its end, which has to be exit code 0."""
        self.begun.done(self.root, *args, **named)

    def die(self, case: str, fault: PointFault, **named: Any) -> None:
        """Begin the job, which the fault kills."""
        self.begun.killed(self.root, *self.prepare(case), by=fault, **named)

    def stand_still(self, case: str, fault: PointFault) -> Running:
        """Begin the job, which the fault suspends."""
        points = arm(self.root / "points", fault)
        running = self.begun.start(self.root, *self.prepare(case), points=points)
        running.await_stop()
        return running

    def resume(self, **options: Any) -> Resumed:
        """Resume the job in this process, where it has to finish."""
        resumed = resume_here(self.root, self.monkeypatch, **options)
        assert resumed.error is None
        return resumed

    def refused(self) -> DsortError:
        """The error of ``resume`` for a job that cannot be resumed."""
        error = resume_here(self.root, self.monkeypatch).error
        assert error is not None
        return error

    def is_whole(self, case: str = "") -> None:
        """Check that the result is the same as without a fault, and that there are no other
        files."""
        assert_whole(self.out, undisturbed(case or self.case, self.base))


def _runtime_class(name: str) -> Any:
    if name == "local":
        return LocalRuntime
    from tests.support.internals import RayRuntime

    return RayRuntime


def resume_here(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, points: Path | None = None, **options: Any
) -> Resumed:
    """Resume the one job in the bucket ``out`` in this process; ``points``: its workers' faults."""
    done = Resumed([])

    given = RunOptions(root=root, **{"workers": WORKERS, **options})
    runtime = _runtime_class(given.runtime)
    really = runtime.run

    def run(
        self: Any, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        listed = list(tasks)  # all tasks are made first: answers cannot change them
        done.tasks.extend(listed)
        return really(self, listed, workers_max=workers_max)

    with monkeypatch.context() as patched:
        for name, value in points_environment(points).items():
            patched.setenv(name, value)
        patched.setattr(runtime, "run", run)
        try:
            done.report = dsort.api.resume(job_in(root / "out"), "out", options=given)
        except DsortError as error:
            done.error = error
    return done
