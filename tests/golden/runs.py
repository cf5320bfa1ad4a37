"""Runs the small jobs, each in several ways that must not change its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsort import api
from dsort.errors import DsortError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.golden.jobs import Digest, GoldenJob, digest_of

__all__ = ["WAYS", "Way", "run"]

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Way:
    """How a job is run: how payload moves, the number of workers, and by what they run."""

    move: str
    workers: int
    runtime: str = "local"

    def __str__(self) -> str:
        return f"{self.move}-{self.workers}"


WAYS: Final = tuple(Way(*way) for way in (("auto", 1), ("spill", 2), ("map", 4), ("range", 2)))


def run(job: GoldenJob, way: Way, root: Path) -> Digest | str:
    """What ``job`` gives, run in the empty directory ``root``; the class of its error if it is
    refused."""
    job.prepare(root)
    spec = dict(job.spec)
    amends = spec.pop("amend", None) is not None
    options = RunOptions(
        root=root,
        workers=way.workers,
        move=way.move,
        runtime=way.runtime,
        ray_address=None if way.runtime == "local" else "auto",
    )
    try:
        if "-" in (spec.get("input_bck"), spec.get("output_bck")):
            _run_in_pipe(spec, way, root)
        else:
            report = api.run(parse_spec(spec).spec, options=options)
            if amends:
                manifest = (root / "out" / ".dsort" / report.job_id / "manifest.json").read_bytes()
                api.append(manifest, "two", place="out", options=options)
    except DsortError as error:
        return type(error).__name__
    except subprocess.CalledProcessError as error:
        return f"exit {error.returncode}"
    return digest_of(root)


def _run_in_pipe(spec: dict[str, Any], way: Way, root: Path) -> None:
    given = [json.dumps(spec), "--root", str(root), "--progress", "none"]
    command = [sys.executable, "-m", "dsort", "start", "-f", *given, "--workers", str(way.workers)]
    source = root / "in" / "s-0.tar" if spec.get("input_bck") == "-" else Path(os.devnull)
    with source.open("rb") as stdin, (root / "stdout.tar").open("wb") as stdout:
        subprocess.run(
            [*command, "--move", way.move], stdin=stdin, stdout=stdout, check=True, cwd=ROOT
        )
    if spec.get("output_bck") != "-":
        (root / "stdout.tar").unlink()  # the report
