"""dsort from Python: ``run`` a job, ``plan`` one, or ``verify`` what one has made."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dsort.coordinator import plan_job, planned, run_job
from dsort.core.tally import Tally
from dsort.errors import SpecError
from dsort.job import Job
from dsort.job_setup import cores, load_keymap, new_job_id, output_names, with_seed
from dsort.reports import Event, JobReport, PlanReport, Progress, RunOptions, VerifyReport
from dsort.runtime.base import Runtime
from dsort.runtime.local import LocalRuntime
from dsort.spec.load import load_spec as read_spec
from dsort.spec.model import JobSpec
from dsort.stopping import StopFlag
from dsort.storage.addresses import open_bucket
from dsort.verify import verify_result

__all__ = ["load_spec", "plan", "run", "verify"]

Listener = Callable[[Event], None]


def load_spec(source: str | Path) -> JobSpec:
    """The spec in a file (JSON or YAML), or in a text that begins with ``{``.

    Older names and fields without effect are told as ``UserWarning``. ``SpecError`` lists every
    problem of the spec.
    """
    loaded = read_spec(source)
    for text in loaded.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return loaded.spec


def run(
    spec: JobSpec,
    *,
    runtime: str | None = None,
    options: RunOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> JobReport:
    """Run a job to its end and say what it did. A spec with ``dry_run`` is only planned.

    ``runtime``: ``local`` or ``ray``, if not as in ``options``. ``on_progress`` is called in this
    thread with every :class:`~dsort.reports.Progress`, ``on_event`` with every
    :data:`~dsort.reports.Event` (phases, warnings, progress). ``stop`` lets a
    signal handler or another thread end the job. Raises ``DsortError``: nothing of the result is
    visible then, and the bucket holds a report of the job at most.
    """
    options = options or RunOptions(root=Path.cwd())
    if runtime is not None:
        options = replace(options, runtime=runtime)
    with _job(spec, options, _listener(on_progress, on_event), stop) as (job, tally):
        if spec.dry_run:
            return planned(plan_job(job, tally), job.outputs_bucket.uri)
        return run_job(job, tally)


def plan(
    spec: JobSpec,
    *,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> PlanReport:
    """Say what a job would do; writes nothing to any bucket."""
    with _job(spec, options, on_event, stop) as (job, tally):
        return plan_job(job, tally)


def verify(
    manifest: bytes,
    *,
    output_uri: str | None = None,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> VerifyReport:
    """Read a result and its inputs again, and say whether it is what its manifest and spec say.

    ``manifest``: its bytes. ``output_uri``: where the result is now, if not where the spec says.
    What is wrong is in the report; raised is what keeps the result from being looked at.
    """
    return verify_result(
        manifest, output_uri=output_uri, options=options, on_event=on_event, stop=stop
    )


def _listener(
    on_progress: Callable[[Progress], None] | None, on_event: Listener | None
) -> Listener:
    def listen(event: Event) -> None:
        if on_event is not None:
            on_event(event)
        if on_progress is not None and isinstance(event, Progress):
            on_progress(event)

    return listen


@contextlib.contextmanager
def _job(
    spec: JobSpec,
    options: RunOptions | None,
    on_event: Listener | None,
    stop: StopFlag | None,
) -> Iterator[tuple[Job, Tally]]:
    options = options or RunOptions(root=Path.cwd())
    with contextlib.ExitStack() as stack:
        flag = stop if stop is not None else stack.enter_context(StopFlag())
        runtime = _runtime(options, flag)
        stack.callback(runtime.close)
        tally = Tally()
        keymap = load_keymap(spec, tally)
        job = Job(
            job_id=new_job_id(),
            spec=with_seed(spec),
            options=options,
            inputs_bucket=open_bucket(spec.input_bck.uri, root=options.root),
            outputs_bucket=open_bucket(spec.output_bck.uri, root=options.root),
            runtime=runtime,
            stop=flag,
            on_event=on_event or (lambda event: None),
            names=output_names(spec, keymap),
            keymap=keymap,
        )
        yield job, tally


def _runtime(options: RunOptions, stop: StopFlag) -> Runtime:
    if options.runtime == "local":
        workers = options.workers or cores()
        return LocalRuntime(workers, stop)
    if options.runtime == "ray":
        from dsort.runtime.on_ray import RayRuntime  # takes seconds to import; only where used

        return RayRuntime(options.ray_address, options.workers, stop)
    raise SpecError(f"unknown runtime {options.runtime}", hint="local or ray")
