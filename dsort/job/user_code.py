"""What a job does for the code of payload steps before it begins: describes the code, in a process
of its own, and finds the CPUs and GPUs for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction

from dsort.errors import CodeRefusedError, TransformError
from dsort.job.resources import CodeRoom
from dsort.options import RunOptions
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.user_code.pool import CodePool
from dsort.workers.gpus import VISIBLE, GpuNeeds, cpus_of, gpus_here


def described_steps(steps: Sequence[Step], options: RunOptions) -> tuple[Step, ...]:
    """``steps``, those on payload with a description of their code: the hash of its source, and the
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
            hint="--run-code lets it, for a spec that is yours",
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
    """What ``steps`` may use of a machine with ``cpus``. ``TransformError`` if it has too few
    GPUs."""
    needs, wanted_cpus = GpuNeeds.of(steps), cpus_of(steps)
    limits = [max(1, int(cpus / wanted_cpus))] if wanted_cpus > 1 else []
    if not needs.total:
        return CodeRoom(min(limits, default=None))
    gpus = gpus_here()
    if not needs.workers(len(gpus)):
        has = f"has {len(gpus)}" if gpus else "has none that a job may use"
        raise TransformError(
            f"steps want {_amount(needs.total)} at a time (num_gpus), and this machine {has}",
            hint=f"start it where there are more, or look at {VISIBLE} and the driver; steps can "
            "share one: num_gpus: 0.5",
        )
    return CodeRoom(min([*limits, needs.workers(len(gpus))]), gpus)


def _amount(total: Fraction) -> str:
    return "1 GPU" if total == 1 else f"{float(total):g} GPUs"
