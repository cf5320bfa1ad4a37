"""Places in dsort where a test can make a process die, stop or fail, without any code in dsort.

In a process that Python begins with ``points/`` on its path (see ``points/sitecustomize.py``), the
functions in ``POINTS`` are wrapped. Passages through a point are counted over all processes of a
job: the process that creates the file for passage n makes passage n. So a fault strikes exactly the
passage that a test names, in any process, and the files show afterwards which points were struck.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import armed
from tests.support.armed import NoSuchPointError
from tests.support.disks import wait_for_no_disk

DIRECTORY = "FAULT_POINTS"
"""The environment variable with the directory of a job's faults; without it no fault strikes."""

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = "dsort.storage.open"


@dataclass(frozen=True)
class Point:
    """The moment ``before`` or ``after`` (``when``) a call of a function of ``module``. ``label``:
    returns the name of the object of a call, from the arguments."""

    module: str
    function: str
    when: str
    label: Callable[..., str] = lambda *args, **named: ""


def _second(first: Any, second: Any, *args: Any, **named: Any) -> str:
    return str(second)


def _third(first: Any, second: Any, third: Any, *args: Any, **named: Any) -> str:
    return str(third)


def _kind_of_second(first: Any, second: Any) -> str:
    return type(second).__name__


def _own_name(opened: Any) -> str:
    return str(opened._name)


IN_WORKERS = {
    "extract:start": Point("dsort.workers.extractor", "Extractor.extract", "before"),
    "spill:append": Point("dsort.workers.index_writer", "SpillWriter.append", "after"),
    "index:write": Point("dsort.scratch.index", "IndexStore.write_shard", "before", _second),
    "extract:end": Point("dsort.workers.extractor", "Extractor.extract", "after"),
    "duplicates:end": Point("dsort.workers.orderer", "Orderer.duplicates", "after"),
    "order:start": Point("dsort.workers.orderer", "Orderer.order", "before"),
    "order:end": Point("dsort.workers.orderer", "Orderer.order", "after"),
    "cut:end": Point("dsort.workers.orderer", "Orderer.cut", "after"),
    "create:start": Point("dsort.workers.creator", "Creator.create", "before"),
    "create:write": Point("dsort.workers.sinks", "StagedFile.write", "after"),
    "create:finish": Point("dsort.workers.sinks", "StagedFile.finish", "after"),
    "create:end": Point("dsort.workers.creator", "Creator.create", "after"),
    "block:read": Point("dsort.runtime.ray.block_server", "BlockServer._send", "before"),
    "seal:start": Point("dsort.workers.creator", "Sealer.seal", "before"),
    "seal:end": Point("dsort.workers.creator", "Sealer.seal", "after"),
}
"""Points that only the workers of a job pass, and the agents of its nodes."""

IN_COORDINATORS = {
    "lease:take": Point("dsort.results.lease", "Lease.take", "after"),
    "lease:pause": Point("dsort.runtime.machine", "Machine.pause", "before"),
    "lease:renew": Point("dsort.results.lease", "Lease._renew", "before"),
    "journal:append": Point("dsort.results.journal", "Journal.append", "after", _kind_of_second),
    "journal:flush": Point("dsort.results.journal", "Journal.flush", "before"),
    "file:sync": Point(
        "dsort.storage.directory.files", "LocalStagedObject.sync", "after", _own_name
    ),
    "plan:start": Point("dsort.job.plan", "make_plan", "before"),
    "commit:start": Point("dsort.job.commit", "commit", "before"),
    "publish:start": Point(
        "dsort.storage.directory.bucket", "LocalBucket.publish", "before", _third
    ),
    "publish:end": Point("dsort.storage.directory.bucket", "LocalBucket.publish", "after", _third),
    "s3 publish:start": Point("dsort.storage.s3.bucket", "S3Bucket.publish", "before", _third),
    "s3 publish:end": Point("dsort.storage.s3.bucket", "S3Bucket.publish", "after", _third),
    "keep:end": Point("dsort.storage.directory.bucket", "LocalBucket.keep_aside", "after", _second),
    "put back:end": Point(
        "dsort.storage.directory.bucket", "LocalBucket.put_back", "after", _third
    ),
    "s3 keep:end": Point("dsort.storage.s3.bucket", "S3Bucket.keep_aside", "after", _second),
    "s3 put back:end": Point("dsort.storage.s3.bucket", "S3Bucket.put_back", "after", _third),
    "make_durable": Point("dsort.storage.directory.bucket", "LocalBucket.make_durable", "after"),
    "discard": Point("dsort.storage.directory.bucket", "LocalBucket._remove", "after", _second),
    "abort": Point("dsort.job.suspend", "abort", "before"),
}
POINTS = IN_WORKERS | IN_COORDINATORS


@dataclass(frozen=True)
class PointFault:
    """A fault at passage number ``nth`` (from 1) through ``point``, and at ``times - 1`` passages
    after it. Only passages whose label contains ``about`` are counted.

    ``action``: ``kill`` this process, ``kill parent`` (a worker's coordinator; and wait to die with
    it), ``terminate`` (SIGTERM to it), ``interrupt`` (SIGINT), ``hang up`` (SIGHUP), ``stop``
    (SIGSTOP), the last four also with ``parent``;
    ``store down`` (see ``faulty_store``), ``out of memory`` (take more memory than the control
    group may have that the file ``group`` names), ``raise`` (an unexpected error).
    """

    point: str
    nth: int = 1
    action: str = "kill"
    about: str = ""
    times: int = 1


