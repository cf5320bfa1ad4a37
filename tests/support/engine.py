"""Jobs on the real local runtime, and the files that they leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dsort
from dsort.errors import DsortError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, payloads_in, read_shard, tree_of
from tests.support.internals import JobReport, VerifyReport

Error = TypeVar("Error", bound=DsortError)


def spec_of(**fields: Any) -> dict[str, Any]:
    """A spec from bucket ``in`` to bucket ``out``, in the order of the input unless said
    otherwise."""
    return {
        "input_bck": "in",
        "output_bck": "out",
        "output_format": "out-%d",
        "output_shard_records": 5,
        "algorithm": {"kind": "none"},
        **fields,
    }


def run_local(root: Path, spec: dict[str, Any], **options: Any) -> JobReport:
    """Run a job in worker processes."""
    options = {"workers": 1, **options}
    on_event, stop = options.pop("on_event", None), options.pop("stop", None)
    run_options = RunOptions(root=root, **options)
    return dsort.run(parse_spec(spec).spec, options=run_options, on_event=on_event, stop=stop)


def plan_local(root: Path, spec: dict[str, Any], **options: Any) -> JobReport:
    """Plan a job in worker processes."""
    options = {"workers": 1, **options}
    return dsort.plan(parse_spec(spec).spec, options=RunOptions(root=root, **options))


def verify_local(root: Path, report: JobReport, **named: Any) -> VerifyReport:
    """Verify the result of a job."""
    return dsort.verify(report, options=RunOptions(root=root), **named)


@contextmanager
def refused(root: Path, error: type[Error], *words: str) -> Iterator[None]:
    """The body must end in ``error`` with all ``words`` in its message or hint, change nothing of
    either bucket, and leave nothing but a report in the output bucket."""
    before = {name: tree_of(root / name) for name in ("in", "out")}
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    said = f"{caught.value.message}\n{caught.value.hint}"
    assert [word for word in words if word not in said] == [], said
    assert "Traceback" not in said
    assert tree_of(root / "in") == before["in"]
    after = tree_of(root / "out")
    new = {name for name in after if name not in before["out"] and not name.endswith("/")}
    assert {Path(name).name for name in new} <= {"report.json"}
    assert all(name.startswith(".dsort/") and name.count("/") == 2 for name in new)
    assert {name: after[name] for name in before["out"]} == before["out"]


def left_in(bucket: Path) -> list[str]:
    """The files in a bucket, job directories as ``JOB``."""
    names = []
    for name in tree_of(bucket):
        if not name.endswith("/"):
            parts = name.split("/")
            names.append("/".join([".dsort", "JOB", *parts[2:]]) if parts[0] == ".dsort" else name)
    return names


def count_of(report: JobReport, kind: str) -> tuple[int, tuple[str, ...]]:
    """How often ``kind`` was counted, and the names concerned."""
    return next(((r.count, r.samples) for r in report.reactions if r.kind == kind), (0, ()))


def record(key: str, *extensions: str, payload: bytes = b"") -> list[Member]:
    """The members of a record. The payload of each is its name, unless ``payload`` is given."""
    names = [f"{key}.{extension}" for extension in extensions or ("jpg",)]
    return [Member(name, payload or os.fsencode(name)) for name in names]


def shard_of(*keys: str) -> Shard:
    """A shard with one record of one member for each key."""
    return Shard(tuple(member for key in keys for member in record(key)))


def keys_in(data: bytes) -> list[str]:
    """The names in an output shard."""
    return [member.name for member in read_shard(data)]


def records_out(root: Path) -> list[str]:
    """The names in all output shards, in order of their numbers."""
    return [name for name, _ in payloads_in(root / "out")]
