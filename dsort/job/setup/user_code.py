"""Runs the code of payload steps outside of workers. Before the job begins, a separate process
describes the code; later the code runs on some records, to find their form or to compare them. Also
decides which CPUs and GPUs code may use."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.tally import Tally
from dsort.errors import CodeRefusedError, TransformError
from dsort.job.setup.resources import CodeRoom, cores
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.options import RunOptions
from dsort.pipeline.pipeline import StepFailures
from dsort.scratch.directory import Scratch
from dsort.scratch.logs import NO_LINES
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.user_code.pool import CodePool
from dsort.workers.conversion import bared_records
from dsort.workers.gpus import VISIBLE, GpuNeeds, cpus_of, gpus_here
from dsort.workers.tasks import CodeShare
from dsort.workers.transformer import Transformed, Transformer


def described_steps(steps: Sequence[Step], options: RunOptions) -> tuple[Step, ...]:
    """``steps``; payload steps have a description of their code: the hash of its source, and the
    packages that it loads. ``TransformError`` if it cannot be loaded, ``CodeRefusedError`` if
    ``options`` do not allow it to run."""
    return tuple(
        _described(number, step, options) if isinstance(step, PayloadStep) else step
        for number, step in enumerate(steps)
    )


def _described(number: int, step: PayloadStep, options: RunOptions) -> Step:
    if not options.may_run_code:
        raise CodeRefusedError(
            f"transform.steps[{number}] is {step.kind}, which runs code that the spec names",
            hint="--run-code allows this; use it only for specs that you trust",
        )
    pool = CodePool(
        step.given_program(number),
        what=step.kind,
        count=1,
        timeout_s=step.patience_s,
        keeps=False,
    )
    with closing(pool):
        return step.described(pool.describe())


def room_here(steps: Sequence[Step], cpus: int) -> CodeRoom:
    """The workers and GPUs that ``steps`` may use on a machine with ``cpus``. ``TransformError`` if
    it has too few GPUs."""
    needs, wanted_cpus = GpuNeeds.of(steps), cpus_of(steps)
    limits = [max(1, int(cpus / wanted_cpus))] if wanted_cpus > 1 else []
    if not needs.total:
        return CodeRoom(min(limits, default=None))
    gpus = gpus_here()
    if not needs.workers(len(gpus)):
        has = f"has {len(gpus)}" if gpus else "has none that a job may use"
        wanted = "1 GPU" if needs.total == 1 else f"{float(needs.total):g} GPUs"
        raise TransformError(
            f"steps need {wanted} at a time (num_gpus), and this machine {has}",
            hint=f"start the job where there are more, or check {VISIBLE} and the driver; steps "
            "can share a GPU: num_gpus: 0.5",
        )
    return CodeRoom(min([*limits, needs.workers(len(gpus))]), gpus)


class CodeAgain:
    """The steps of a job that has steps with code. Code runs in processes of this machine, until
    ``close``."""

    def __init__(self, failures: StepFailures, steps: Sequence[Step]) -> None:
        self._steps = steps
        room = room_here(steps, cores())
        self._directory = tempfile.TemporaryDirectory(prefix="dsort-code-")
        scratch = Scratch(Path(self._directory.name) / "scratch", make=True)
        rules = replace(failures, rejects="")  # the job itself stores rejected records
        self._transformer = Transformer(rules, CodeShare(gpus=room.gpus), scratch)

    def read_rows(self, decoders: Mapping[str, str]) -> None:
        """From now on records are rows, whose cells are values (``columnar.columns``)."""
        self._transformer.cells = dict(decoders)

    def close(self) -> None:
        """End the processes."""
        self._transformer.close()
        self._directory.cleanup()

    def run(
        self,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        *,
        input_name: str = "",
        firsts: Sequence[int] = (),
    ) -> Transformed:
        """The records of a bare table after the steps, as another table. ``TransformError`` if the
        job would end."""
        left = self._transformer.run(
            self._steps,
            shard,
            members,
            records,
            Tally(),
            NO_LINES,
            input_name=input_name,
            firsts=firsts,
        )
        if shard.container is BARE:
            return left
        bare, found = bared_records(shard, left.named, left.records)
        return replace(left, members=bare, named=bare, records=found)
