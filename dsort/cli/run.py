"""Shared by verbs that run jobs: reading the spec, the options of a run, and signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from dsort.cli import output
from dsort.cli.find import data_root, user_settings
from dsort.cli.options import EngineArguments, RunArguments, size_bytes
from dsort.cli.parameters import with_flag
from dsort.cli.process import is_own_process, without_plugins
from dsort.cli.progress import Reporter
from dsort.errors import SpecError, SpecProblem
from dsort.options import RunOptions
from dsort.reading.results import bucket_uri
from dsort.settings import find_transform
from dsort.stop_flag import StopFlag

if TYPE_CHECKING:
    from dsort.results.report import JobReport
    from dsort.spec.model import JobSpec

STOPPING = b"stopping: ending the workers\n"
STOPPING_ALREADY = b"stopping, please wait\n"


@contextmanager
def stoppable(reporter: Reporter) -> Iterator[StopFlag]:
    """A flag that Ctrl-C, SIGTERM and SIGHUP set (not SIGHUP under ``nohup``).

    The first signal prints what happens now, and ends the progress display. Later signals have no
    effect: the job is being prepared for ``dsort resume``, or removed.
    """
    with StopFlag() as flag:

        def stop(signal_number: int, frame: FrameType | None) -> None:
            if signal_number == signal.SIGHUP:
                _leave_terminal()
            first = flag.request(signal_number)
            reporter.break_off(STOPPING if first else STOPPING_ALREADY)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        previous = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield flag
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _leave_terminal() -> None:
    """Discard the output of stdout and stderr, because the terminal is gone. Writing to it would
    fail, and end the job before it has cleaned up."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(fd).st_mode):
                os.dup2(null, fd)
    os.close(null)


Value = TypeVar("Value", float, str)


def read_spec(
    source: str,
    src: str | None,
    dst: str | None,
    *,
    warn: Callable[[str], None],
    flags: Mapping[str, bool] | None = None,
) -> JobSpec:
    """The spec from ``source`` (a path, ``-`` or text). ``src`` and ``dst`` replace its buckets.
    ``flags``: fields to set, if their value is true. ``warn`` is called with the warnings of the
    spec."""
    with without_plugins():
        from dsort.spec.load import load_spec

    given = {"input_bck": src, "output_bck": dst}
    overrides: dict[str, object] = {
        field: bucket_uri(text) for field, text in given.items() if text
    }
    overrides |= {field: True for field, is_set in (flags or {}).items() if is_set}
    ais_is_there = user_settings().ais_is_there
    loaded = load_spec(
        source,
        stdin=sys.stdin,
        overrides=overrides,
        ais_is_there=ais_is_there,
        transforms=find_transform,
    )
    for warning in loaded.warnings:
        warn(with_flag(warning))
    return loaded.spec


def read_fields(
    source: str,
    src: str | None,
    dst: str | None,
    *,
    overwrite: bool = False,
    remove_stale: bool = False,
) -> dict[str, Any]:
    """The fields of the spec from ``source`` as written, because a service checks them. ``src`` and
    ``dst`` replace its buckets."""
    from dsort.spec.dialects import OLDER_NAMES
    from dsort.spec.load import read_fields

    fields, _ = read_fields(source, stdin=sys.stdin)
    given = {"input_bck": src and bucket_uri(src), "output_bck": dst and bucket_uri(dst)}
    replaced = {name: value for name, value in given.items() if value}
    kept = {
        name: value for name, value in fields.items() if OLDER_NAMES.get(name, name) not in replaced
    }
    flags = {"overwrite": overwrite, "remove_stale": remove_stale}
    return {**kept, **replaced, **{name: True for name, is_set in flags.items() if is_set}}


def run_or_plan(
    spec: JobSpec, as_given: RunOptions, reporter: Reporter, *, dry_run: bool, verbose: bool
) -> JobReport:
    """Run a job on this machine, or only plan it. ``verbose``: put the spec with all its defaults
    on stderr before that."""
    from dsort import api

    if verbose:
        output.inform(json.dumps(spec.canonical(), indent=2))
    work = api.plan if dry_run else api.run
    with stoppable(reporter) as stop:
        return work(spec, options=as_given, on_event=reporter, stop=stop)


def run_options(
    given: RunArguments, *, root: Path | None, overwrite: bool, force: bool = False
) -> RunOptions:
    """The options as ``RunOptions``. Options that are not given come from the user's settings.

    A Ray cluster in the settings is used only if ``--ray`` is given. ``SpecError`` names the
    options that are wrong.
    """
    problems: list[SpecProblem] = []
    sizes: list[int | None] = []
    for option, text in (
        ("--max-memory", given.memory_max),
        ("--max-bandwidth", given.bandwidth_max),
    ):
        try:
            sizes.append(None if text is None else size_bytes(text, option, least=1))
        except SpecError as error:
            problems += error.problems
            sizes.append(None)
    memory_max_bytes, bandwidth_max_bytes = sizes
    ray = given.ray or given.ray_address is not None
    engine = given if isinstance(given, EngineArguments) else EngineArguments()
    resources = _mapping("--ray-resources", engine.ray_resources, float, ray, problems)
    labels = _mapping("--ray-labels", engine.ray_labels, str, ray, problems)
    if problems:
        raise SpecError(problems)
    settings = user_settings()
    return RunOptions(
        root=data_root(root, settings),
        scratch=given.scratch or settings.scratch,
        memory_max_bytes=memory_max_bytes or settings.memory_max_bytes,
        move=engine.move,
        workers=given.workers or settings.workers,
        overwrite=True if overwrite else None,
        force=force,
        runtime="ray" if ray else "local",
        ray_address=(given.ray_address or settings.ray_address) if ray else None,
        ray_resources=resources,
        ray_labels=labels,
        bandwidth_max_bytes_per_s=bandwidth_max_bytes or settings.bandwidth_max_bytes_per_s,
        settings=settings,
        forks=is_own_process(),
    )


def _mapping(
    option: str, text: str | None, kind: type[Value], ray: bool, problems: list[SpecProblem]
) -> dict[str, Value]:
    """The JSON object of an option for Ray clusters: names, and values of ``kind``."""
    if text is None:
        return {}
    if not ray:
        problems.append(
            SpecProblem(option, "is for Ray clusters", "name the cluster: --ray-address")
        )
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    number = kind is float
    if not isinstance(found, dict) or not all(
        isinstance(value, (int, float) if number else str) and not isinstance(value, bool)
        for value in found.values()
    ):
        example = '{"dsort": 1}' if number else '{"zone": "a"}'
        problems.append(SpecProblem(option, f"{text} is not an object like {example}"))
        return {}
    return {name: kind(value) for name, value in found.items()}
