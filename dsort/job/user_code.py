"""Describes the code of payload steps, in a process of its own, before the job begins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from dsort.errors import CodeRefusedError
from dsort.options import RunOptions
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.user_code.pool import CodePool


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
