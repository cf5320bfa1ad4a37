"""Small jobs whose results are pinned: every container, conversion and pair of features of a spec.

Inputs are made by other libraries, from seeds. The same job has the same result with any movement,
any number of workers, and after any fault, so one digest of it does for all of these.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.container_kinds import KINDS, Kind, some_records

__all__ = ["JOBS", "Digest", "GoldenJob", "digest_of"]

SHARDS: Final = 3
RECORDS: Final = 12
MASKED: Final = frozenset(
    (
        *("job_id", "created", "dsort", "phase_seconds", "timeline", "mtime_ns", "etag"),
        *("move", "readers", "output_uri", "packages", "like"),
    )
)
"""Fields of a manifest that differ from run to run, or with the way in which a job runs."""
_JOB: Final = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


@dataclass(frozen=True)
class Digest:
    """Hashes of what a job wrote: its shards and what stands beside them; its manifests, without
    what differs from run to run; and other files that it keeps, as that of its oddities."""

    outputs: str
    manifest: str
    reactions: str


@dataclass(frozen=True)
class GoldenJob:
    """``prepare`` makes the input buckets in a directory; ``spec`` is that of the job."""

    name: str
    spec: Mapping[str, Any]
    prepare: Callable[[Path], None]

    def __repr__(self) -> str:
        return self.name


def digest_of(root: Path) -> Digest:
    """What a job left in the output buckets below ``root``."""
    outputs, manifests, reactions = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for path in sorted(root.rglob("*"), key=_in_order):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or name.partition("/")[0] in ("in", "one", "two", "like"):
            continue
        data = path.read_bytes()
        if path.suffix == ".json":
            data = _JOB.sub("JOB", json.dumps(_masked(json.loads(data)))).encode()
        if path.name == "manifest.json":
            manifests.update(data)
        elif ".dsort" in path.parts:
            reactions.update(_JOB.sub("JOB", path.name).encode() + data)
        else:
            outputs.update(_JOB.sub("JOB", f"{name} {len(data)}\n").encode() + data)
    return Digest(*(each.hexdigest()[:16] for each in (outputs, manifests, reactions)))


def _in_order(path: Path) -> tuple[str, str]:
    """By name, and jobs one after the other: ids of jobs begin with the time."""
    return _JOB.sub("JOB", str(path)), str(path)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "" if name in MASKED else _masked(each) for name, each in value.items()}
    return [_masked(each) for each in value] if isinstance(value, list) else value


# -- containers and conversions --------------------------------------------------------------------

_SHUFFLE: Final = {"kind": "shuffle", "seed": 26}
ALGORITHMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "none": {"kind": "none"},
    "shuffle": _SHUFFLE,
    "alphanumeric": {"kind": "alphanumeric", "decreasing": True},
    "md5": {"kind": "md5"},
}


def _spec_of_kind(kind: Kind, output: str, algorithm: Mapping[str, Any]) -> dict[str, Any]:
    keyed = {"key_field": kind.key_field} if kind.key_field not in ("", "__key__") else {}
    return {
        "input_bck": "in",
        "input_format": {"template": f"s-{{0..{SHARDS - 1}}}"},
        "input_extension": kind.suffix,
        "output_bck": "out",
        "output_format": "out-%d",
        "output_extension": output,
        "output_shard_records": 7,
        "algorithm": dict(algorithm),
        **keyed,
    }


def _prepare_kind(kind: Kind) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        (root / "in").mkdir()
        for number in range(SHARDS):
            data = kind.write(some_records(f"golden {number}", RECORDS))
            (root / "in" / f"s-{number}{kind.suffix}").write_bytes(data)
        if kind.beside:
            (root / "in" / kind.beside[0]).write_bytes(kind.beside[1])

    return prepare


def _container_jobs() -> Iterator[GoldenJob]:
    for kind in KINDS:
        for name, algorithm in ALGORITHMS.items():
            spec = _spec_of_kind(kind, kind.output_suffix, algorithm)
            yield GoldenJob(f"{kind.suffix} {name}", spec, _prepare_kind(kind))


CONVERTED: Final = (".tar", ".tar.zst", ".zip", ".tfrecord", ".mds", ".parquet", ".msgpack")
FROM: Final = (".tar", ".zip", ".tar.gz", ".msgpack", ".cbor", ".tfrecord", ".mds", ".parquet")


def _conversion_jobs() -> Iterator[GoldenJob]:
    for kind in KINDS:
        for output in CONVERTED if kind.suffix in FROM else ():
            if output != kind.suffix:
                spec = _spec_of_kind(kind, output, _SHUFFLE)
                yield GoldenJob(f"{kind.suffix} to {output}", spec, _prepare_kind(kind))


JOBS: Final = {job.name: job for job in (*_container_jobs(), *_conversion_jobs())}
