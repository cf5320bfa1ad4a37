"""Directories as buckets of a store that fails, in every process of a job.

If a test has put a :class:`StoreFaults` beside the fault points, ``dsort.storage.open`` puts the
retries and limits of an object store around each directory, with the faults below them.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tests.support import armed
from tests.support.armed import NoSuchPointError
from tests.support.fault_points import ADDRESSES, DIRECTORY

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket
    from tests.support.faulty_bucket import Faults


STORE_FILE = "store"
DOWN = "down"
"""While there is a file of this name, the store answers no request."""
OPENED = "store opened"
STRUCK = "store struck"
"""These files exist once a bucket with faults has been opened, and once a fault has struck."""
DIRECTORY_BUCKET = "LocalBucket"
TRIES_MAX = 5


@dataclass(frozen=True)
class StoreFaults:
    """Faults of all buckets of a job whose names contain ``about``.

    ``script``: as for ``faulty_bucket.Fault``, counted in each process. ``seed``: besides, faults
    by chance, with probability ``rate`` each, of ``kinds``. ``like_store``: as in an object store,
    a staged object cannot be read, and an object is read only once.
    """

    script: Sequence[Mapping[str, Any]] = ()
    seed: str = ""
    rate: float = 0.1
    kinds: Sequence[str] = field(default_factory=list)
    about: str = ""
    like_store: bool = False


def arm_store(directory: Path, faults: StoreFaults, *, may_miss: bool = False) -> None:
    """Put ``faults`` where the processes of a job will find them. The test fails if no bucket is
    opened with them, or if none of them strikes (see ``armed``), unless they ``may_miss``."""
    if not hasattr(importlib.import_module(ADDRESSES), DIRECTORY_BUCKET):
        raise NoSuchPointError(f"there is no {ADDRESSES}: {DIRECTORY_BUCKET}")
    directory.mkdir(parents=True, exist_ok=True)
    if not may_miss:
        armed.expect(f"opening {faults}", directory / OPENED, of=directory)
        if faults.script or faults.seed:
            armed.expect(f"{faults}", directory / STRUCK, of=directory)
    (directory / STORE_FILE).write_text(json.dumps(asdict(faults)), encoding="utf-8")


def wrap_directories(module: ModuleType) -> None:
    """Make ``dsort.storage.open`` (``module``) open directories as described above."""
    really: Callable[..., Bucket] = getattr(module, DIRECTORY_BUCKET)

    def opened(path: Path, **named: Any) -> Bucket:
        bucket, points = really(path, **named), os.environ.get(DIRECTORY, "")
        file = Path(points) / STORE_FILE
        if not points or not file.exists():
            return bucket
        faults = StoreFaults(**json.loads(file.read_bytes()))
        if faults.about not in path.name:
            return bucket
        (Path(points) / OPENED).touch()
        return _faulty(bucket, faults, Path(points))

    setattr(module, DIRECTORY_BUCKET, opened)


def _faulty(bucket: Bucket, given: StoreFaults, points: Path) -> Bucket:
    from dsort.retry import RetryPolicy
    from dsort.storage.limit import StoreLimits
    from dsort.storage.transport import Transport
    from tests.support.faulty_bucket import Fault, FaultyBucket, RandomFaults, Script
    from tests.support.retried_bucket import RetriedBucket
    from tests.support.store_like import StoreLikeBucket

    if given.like_store:
        bucket = StoreLikeBucket(bucket)
    noted: list[Faults] = [Script([Fault(**each) for each in given.script])]
    if given.seed:
        noted.append(RandomFaults(given.seed, rate=given.rate, kinds=given.kinds))
    layers: list[Faults] = [_Down(points), *(_Noted(each, points) for each in noted)]
    for layer in layers:
        bucket = FaultyBucket(bucket, layer)
    policy = RetryPolicy(tries_max=TRIES_MAX, delay_s_min=0.0, delay_s_max=0.0)
    return RetriedBucket(bucket, Transport(StoreLimits(), policy=policy))


class _Noted:
    """The faults ``inner``; the first that strikes creates the file ``STRUCK``."""

    def __init__(self, inner: Faults, points: Path) -> None:
        self.struck = inner.struck
        self._inner = inner
        self._file = points / STRUCK

    def due(self, operation: str, name: str) -> str | None:
        kind = self._inner.due(operation, name)
        if kind is not None:
            self._file.touch()
        return kind


class _Down:
    """All operations fail while the store is down."""

    def __init__(self, points: Path) -> None:
        self.struck: list[tuple[str, str, str]] = []
        self._file = points / DOWN

    def due(self, operation: str, name: str) -> str | None:
        return "503" if self._file.exists() else None
