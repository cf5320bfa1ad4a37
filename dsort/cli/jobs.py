"""What ``start`` and ``plan`` share: reading the spec, the options of a run, and being stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dsort.cli import output
from dsort.cli.buckets import bucket_uri
from dsort.core.sizes import parse_size_bytes
from dsort.errors import SpecError, SpecProblem
from dsort.reports import RunOptions
from dsort.stopping import StopFlag

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["RunArguments", "read_spec", "run_options", "show_spec", "stoppable"]

STOPPING = b"stopping: ending the workers and removing what is partial\n"
STOPPING_ALREADY = b"stopping, please wait\n"


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The options of a run as they were given on the command line."""

    root: Path
    scratch: Path | None
    memory_max: str | None
    move: str
    workers: int | None
    ray: bool
    ray_address: str | None
    overwrite: bool


def read_spec(
    source: str, src: str | None, dst: str | None, *, warn: Callable[[str], None]
) -> JobSpec:
    """The spec from ``source`` (a path, ``-`` or text) with its buckets replaced by ``src`` and
    ``dst``; ``warn`` is told its warnings."""
    from dsort.spec.load import load_spec

    given = {"input_bck": src, "output_bck": dst}
    overrides = {field: bucket_uri(text) for field, text in given.items() if text}
    loaded = load_spec(source, stdin=sys.stdin, overrides=overrides)
    for warning in loaded.warnings:
        warn(warning)
    return loaded.spec


def show_spec(spec: JobSpec) -> None:
    """Put the spec with all its defaults on stderr."""
    output.inform(json.dumps(spec.canonical(), indent=2))


def run_options(given: RunArguments) -> RunOptions:
    """The options in the terms of the library; ``SpecError`` names an option that is wrong."""
    memory_max_bytes = None
    if given.memory_max is not None:
        try:
            memory_max_bytes = parse_size_bytes(given.memory_max)
        except ValueError as error:
            raise SpecError([SpecProblem("--memory-max", str(error))]) from error
    return RunOptions(
        root=given.root,
        scratch=given.scratch,
        memory_max_bytes=memory_max_bytes,
        move=given.move,
        workers=given.workers,
        overwrite=True if given.overwrite else None,
        runtime="ray" if given.ray or given.ray_address else "local",
        ray_address=given.ray_address,
    )


@contextmanager
def stoppable() -> Iterator[StopFlag]:
    """A flag that Ctrl-C and SIGTERM raise. The first one is told what happens now; those after it
    change nothing: what is half done is being removed."""
    with StopFlag() as flag:

        def stop(signal_number: int, frame: FrameType | None) -> None:
            first = flag.request(signal_number)
            # Not through sys.stderr: the signal may have come in the middle of a write to it.
            os.write(2, STOPPING if first else STOPPING_ALREADY)

        previous = {
            number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield flag
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
