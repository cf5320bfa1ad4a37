"""Opens the job of a spec: its buckets, its runtime, its pipeline, the resources for user code.
``api`` uses this module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from dsort.data.tally import Tally
from dsort.errors import (
    SpecError,
)
from dsort.job.job import Buckets, Found, Job, JobAttempt, Outcome
from dsort.job.setup.new_job import load_formats, load_keymap, load_steps, output_names, with_seed
from dsort.job.setup.resources import (
    CodeRoom,
    JobMemory,
    cores,
    job_memory,
    store_limits,
    workers_here,
)
from dsort.log_lines import about
from dsort.options import RunOptions
from dsort.order.base import GivenPlaces
from dsort.pipeline.compile import compile_pipeline, steps_of
from dsort.pipeline.movement import workers_that_fit
from dsort.results.job_ids import new_job_id
from dsort.results.journal_entries import JournalState
from dsort.results.manifest import Manifest
from dsort.results.report import Event
from dsort.results.reporter import Reporter
from dsort.runtime.base import Runtime
from dsort.runtime.local import LocalRuntime
from dsort.settings import resolve_ref
from dsort.spec.inputs import Source
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.open import fixed_ref, open_both, open_bucket
from dsort.storage.process_limits import explain_limits
from dsort.storage.ref import BucketRef
from dsort.storage.routed import BucketPlace

__all__ = ["Listener", "open_place", "opened_job"]

Listener = Callable[[Event], None]


@contextlib.contextmanager
def opened_job(
    spec: JobSpec,
    options: RunOptions,
    on_event: Listener,
    stop: StopFlag | None,
    *,
    job_id: str = "",
    before: JournalState | None = None,
) -> Iterator[tuple[Job, Tally]]:
    """A job with open buckets and a runtime that has begun, and the tally of the oddities counted
    so far. ``before``: the state of an earlier attempt of ``job_id``."""
    spec, job_id = with_seed(spec), job_id or new_job_id()
    with explain_limits(), about(job_id), contextlib.ExitStack() as stack:
        flag = stop or stack.enter_context(StopFlag())
        memory = job_memory(spec, options)
        streams, spooled = None, dict[str, BucketRef]()
        output_bck = resolve_ref(spec.output_bck, options.settings)
        if spec.reads_streams or spec.output_bck.is_stream:
            from dsort.job.streams import opened_streams  # few jobs have streams

            streams = stack.enter_context(opened_streams(spec, options, job_id))
            spooled, output_bck = streams.inputs, streams.output or output_bck
        places = _input_places(spec, options, spooled, flag)
        targets = (BucketPlace("", output_bck), *_own_places(spec, options))
        if options.forks:  # forked workers have all that is loaded by now
            buckets = _open_all(places, targets, options, flag)
            load_formats(spec)
        runtime = _runtime(spec, options, flag, memory)
        stack.callback(runtime.close)
        if not options.forks:  # workers load the same modules meanwhile
            buckets = _open_all(places, targets, options, flag)
        if streams is not None:  # by now no worker can be a fork of a process with threads
            streams.spool(flag)
        tally = Tally(named={})
        # A job that is resumed only to be stopped has left files: until its lease is taken, the
        # stop must not raise an error.
        is_to_clean = before is not None and flag.requested
        spec, placed_by = _places(spec, tally, options, flag, is_to_clean=is_to_clean)
        steps = flag.wait_for(partial(load_steps, spec, options)) if steps_of(spec) else ()
        room = CodeRoom()
        if any(step.needs == "payload" for step in steps) and not is_to_clean:
            from dsort.job.setup.user_code import (  # other jobs run no code
                described_steps,
                room_here,
            )

            if options.runtime == "local":
                room = room_here(steps, cores())
            steps = flag.wait_for(partial(described_steps, steps, options))
        pipeline = compile_pipeline(spec, steps=steps, placed_by=placed_by)
        job = Job(
            job_id=job_id,
            spec=spec,
            options=options,
            pipeline=pipeline,
            buckets=Buckets(*buckets, places, targets, streams),
            runtime=runtime,
            stop=flag,
            reporter=Reporter(job_id, spec, pipeline.reading.containers, on_event),
            attempt=JobAttempt(buckets[1], job_id, runtime, before or JournalState()),
            found=Found(Manifest.empty(spec), memory, room),
            outcome=Outcome(output_names(spec, placed_by)),
        )
        yield job, tally


def _places(
    spec: JobSpec, tally: Tally, options: RunOptions, stop: StopFlag, *, is_to_clean: bool
) -> tuple[JobSpec, GivenPlaces]:
    """(the spec with the manifest of the result that ``like`` names, the given places).
    ``is_to_clean``: whether the job is only to be stopped, for which no result is read."""
    load = partial(load_keymap, spec, tally, fetch=options.fetch)
    if is_to_clean:
        return spec, load()
    if not spec.like:
        return spec, stop.wait_for(load)
    from dsort.result_order import load_places, pinned  # few jobs are like others

    spec = stop.wait_for(partial(pinned, spec, options))
    return spec, stop.wait_for(partial(load_places, spec, options))


def _input_places(
    spec: JobSpec, options: RunOptions, spooled: Mapping[str, BucketRef], stop: StopFlag
) -> tuple[BucketPlace, ...]:
    """The buckets of the inputs. All workers read these buckets as they are now. ``spooled``: by
    input, where the bytes of its stream are stored."""

    def ref_of(source: Source) -> BucketRef:
        ref = resolve_ref(source.bucket, options.settings)
        if ref.is_directory or stop.requested:  # a job that is only stopped reads nothing
            return ref
        return fixed_ref(ref, store_limits(ref, options), pause=stop.pause)

    return tuple(
        BucketPlace(source.name, spooled.get(source.name) or ref_of(source))
        for source in spec.sources
    )


def _own_places(spec: JobSpec, options: RunOptions) -> tuple[BucketPlace, ...]:
    """The buckets of outputs that do not use the bucket of the job."""
    return tuple(
        BucketPlace(target.place, resolve_ref(target.bucket, options.settings))
        for target in spec.targets
        if target.bucket is not None
    )


def _open_all(
    sources: Sequence[BucketPlace],
    targets: Sequence[BucketPlace],
    options: RunOptions,
    stop: StopFlag | None,
) -> tuple[Bucket, Bucket]:
    """(all buckets of inputs as one bucket, all buckets of outputs as one bucket)."""

    def opened(place: BucketPlace, *, reads: bool = False) -> Bucket:
        return open_place(place.ref, options, stop, reads=reads)

    return open_both(sources, targets, partial(opened, reads=True), opened)


def open_place(
    ref: BucketRef, options: RunOptions, stop: StopFlag | None, *, reads: bool = False
) -> Bucket:
    """The bucket ``ref``, with the limits of ``options``. ``reads``: whether it is an input."""
    return open_bucket(
        ref,
        root=options.root,
        limits=store_limits(ref, options),
        policy=options.fetch if reads else options.output_fetch,
        pause=stop.pause if stop else None,
    )


def _runtime(spec: JobSpec, options: RunOptions, stop: StopFlag, memory: JobMemory) -> Runtime:
    if options.runtime == "local":
        # Workers begin before the needed number is known: as many as fit in memory.
        workers = workers_that_fit(memory.wanted_bytes, workers_here(options.workers))
        return LocalRuntime(workers, stop, forks=options.forks)
    if options.runtime == "ray":
        from dsort.runtime.ray.block_server import BlockPlace
        from dsort.runtime.ray.runtime import RayRuntime  # takes seconds to import; only where used
        from dsort.workers.gpus import GpuNeeds, cpus_of

        settings, steps = options.settings, steps_of(spec)
        return RayRuntime(
            options.ray_address,
            options.workers,
            stop,
            resources=options.ray_resources,
            labels=options.ray_labels,
            cpus=cpus_of(steps),
            gpus=float(GpuNeeds.of(steps).total),
            direct=settings.exchange != "ray",
            place=BlockPlace(settings.exchange_ports or (0, 0), settings.exchange_network or ""),
        )
    raise SpecError(f"unknown runtime {options.runtime}", hint="local or ray")
