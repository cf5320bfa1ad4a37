"""How a job runs: workers, memory, scratch, how stores are reached. No option changes a result.

A command line, a service or a script makes one :class:`RunOptions`; a job makes the ``WorkerSetup``
of its workers from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import force_setattr

from dsort.settings import Settings, load_settings, resolve_ref
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec
    from dsort.storage.bucket import Bucket

__all__ = ["RunOptions", "default_options", "open_result", "open_with_settings"]


class RayOptions(Struct, frozen=True, kw_only=True):
    """Where the workers of a job on Ray run."""

    ray_address: str | None = None  # None = a Ray of its own on this machine
    ray_resources: Mapping[str, float] = field(default_factory=dict)  # of each worker, beside CPUs
    ray_labels: Mapping[str, str] = field(default_factory=dict)  # of the nodes to work on


class RunOptions(RayOptions, frozen=True):
    """How to run a job: everything that must not change its result."""

    root: Path  # the directory that bare bucket names are under
    scratch: Path | None = None  # where spill files go; None = beside the output
    memory_max_bytes: int | None = (
        None  # for the whole job on one node; None = the available memory
    )
    move: str = "auto"  # auto | map | range | spill
    workers: int | None = None  # None = one a core
    overwrite: bool | None = None  # None = as the spec says
    force: bool = False  # replace and remove shards even if views point to them
    runtime: str = "local"  # local | ray
    bandwidth_max_bytes_per_s: float | None = None  # of object stores, for the whole job
    settings: Settings = field(default_factory=Settings)  # how stores are reached
    forks: bool = False  # this process is dsort's own: workers may be forks of it
    runs_code: bool | None = None  # whether steps may run code; None = only without ``fetch``
    fetch: FetchPolicy | None = None  # what a spec of another user may touch; None = all

    def __post_init__(self) -> None:
        """Make paths of texts."""
        for name in ("root", "scratch"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Path):
                force_setattr(self, name, Path(given))

    @property
    def output_fetch(self) -> FetchPolicy | None:
        """``fetch`` for buckets into which the job writes."""
        return None if self.fetch is None else self.fetch.for_outputs()

    @property
    def may_run_code(self) -> bool:
        """Whether steps may run the code that the spec names."""
        return self.fetch is None if self.runs_code is None else self.runs_code


def default_options() -> RunOptions:
    """The options of a job that sets none itself: those of the user's settings."""
    settings = load_settings(os.environ, Path.cwd(), Path.home())
    return RunOptions(
        root=settings.root or Path.cwd(),
        scratch=settings.scratch,
        memory_max_bytes=settings.memory_max_bytes,
        workers=settings.workers,
        bandwidth_max_bytes_per_s=settings.bandwidth_max_bytes_per_s,
        settings=settings,
    )


def open_with_settings(where: str | BucketRef, *, root: Path, settings: Settings) -> Bucket:
    """The bucket that ``where`` names, reached and limited as ``settings`` say; see
    :func:`~dsort.storage.open.open_bucket`."""
    from dsort.storage.open import open_bucket
    from dsort.storage.registry import parse_address  # `dsort --help` opens none

    ref = parse_address(where) if isinstance(where, str) else where
    ref = resolve_ref(ref, settings)
    return open_bucket(ref, root=root, limits=settings.limits(ref))


def open_result(spec: JobSpec, main: Bucket, options: RunOptions) -> Bucket:
    """All buckets that a result of ``spec`` is in, as one: ``main`` has its manifest."""
    from dsort.storage.routed import routed_outputs

    own = {
        target.place: open_with_settings(
            target.bucket, root=options.root, settings=options.settings
        )
        for target in spec.targets
        if target.bucket is not None
    }
    return routed_outputs(main, own) if own else main
