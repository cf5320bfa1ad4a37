"""The control plane of a petabyte, without the petabyte: the real coordinator over fake workers.

Run as ``python -m tests.support.simulation --shards 100000 --records 1e9``; it prints one JSON
object. The coordinator is the real one, from resolve to the manifest, with lease and journal.
Workers answer by arithmetic (see ``arithmetic_workers``), buckets hold no payload (see
``null_bucket``). Times do not include the fake workers; the peak of memory does.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.memory import own_bytes
from dsort.options import RunOptions
from dsort.pipeline.compile import compile_pipeline, steps_of
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from dsort.storage.routed import BucketPlace
from tests.support.arithmetic_workers import ArithmeticRuntime, Scale
from tests.support.internals import (
    Buckets,
    Event,
    Found,
    Job,
    JobAttempt,
    JobMemory,
    Manifest,
    Outcome,
    PhaseDone,
    Reporter,
    Tally,
    output_names,
    run_job,
    with_seed,
)
from tests.support.null_bucket import NullBucket

NODE_MEMORY_BYTES_MAX = 8 << 30


@dataclass(slots=True)
class Simulated:
    """The costs of a simulated job. ``phase_seconds``: CPU seconds of the coordinator, without its
    workers (no process waits here). ``rss_bytes``: the memory of the process at the end of each
    phase."""

    scale: Scale
    phase_seconds: dict[str, float] = field(default_factory=dict)
    rss_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    messages: dict[str, dict[str, int]] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    stored_bytes: int = 0  # manifest, journal and all else that the coordinator stores
    partitions: int = 0
    output_shards: int = 0
    events: int = 0


def simulate(
    scale: Scale, *, progress: bool = False, runtime: ArithmeticRuntime | None = None
) -> Simulated:
    """Run one job from its spec to its manifest. Raises the errors of the coordinator."""
    runtime = runtime or ArithmeticRuntime(scale)
    inputs = NullBucket("s3://inputs", shards=scale.shards, shard_bytes=scale.shard_bytes)
    outputs = NullBucket("s3://outputs")
    result = Simulated(scale)
    with StopFlag() as stop:
        job = _job(scale, runtime, inputs, outputs, stop)
        listener = _Listener(runtime, result, progress=progress)
        job.reporter.on_event = listener
        report = run_job(job, Tally())
    result.partitions = job.found.movement.partitions
    result.output_shards = report.output_shards
    result.peak_bytes = own_bytes("VmHWM")
    traffic = runtime.traffic
    result.messages = {
        kind: {
            "count": count,
            "bytes": traffic.bytes_total[kind],
            "bytes_max": traffic.bytes_max[kind],
        }
        for kind, count in traffic.count.items()
    }
    result.requests = dict(inputs.requests + outputs.requests)
    result.stored_bytes = outputs.bytes_written
    return result


def _job(
    scale: Scale,
    runtime: ArithmeticRuntime,
    inputs: NullBucket,
    outputs: NullBucket,
    stop: StopFlag,
) -> Job:
    spec = parse_spec(
        {
            "input_bck": inputs.uri,
            "output_bck": outputs.uri,
            "input_format": {"prefix": "shard-"},
            "input_extension": ".tar",
            "output_format": "out-%07d",
            "output_shard_size": str(scale.output_payload_bytes),
            "algorithm": {"kind": "shuffle", "seed": "1"},
            "description": "simulated",
        }
    ).spec
    spec, job_id = with_seed(spec), "20260101-000000-000000"
    pipeline = compile_pipeline(spec, steps=steps_of(spec))
    return Job(
        job_id=job_id,
        spec=spec,
        options=RunOptions(root=Path.cwd(), memory_max_bytes=NODE_MEMORY_BYTES_MAX),
        pipeline=pipeline,
        buckets=Buckets(
            inputs,
            outputs,
            (BucketPlace("", spec.input_bck),),
            (BucketPlace("", spec.output_bck),),
        ),
        runtime=runtime,
        stop=stop,
        reporter=Reporter(job_id, spec, pipeline.reading.containers, lambda event: None),
        attempt=JobAttempt(outputs, job_id, runtime),
        found=Found(Manifest.empty(spec), JobMemory(NODE_MEMORY_BYTES_MAX, NODE_MEMORY_BYTES_MAX)),
        outcome=Outcome(output_names(spec)),
    )


class _Listener:
    """Counts events, and notes the CPU time of each phase at its end, without that of the fake
    workers."""

    def __init__(self, runtime: ArithmeticRuntime, result: Simulated, *, progress: bool) -> None:
        self._traffic = runtime.traffic
        self._result = result
        self._progress = progress
        self._began = time.process_time()

    def __call__(self, event: Event) -> None:
        self._result.events += 1
        if isinstance(event, PhaseDone):
            own = time.process_time() - self._traffic.worker_seconds
            seconds = own - self._began
            self._began = own
            self._result.phase_seconds[event.phase] = seconds
            rss_bytes = self._result.rss_bytes[event.phase] = own_bytes("VmRSS")
            if self._progress:
                print(f"{event.phase}: {seconds:.1f} s, {rss_bytes >> 20} MiB", flush=True)


def report_of(result: Simulated) -> dict[str, Any]:
    """The result in JSON types."""
    report = asdict(result)
    report["seconds"] = sum(result.phase_seconds.values())
    report["tasks"] = sum(
        facts["count"] for kind, facts in result.messages.items() if kind.endswith("Task")
    )
    return report


def main() -> None:
    """Simulate and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    number = lambda text: int(float(text))  # noqa: E731
    parser.add_argument("--shards", type=number, default=100_000)
    parser.add_argument("--records", type=number, default=10**9)
    parser.add_argument("--record-bytes", type=number, default=10**6)
    parser.add_argument("--output-shards", type=number, default=100_000)
    parser.add_argument("--nodes", type=number, default=100)
    parser.add_argument("--workers-a-node", type=number, default=16)
    parser.add_argument("--progress", action="store_true")
    arguments = vars(parser.parse_args())
    progress = arguments.pop("progress")
    result = simulate(Scale(**arguments), progress=progress)
    print(json.dumps(report_of(result)))


if __name__ == "__main__":
    main()