def arm(directory: Path, *faults: PointFault, may_miss: bool = False) -> Path:
    """Put ``faults`` where the processes of a job will find them. The test fails if one of them
    does not strike (see ``armed``), unless they ``may_miss``."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, fault in enumerate(faults):
        check_point(POINTS[fault.point])
        file = directory / f"{number}.json"
        file.write_text(json.dumps(asdict(fault)), encoding="utf-8")
        if not may_miss:
            first = directory / f"{number}-{fault.nth}"
            armed.expect(f"{fault} in {directory}", first, of=directory)
    return directory


def disarm(directory: Path) -> None:
    """Remove the faults in ``directory``. Faults that have not struck by now are missed."""
    armed.close(directory)
    for path in directory.iterdir():
        path.unlink()


def check_point(point: Point) -> None:
    """Check that the function of ``point`` exists.

    Raises:
        NoSuchPointError: the function, its class or its module does not exist.
    """
    try:
        module = importlib.import_module(point.module)
    except ImportError as error:
        raise NoSuchPointError(f"{point}: {error}") from error
    _holder(module, point)


def _holder(module: ModuleType, point: Point) -> tuple[Any, str]:
    """The object that has the function of ``point`` as an attribute, and the attribute's name."""
    name, _, function = point.function.rpartition(".")
    holder = getattr(module, name, None) if name else module
    if holder is None or function not in vars(holder):
        raise NoSuchPointError(f"there is no {point.module}: {point.function}")
    return holder, function


def struck(directory: Path) -> list[str]:
    """The points that were struck, sorted."""
    found = []
    for path in directory.glob("*.json"):
        fault = PointFault(**json.loads(path.read_bytes()))
        passages = range(fault.nth, fault.nth + fault.times)
        found += [fault.point for at in passages if (directory / f"{path.stem}-{at}").exists()]
    return sorted(found)


def points_environment(directory: Path | None) -> dict[str, str]:
    """The environment in which a process and its children meet the faults in ``directory``."""
    python_path = os.pathsep.join([str(ROOT / "tests" / "support" / "points"), str(ROOT)])
    return {"PYTHONPATH": python_path, DIRECTORY: str(directory) if directory else ""}


def install() -> None:
    """Wrap the points in all modules that this process loads from now on."""
    sys.meta_path.insert(0, _Finder())
    wait_for_no_disk()


class _Finder(MetaPathFinder):
    """Finds dsort's modules as usual, with a loader that wraps the points in them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        points = [key for key, point in POINTS.items() if point.module == name]
        if not points and name != ADDRESSES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WrappingLoader(spec.loader, points)
        return spec


class _WrappingLoader(Loader):
    def __init__(self, inner: Loader, points: list[str]) -> None:
        self._inner = inner
        self._points = points

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        if module.__name__ == ADDRESSES:
            from tests.support.faulty_store import wrap_directories

            wrap_directories(module)
        for point in self._points:
            holder, function = _holder(module, POINTS[point])
            inner = vars(holder)[function]
            if isinstance(inner, classmethod):
                setattr(holder, function, classmethod(_wrapped(inner.__func__, point)))
            else:
                setattr(holder, function, _wrapped(inner, point))


def _wrapped(inner: Callable[..., Any], name: str) -> Callable[..., Any]:
    point = POINTS[name]

    @functools.wraps(inner)
    def passed(*args: Any, **named: Any) -> Any:
        directory = os.environ.get(DIRECTORY)
        if not directory:
            return inner(*args, **named)
        if point.when == "before":
            _pass(name, point.label(*args, **named), Path(directory))
        result = inner(*args, **named)
        if point.when == "after":
            _pass(name, point.label(*args, **named), Path(directory))
        return result

    return passed


def _pass(point: str, label: str, directory: Path) -> None:
    for path in sorted(directory.glob("*.json")):
        fault = PointFault(**json.loads(path.read_bytes()))
        if fault.point == point and fault.about in label:
            last = fault.nth + fault.times - 1
            number = _number(directory, path.stem, last)
            if fault.nth <= number <= last:
                _act(fault.action, directory)


def _number(directory: Path, stem: str, last: int) -> int:
    """Which passage this is; 0 once counting has ended."""
    # Each file is created by exactly one process of a job, so all processes share the count.
    for number in range(1, last + 1):
        try:
            os.close(os.open(directory / f"{stem}-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return number
    return 0


def _take_all_memory(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    taken = []
    while True:
        taken.append(bytearray(b"x") * (1 << 20))  # zeros would be pages that take no memory


def _act(action: str, directory: Path) -> None:
    if action == "store down":
        (directory / "down").touch()
        return
    if action == "raise":
        raise RuntimeError("a bug that a test put here")
    if action == "out of memory":
        _take_all_memory(Path((directory / "group").read_text(encoding="utf-8")))
    if action == "kill parent":
        os.kill(os.getppid(), signal.SIGKILL)
        while True:  # no later result of this worker may reach the journal
            signal.pause()
    whom = os.getppid() if action.endswith("parent") else os.getpid()
    what = {
        "kill": signal.SIGKILL,
        "terminate": signal.SIGTERM,
        "interrupt": signal.SIGINT,
        "hang": signal.SIGHUP,
        "stop": signal.SIGSTOP,
    }
    os.kill(whom, what[action.split()[0]])
